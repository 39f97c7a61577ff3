//! Reports and messages of a guard on their way to the host.
//!
//! Owns: the reports and messages that the host has not collected yet, and the time when people may read messages.
//! Invariants: the director learns each report at once. While files of the subject are being rolled
//! back, people learn nothing, because their messages may be written to a file that is rolled back.
//! Does not: write messages.

use engine::Roots;
use model::Pid;
use supervise::{Fault, SubjectStatus};

use crate::event::RunEvent;

/// A report of a guard to the director, which decides about other subjects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SubjectReport {
    /// The program was started from its beginning.
    Started {
        /// Its first root.
        root: Pid,
    },
    /// The subject was restored from a checkpoint.
    Restored {
        /// All its roots.
        roots: Roots,
    },
    /// The subject has died, because a root has died.
    Died {
        /// The dead root.
        root: Pid,
        /// How the root has ended.
        status: SubjectStatus,
    },
    /// The subject is being killed, because of a fault.
    Faulted(Fault),
    /// The subject is stopped, for a restart or a hold.
    Stopped,
    /// The stopped subject continues.
    Resumed,
    /// The run ends, because there were too many restarts.
    GaveUp,
    /// A root has joined the subject.
    Joined {
        /// The number that the director has given to the member.
        member: MemberNumber,
        root: Pid,
    },
    /// The program of a member could not be started.
    NotJoined {
        /// The number that the director has given to the member.
        member: MemberNumber,
        /// Why.
        reason: String,
    },
    /// A root has left the subject. The other roots continue.
    Left {
        root: Pid,
        /// How the root has ended.
        status: SubjectStatus,
    },
}

/// The number that the director has given to a member of a subject with several roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemberNumber(pub(crate) u32);

/// Reports and messages that the host has not collected yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// For the director.
    reports: Vec<SubjectReport>,
    /// For people.
    messages: Vec<RunEvent>,
    /// Whether messages wait.
    pub(super) holds: bool,
}

impl Outbox {
    /// Adds a message for people.
    pub(super) fn push(&mut self, event: RunEvent) {
        self.messages.push(event);
    }

    /// Adds a report for the director.
    pub(super) fn report(&mut self, report: SubjectReport) {
        self.reports.push(report);
    }

    /// Makes messages wait, or lets them pass again.
    pub(super) fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// Returns the reports that the director does not know yet.
    pub(super) fn take_reports(&mut self) -> Vec<SubjectReport> {
        std::mem::take(&mut self.reports)
    }

    /// Returns the messages that people may receive now.
    pub(super) fn take_messages(&mut self) -> Vec<RunEvent> {
        if self.holds { Vec::new() } else { std::mem::take(&mut self.messages) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_and_reports_do_not() {
        let mut outbox = Outbox::default();
        let died = [RunEvent::Died { pid: 7, signal: Some(9), exit: None }];
        let restored = [RunEvent::Restored { pid: 7, seq: 1, took_us: 1, age_us: None }];
        outbox.hold(true);
        outbox.push(died[0].clone());
        let report = SubjectReport::Died { root: Pid(7), status: SubjectStatus::Killed(model::Signal(9)) };
        outbox.report(report.clone());
        assert_eq!(outbox.take_reports(), [report]);
        assert_eq!(outbox.take_messages(), []);
        outbox.push(restored[0].clone());
        outbox.hold(false);
        assert_eq!(outbox.take_messages(), [died, restored].concat());
        assert!(outbox.take_reports().is_empty() && outbox.take_messages().is_empty());
    }
}
