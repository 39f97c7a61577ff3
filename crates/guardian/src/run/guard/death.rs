//! The notice of a death, and the next incarnation.
//!
//! Owns: what is reported of a death, what begins anew with an incarnation.
//! Invariants: no thread of ours traces the dead when their death is reported.
//! Does not: decide what follows a death; `supervise` does.

use supervise::{Event, SubjectStatus};

use super::super::children::{Children, Heard};
use super::super::leftovers::descendants;
use super::super::rebuild::lock;
use super::parts::Guard;
use crate::error::Result;
use crate::event::RunEvent;
use crate::record::{Death, ProcessName};

impl Guard {
    /// Reports a death, after everything that decides what it means.
    pub(super) fn died(&mut self, status: SubjectStatus) -> Result<()> {
        self.tree.death = None;
        self.taking.tracer.call_off_waits(false);
        self.voice.record.facts.last_death =
            Some(Death { signal: status.signal(), exit: status.exit(), time: self.time() });
        let mut foreground = lock(&self.tree.foreground);
        let has_terminal = foreground.is_given();
        foreground.take_back(Some(status));
        drop(foreground);
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

    /// Forgets what was of the incarnation before.
    pub(super) fn begin_incarnation(&mut self) -> Result<()> {
        self.driver.incarnation = self.driver.machine.incarnation();
        if let Some(children) = &mut self.tree.children {
            children.begin(self.subject.pid(), self.tree.resumed_after)?;
        }
        self.host.reaper.begin(self.tree.owner, self.subject.key());
        self.tree.child_death = None;
        self.forget_failures();
        self.requests.forget();
        self.tree.known = descendants(self.subject.pid());
        self.host.reaper.note(self.tree.owner, &self.tree.known);
        self.voice.record.facts.incarnation = self.driver.incarnation;
        self.voice.record.root = ProcessName::of(self.subject.key());
        self.voice.record.first_sequence = self.driver.machine.first_sequence().get();
        self.write_record();
        self.hear_children()
    }
}
