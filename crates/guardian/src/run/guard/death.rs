//! The notice of a death, and the next incarnation.
//!
//! Owns: what is reported of a death, how processes are started and restored, what begins anew with an incarnation.
//! Invariants: nobody traces the dead when their death is reported; a dead child keeps its pid until the restore is
//! about to need it.
//! Does not: decide what follows a death; `supervise` does.

use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime};

use engine::{Covered, EngineError, RestoreOptions};
use model::Sequence;
use supervise::{Event, SubjectStatus};

use super::super::children::{Children, Heard};
use super::super::leftovers::descendants;
use super::super::spawn;
use super::super::watching::Watching;
use super::Guard;
use crate::aside::Parts;
use crate::error::Result;
use crate::event::RunEvent;
use crate::record::{Death, ProcessName};
use crate::subject::Subject;
use crate::time;

/// How long a pid that is taken is waited for: its holder may be a process that is just ending.
const PID_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is tried meanwhile.
const PID_NAP: Duration = Duration::from_millis(20);

impl Guard<'_> {
    /// Reports a death, after everything that decides what it means.
    pub(super) fn died(&mut self, status: SubjectStatus) -> Result<()> {
        self.hold_messages();
        self.leave_subject();
        // A signal may have come just before: it decides whether the death was asked for.
        self.take_signals()?;
        // What a failed child has caused may be seen before the failure.
        self.hear_children()?;
        self.voice.record.last_death = Some(Death {
            signal: status.signal(),
            exit: status.exit(),
            time: time::rfc3339(SystemTime::now()),
        });
        let has_terminal = self.host.foreground.is_given();
        self.host.foreground.take_back(Some(status));
        let child = self.tree.children.as_ref().zip(self.tree.child_death.take());
        // Checkpoints that may know the tree without the failed process.
        let after_child = child.map(|(children, death)| children.taken_after(death)).unwrap_or_default();
        self.feed(Event::Died { status, has_terminal, after_child });
        self.act()
    }

    /// Reports failures of other processes of the subject.
    pub(super) fn hear_children(&mut self) -> Result<()> {
        while let Some(heard) = self.tree.children.as_mut().map(Children::poll).transpose()?.flatten() {
            match heard {
                Heard::Lost => self.report(RunEvent::ChildrenUnseen),
                Heard::Death(death) => {
                    self.feed(Event::ChildFailed(death.signal));
                    if self.driver.machine.has_failed_child() {
                        self.tree.child_death.get_or_insert(death);
                    }
                    self.act()?;
                }
            }
        }
        Ok(())
    }

    /// Builds the tree of a checkpoint; `covered` are the files that went back to it.
    pub(super) fn build(&mut self, sequence: Sequence, covered: Covered) -> Result<()> {
        let path = self.store.get(&self.claim.name, sequence)?;
        let started = Instant::now();
        loop {
            let reader = self.store.read(&path)?;
            let parts = Parts::of_subject(&self.claim.directory);
            let options = RestoreOptions {
                pid: engine::PidPolicy::Same,
                inherited: self.host.streams.duplicates()?,
                files: self.files_at_restore(sequence, &parts, covered.clone()),
                connections_lost: true,
                terminal: self.host.foreground.offer(),
                watch: self.files.watching.as_ref().map(Watching::filter),
            };
            // Until here the dead root has kept its pid from others.
            self.subject.release()?;
            let outcome = engine::restore(reader, options);
            parts.take().iter().for_each(|part| self.report(RunEvent::moved_aside(part)));
            match outcome {
                Ok(restored) => {
                    self.host.foreground.accepted(restored.foreground);
                    self.tree.resumed_after = restored.resumed_after;
                    self.subject = Subject::child(restored.root)?;
                    return Ok(());
                }
                Err(
                    EngineError::PidTaken(_)
                    | EngineError::PidUnreaped { .. }
                    | EngineError::PidOfGroup { .. },
                ) if started.elapsed() < PID_PATIENCE => {
                    self.host
                        .household
                        .clear_construction(self.tree.owner, &self.tree.departed.before(sequence))?;
                    std::thread::sleep(PID_NAP);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Starts the program from its beginning, with files that are its own by now.
    pub(super) fn start_program(&mut self, words: &[OsString], why: Option<&str>) -> Result<()> {
        self.tree.departed.forget();
        self.subject.release()?;
        self.tree.resumed_after = sys::clock::monotonic();
        self.subject = spawn(words, &self.host.signals, &self.requests, self.files.watching.as_ref())?;
        let pid = self.subject.pid().get();
        self.report(RunEvent::Started { pid, why: why.map(str::to_owned) });
        Ok(())
    }

    /// Forgets what was of the incarnation before.
    pub(super) fn begin_incarnation(&mut self) -> Result<()> {
        self.driver.incarnation = self.driver.machine.incarnation();
        if let Some(children) = &mut self.tree.children {
            children.begin(self.subject.pid(), self.tree.resumed_after)?;
        }
        self.host.household.begin(self.tree.owner, self.subject.key());
        self.tree.child_death = None;
        self.forget_failures();
        self.requests.forget();
        self.tree.known = descendants(self.subject.pid());
        self.voice.record.incarnation = self.driver.incarnation;
        self.voice.record.root = ProcessName::of(self.subject.key());
        self.voice.record.first_sequence = self.driver.machine.first_sequence().get();
        self.write_record();
        self.hear_children()
    }
}
