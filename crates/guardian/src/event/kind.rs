//! The kinds of events, by which `undying events --only` selects events.
//!
//! Owns: the kind of each event, and the name of each kind.
//! Invariants: each event has one kind. The names are a stable interface.
//! Does not: select events; `undying events` does.

use super::RunEvent;

/// A kind of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// The end of a program or of one of its processes, and the end of its restarts.
    Deaths,
    /// Starts and restores, also delayed, repeated and failed ones.
    Restores,
    /// Checkpoints, and how they are taken.
    Checkpoints,
    /// Checkpoints that were not taken or came late, and their return.
    Refusals,
    /// The files of a program: which files are rolled back, and rollbacks.
    Files,
    /// Connections and listeners of a program.
    Connections,
    /// Components of a system, and the system itself.
    Components,
}

impl EventKind {
    /// All kinds, each with a description for the help text.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Deaths, "ends of programs and of their processes, and the end of restarts"),
        (Self::Restores, "starts and restores, also delayed, repeated and failed ones"),
        (Self::Checkpoints, "checkpoints, and how they are taken"),
        (Self::Refusals, "checkpoints that were not taken or came late"),
        (Self::Files, "files that are rolled back, or cannot be rolled back"),
        (Self::Connections, "connections and listeners"),
        (Self::Components, "components of a system, and the system"),
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deaths => "deaths",
            Self::Restores => "restores",
            Self::Checkpoints => "checkpoints",
            Self::Refusals => "refusals",
            Self::Files => "files",
            Self::Connections => "connections",
            Self::Components => "components",
        }
    }
}

/// The events about files.
macro_rules! files {
    () => {
        Self::MovedAside { .. }
            | Self::FilesInPlace { .. }
            | Self::FilesCompared { .. }
            | Self::FilesNotRolledBack { .. }
            | Self::FilesWentBack { .. }
            | Self::FilesDeferred { .. }
            | Self::FilesBroken { .. }
            | Self::FilesExactAgain { .. }
            | Self::FilesTooOld { .. }
    };
}

impl RunEvent {
    /// Returns the kind of this event.
    #[must_use]
    pub const fn kind(&self) -> EventKind {
        match self {
            files!() => EventKind::Files,
            Self::Died { .. }
            | Self::ChildDied { .. }
            | Self::ChildrenUnseen
            | Self::Departed { .. }
            | Self::Faulted { .. }
            | Self::CodeChanged { .. }
            | Self::EndedAgain { .. }
            | Self::NotBegunAnew {}
            | Self::GaveUp { .. }
            | Self::MemberLeft { .. }
            | Self::Ended { .. } => EventKind::Deaths,
            Self::Started { .. }
            | Self::Protected { .. }
            | Self::Adopted { .. }
            | Self::NotStartedTwice { .. }
            | Self::BackOff { .. }
            | Self::RestartRepeated { .. }
            | Self::Poisoned { .. }
            | Self::RestoreFailed { .. }
            | Self::Restored { .. }
            | Self::OnRestoreFailed { .. }
            | Self::StoppedForRestart { .. }
            | Self::NotRestarted { .. }
            | Self::Held { .. }
            | Self::Released { .. }
            | Self::DamageStays { .. } => EventKind::Restores,
            Self::Checkpoint(_)
            | Self::Scan { .. }
            | Self::Verified { .. }
            | Self::Dropped { .. }
            | Self::PauseRaised { .. }
            | Self::IntervalRaised { .. }
            | Self::Tracker { .. } => EventKind::Checkpoints,
            Self::Refused { .. }
            | Self::Resumed { .. }
            | Self::HoldEnded { .. }
            | Self::StatusUnwritable { .. }
            | Self::EventsLost { .. }
            | Self::CheckpointsLate { .. }
            | Self::CheckpointsOnTime { .. } => EventKind::Refusals,
            Self::Connections { .. } | Self::OutputReleased { .. } | Self::ListenersNotKept { .. } => {
                EventKind::Connections
            }
            Self::LeftRunning { .. }
            | Self::RestEnded { .. }
            | Self::NotContinued { .. }
            | Self::Reloaded { .. }
            | Self::KeysChanged { .. }
            | Self::NotReloaded { .. }
            | Self::Ready { .. }
            | Self::NotReady { .. }
            | Self::Waits { .. }
            | Self::ComponentFailed { .. }
            | Self::Stopped {}
            | Self::NotStopped { .. }
            | Self::StaysEnded {}
            | Self::NotStarted {}
            | Self::GivenUp { .. }
            | Self::Executed { .. }
            | Self::GroupRestarts { .. }
            | Self::Complaint { .. }
            | Self::ComplaintCounted { .. }
            | Self::ComplaintRefused { .. }
            | Self::SystemRestarts {}
            | Self::SystemGoesDown { .. } => EventKind::Components,
        }
    }
}
