//! How serious an event is for an operator.
//!
//! Owns: the severity of each event.
//! Does not: make the text of events; `wording` does.

use super::RunEvent;

/// The severity of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The event is part of ordinary operation.
    Information,
    /// A program died, or `undying` works with a restriction.
    Warning,
    /// A program is not running any more, or a protection is lost.
    Error,
}

impl RunEvent {
    /// Returns the severity of this event.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Self::Started { why: None, .. }
            | Self::FilesInPlace { .. }
            | Self::FilesCompared { .. }
            | Self::FilesWentBack { .. }
            | Self::FilesExactAgain { .. }
            | Self::CheckpointsOnTime { .. }
            | Self::EndedAgain { .. }
            | Self::Connections { .. }
            | Self::Protected { .. }
            | Self::Adopted { .. }
            | Self::NotStartedTwice { .. }
            | Self::Checkpoint(_)
            | Self::Scan { .. }
            | Self::Verified { differences: 0, .. }
            | Self::Resumed { .. }
            | Self::Restored { .. }
            | Self::RestEnded { .. }
            | Self::Reloaded { .. }
            | Self::KeysChanged { .. }
            | Self::Ready { .. }
            | Self::Waits { .. }
            | Self::Stopped {}
            | Self::StaysEnded {}
            | Self::NotStarted {}
            | Self::Executed { .. }
            | Self::SystemRestarts {}
            | Self::SystemGoesDown { has_failed: false }
            | Self::MemberLeft { .. }
            | Self::Held { .. }
            | Self::Released { is_late: false, .. }
            | Self::Ended { signal: None, exit: Some(0), .. } => Severity::Information,
            _ if self.is_warning() => Severity::Warning,
            _ => Severity::Error,
        }
    }

    /// Reports whether an event that is not ordinary is only a warning.
    fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Started { .. }
                | Self::FilesNotRolledBack { .. }
                | Self::PauseRaised { .. }
                | Self::IntervalRaised { .. }
                | Self::BackOff { .. }
                | Self::RestartRepeated { .. }
                | Self::MovedAside { .. }
                | Self::OutputReleased { .. }
                | Self::FilesDeferred { .. }
                | Self::CheckpointsLate { .. }
                | Self::Refused { .. }
                | Self::StatusUnwritable { .. }
                | Self::EventsLost { .. }
                | Self::Dropped { .. }
                | Self::HoldEnded { .. }
                | Self::Released { .. }
                | Self::Tracker { .. }
                | Self::Died { .. }
                | Self::ChildDied { .. }
                | Self::Faulted { .. }
                | Self::ChildrenUnseen
                | Self::Departed { .. }
                | Self::Poisoned { .. }
                | Self::RestoreFailed { .. }
                | Self::OnRestoreFailed { .. }
                | Self::NotRestarted { .. }
                | Self::CodeChanged { .. }
                | Self::LeftRunning { .. }
                | Self::NotContinued { .. }
                | Self::ListenersNotKept { .. }
                | Self::NotReady { .. }
                | Self::NotStopped { .. }
                | Self::GroupRestarts { .. }
                | Self::Complaint { .. }
                | Self::ComplaintCounted { .. }
                | Self::ComplaintRefused { .. }
                | Self::Ended { .. }
        )
    }
}
