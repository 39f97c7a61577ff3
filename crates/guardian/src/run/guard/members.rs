//! The members of a subject with several roots: a group of components that is checkpointed and restored together.
//!
//! Owns: the programs that are to join the subject, the roots that leave it, and the condition for checkpoints.
//! Invariants: a root joins or leaves while no other step of a restart runs. The end of a root that leaves is no death
//! of the subject. A death of the subject calls off everything that is pending here.
//! Does not: decide which member runs; the director of the system does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Pid, Signal};
use supervise::{Event, SubjectStatus, Success};

use super::super::rebuild::Rebuild;
use super::super::request::RunRequest;
use super::outbox::{MemberNumber, SubjectReport};
use super::parts::Guard;
use crate::error::Result;
use crate::event::RunEvent;
use crate::record::ProcessName;
use crate::signals::Request;
use crate::subject::Root;

/// How long the guard waits for the death of another root, after a root has ended with success. A program that ends
/// because its connection was closed can be reported before the program that has closed the connection by its death.
const SETTLES: Duration = Duration::from_millis(100);

/// The members of one subject.
#[derive(Default)]
pub(super) struct Members {
    /// Programs that are to join.
    joining: VecDeque<(MemberNumber, RunRequest)>,
    /// Roots that are being ended while the others continue.
    leaving: BTreeSet<Pid>,
    /// The ends of each root that count as success.
    success: BTreeMap<Pid, Success>,
    /// Roots that have ended with success, and the time when this counts.
    settles: BTreeMap<Pid, Instant>,
    /// Whether checkpoints wait, because a member is not ready.
    is_incomplete: bool,
}

impl Members {
    /// Reports whether checkpoints wait for a member.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Reports whether the end of a root is expected, or known already.
    pub(super) fn is_leaving(&self, root: Pid) -> bool {
        self.leaving.contains(&root) || self.settles.contains_key(&root)
    }

    /// Returns the time when the next end of a root counts.
    pub(super) fn due(&self) -> Option<Instant> {
        self.settles.values().min().copied()
    }

    /// Reports whether the other roots continue after this end of a root.
    fn leaves(&self, root: Pid, status: SubjectStatus) -> bool {
        self.leaving.contains(&root) || self.success.get(&root).is_some_and(|success| success.has(status))
    }

    /// Reports whether it is not yet known that no other root has died.
    fn is_unsettled(&mut self, root: Pid, now: Instant) -> bool {
        !self.leaving.contains(&root) && now < *self.settles.entry(root).or_insert(now + SETTLES)
    }

    fn forget(&mut self, root: Pid) {
        self.leaving.remove(&root);
        self.settles.remove(&root);
    }

    /// Reports whether a program is to join.
    pub(super) fn is_pending(&self) -> bool {
        !self.joining.is_empty()
    }

    /// Records a root. A restore gives it the same pid again.
    pub(super) fn note_root(&mut self, root: Pid, success: Success) {
        self.success.insert(root, success);
    }

    /// Calls everything off, because the subject has died.
    pub(super) fn died(&mut self) {
        self.joining.clear();
        self.leaving.clear();
        self.settles.clear();
    }
}

impl Guard {
    /// Lets a program join the subject, as soon as no checkpoint and no restart is in the way.
    pub(crate) fn join(&mut self, member: MemberNumber, request: RunRequest) {
        self.members.joining.push_back((member, request));
    }

    /// Ends one root. The other roots continue. The end of the only root is the end of the run.
    pub(crate) fn end_root(&mut self, root: Pid, signal: Signal) {
        if self.rebuild.subject.roots().count() == 1 {
            return self.signal(Request::End { signal, from_terminal: false, is_of_group: false });
        }
        if let Some(process) = self.rebuild.subject.root(root) {
            self.members.leaving.insert(root);
            // A process that has ended meanwhile needs no signal.
            let _ = process.ask_to_end(signal);
        }
    }

    /// With `true`, checkpoints wait until all members are ready.
    pub(crate) fn set_incomplete(&mut self, is_incomplete: bool) {
        self.members.is_incomplete = is_incomplete;
    }

    /// Orders the start of the next program that is to join.
    pub(super) fn join_next(&mut self) {
        if self.taking.tracer.is_tracing() {
            return;
        }
        let Some((member, request)) = self.members.joining.pop_front() else { return };
        let (success, requests) = (request.success, self.requests.name().to_owned());
        let work = move |rebuild: &Rebuild| rebuild.join(&request, &requests);
        self.order(work, move |guard, outcome| {
            match outcome {
                Ok((root, streams)) => {
                    guard.members.note_root(root.pid(), success);
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
        if let Some(death) = ended.iter().find(|(root, status)| !self.members.leaves(*root, *status)) {
            return Ok(Some(*death));
        }
        let now = self.rebuild.host.clock.now();
        for (root, status) in ended {
            let Some(rest) = self.rebuild.subject.without(root) else { return Ok(Some((root, status))) };
            if self.members.is_unsettled(root, now) || self.taking.tracer.is_tracing() {
                continue;
            }
            self.rebuild.subject.root(root).map_or(Ok(()), Root::release)?;
            self.rebuild.subject = Arc::new(rest);
            self.members.forget(root);
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
