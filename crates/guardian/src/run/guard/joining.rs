//! Roots that join and leave a living subject.
//!
//! Owns: the start of a program that joins, and the removal of a root that has left.
//! Invariants: a root joins or leaves while no other step of a restart runs, and while no thread traces the subject.
//! Does not: decide which member runs; the director of the system does.

use std::sync::Arc;

use model::{Pid, Signal};
use supervise::{Event, SubjectStatus};

use super::super::rebuild::Rebuild;
use super::super::request::RunRequest;
use super::outbox::{MemberNumber, SubjectReport};
use super::parts::Guard;
use crate::error::Result;
use crate::event::RunEvent;
use crate::record::ProcessName;
use crate::signals::Request;
use crate::subject::Root;

impl Guard {
    /// Lets a program join the subject, as soon as no checkpoint and no restart is in the way.
    pub(crate) fn join(&mut self, member: MemberNumber, request: RunRequest) {
        self.tree.members.joining.push_back((member, request));
    }

    /// Ends one root. The other roots continue. The end of the only root is the end of the run.
    pub(crate) fn end_root(&mut self, root: Pid, signal: Signal) {
        if self.rebuild.subject.roots().count() == 1 {
            return self.signal(Request::End { signal, from_terminal: false, is_of_group: false });
        }
        if let Some(process) = self.rebuild.subject.root(root) {
            self.tree.members.leaving.insert(root);
            // A process that has ended meanwhile needs no signal.
            let _ = process.ask_to_end(signal);
        }
    }

    /// With `true`, checkpoints wait until all members are ready.
    pub(crate) fn set_incomplete(&mut self, is_incomplete: bool) {
        self.tree.members.is_incomplete = is_incomplete;
    }

    /// Orders the start of the next program that is to join.
    pub(super) fn join_next(&mut self) {
        if self.taking.tracer.is_tracing() {
            return;
        }
        let Some((member, request)) = self.tree.members.joining.pop_front() else { return };
        let (success, requests) = (request.success, self.requests.name.clone());
        let work = move |rebuild: &Rebuild| rebuild.join(&request, &requests);
        self.order(work, move |guard, outcome| {
            match outcome {
                Ok((root, streams)) => {
                    guard.tree.members.note_root(root.pid(), success);
                    if let Some(streams) = streams {
                        guard.rebuild.streams = Arc::new(streams);
                    }
                    let report = SubjectReport::Joined { member, root: root.pid() };
                    guard.rebuild.subject = Arc::new(guard.rebuild.subject.with(root));
                    guard.note_roots();
                    guard.voice.outbox.report(report);
                }
                Err(error) => {
                    let reason = error.to_string();
                    guard.voice.outbox.report(SubjectReport::NotJoined { member, reason });
                }
            }
            Ok(Event::Due)
        });
    }

    /// Returns the death of the subject, if a root has ended and does not only leave. A root that leaves is removed when
    /// no thread of this process traces the subject.
    pub(super) fn find_death(&mut self) -> Result<Option<(Pid, SubjectStatus)>> {
        let ended = self.rebuild.subject.ended()?;
        if let Some(death) = ended.iter().find(|(root, status)| !self.tree.members.leaves(*root, *status)) {
            return Ok(Some(*death));
        }
        let now = self.rebuild.host.clock.now();
        for (root, status) in ended {
            let Some(rest) = self.rebuild.subject.without(root) else { return Ok(Some((root, status))) };
            if self.tree.members.is_unsettled(root, now) || self.taking.tracer.is_tracing() {
                continue;
            }
            self.rebuild.subject.root(root).map_or(Ok(()), Root::release)?;
            self.rebuild.subject = Arc::new(rest);
            self.tree.members.forget(root);
            self.note_roots();
            let (signal, exit) = (status.signal(), status.exit());
            self.report(RunEvent::MemberLeft { pid: root.get(), signal, exit });
            self.voice.outbox.report(SubjectReport::Left { root, status });
        }
        Ok(None)
    }

    /// Records the present roots, for the reaper and for later commands.
    fn note_roots(&mut self) {
        let keys = self.rebuild.subject.keys();
        self.rebuild.host.reaper.set_roots(self.rebuild.owner, keys);
        self.record_roots();
        self.write_record();
    }

    pub(super) fn record_roots(&mut self) {
        let mut names = self.rebuild.subject.keys().into_iter().map(ProcessName::of);
        self.voice.record.root = names.next().unwrap_or_default();
        self.voice.record.other_roots = names.collect();
    }
}
