//! What a subject is doing.
//!
//! Owns: the states, the ways in which a run ends.
//! Does not: change a state; `Subject` does.

use std::time::Instant;

use model::Sequence;

use crate::status::SubjectStatus;

/// What a subject is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The program is being started from its beginning, or adopted.
    Starting {
        /// Its files go back to the beginning first.
        is_with_files: bool,
    },
    /// It runs.
    Running,
    /// It runs, and a checkpoint of it is being taken.
    Checkpointing {
        /// Its number.
        sequence: Sequence,
        /// A process has asked for it.
        is_wanted: bool,
    },
    /// It runs, and has asked for no checkpoints.
    Held,
    /// It has died, and what it has left is being ended.
    Dying(Death),
    /// Its restart waits until a time.
    BackingOff(Death, Instant),
    /// It is being restored.
    Restoring {
        /// The death that it is restored from.
        death: Death,
        /// What is being waited for.
        step: Step,
        /// A checkpoint could not be restored.
        has_failed: bool,
    },
    /// The run is over. This is final.
    Ended(End),
}

/// A death that is followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// What the subject has died of: of this itself, or of the failure of one of its other processes.
    pub status: SubjectStatus,
    /// When the death was noticed.
    pub noticed: Instant,
}

/// The part of a restore that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Checkpoints are being listed, to decide how long those in flight are waited for.
    Weighing,
    /// Checkpoints in flight are waited for until a time.
    Settling(Instant),
    /// Checkpoints are being listed, to decide which of them the death speaks against.
    Judging,
    /// Checkpoints are being listed once more, after a restore that failed.
    Choosing,
    /// The processes of a checkpoint are being built.
    Building(Sequence),
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The subject ended, and is not restarted.
    Over(SubjectStatus),
    /// The limit on restarts does not allow another one.
    GaveUp(SubjectStatus),
    /// The subject could not be brought back.
    Failed(Failure),
    /// The subject runs on, or what it has left does, and the guardian can do no more for it.
    Left,
}

/// Why a subject could not be brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The error of the action that failed last.
    LastError,
    /// None of its checkpoints could be restored, the oldest one for the last error, and undying has not started the
    /// program.
    NotRestorable {
        /// How many there are.
        tried: usize,
    },
    /// There is no checkpoint, and undying has not started the program.
    NoWayBack,
}

impl State {
    /// Whether the program runs.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Running | Self::Checkpointing { .. } | Self::Held)
    }
}
