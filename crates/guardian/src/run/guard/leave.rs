//! The end of a guard, on a worker: it waits until everything is written.
//!
//! Owns: what the caller of the run is told in the end.
//! Does not: end a subject.

use model::Pid;
use supervise::{End, Failure, State, SubjectStatus};

use super::parts::Guard;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;

/// A run that is over.
pub(crate) struct Left {
    /// How the subject has ended.
    pub(crate) outcome: Result<SubjectStatus>,
    /// What is still to be told, under this name.
    pub(crate) name: String,
    pub(crate) told: Vec<RunEvent>,
}

impl Guard {
    /// The subject has ended for good, or can be watched no more.
    pub(crate) fn leave(mut self) -> Left {
        let outcome = self.outcome();
        for news in self.taking.tracer.leave_subject() {
            self.note_news(news);
        }
        // The newest state of a program that was told to end is worth as much as any.
        self.await_commits();
        self.taking.tracer.end();
        if let Ok(status) = outcome {
            self.voice.journal.tell(RunEvent::ended(self.subject.pid(), status));
            self.host.reaper.reap_orphans(self.tree.owner, Pid(0));
            if let Some(watching) = &self.files.watching {
                watching.watch.subject_ended();
            }
            self.report_departed(self.driver.machine.next_sequence(), true);
        }
        self.host.reaper.dismiss(self.tree.owner);
        self.write_record();
        self.voice.journal.end();
        Left { outcome, name: self.name().to_owned(), told: std::mem::take(&mut self.voice.outbox) }
    }

    fn outcome(&mut self) -> Result<SubjectStatus> {
        let no_way_back = GuardianError::NoWayBack { name: self.claim.name.to_string() };
        let last = self.driver.last_error.take();
        let error = match self.driver.machine.state() {
            State::Ended(End::Over(status) | End::GaveUp(status)) => return Ok(status),
            State::Ended(End::Failed(Failure::NoWayBack)) => no_way_back,
            State::Ended(End::Failed(Failure::LastError)) => last.unwrap_or(no_way_back),
            State::Ended(End::Failed(Failure::NotRestorable { tried })) => {
                last.map_or(no_way_back, |last| self.not_restorable(tried, last))
            }
            _ => return Err(last.unwrap_or(no_way_back)),
        };
        // Its number is free for a restore by hand.
        self.subject.release()?;
        Err(error)
    }

    /// Waits until nothing is being written any more.
    fn await_commits(&mut self) {
        self.hear_log();
        while self.driver.machine.in_flight().len() > 0 && self.taking.tracer.log().is_some() {
            self.taking.tracer.await_log();
            self.hear_log();
        }
    }
}
