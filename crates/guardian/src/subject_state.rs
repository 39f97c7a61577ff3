//! The state of a subject in `status`.
//!
//! Owns: the states, and their names.
//! Does not: decide a state; `supervise` does.

use serde::{Deserialize, Serialize};
use supervise::{End, State, StopStep};

/// The state of a subject, and whether a guardian protects the subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectState {
    /// The subject runs and has a guardian.
    #[default]
    Running,
    /// The subject is stopped, because an operator holds it.
    Held,
    /// The subject has died, and its restart is delayed.
    BackingOff,
    /// The subject has died, and is being restored or started again.
    Restoring,
    /// The subject has ended, and is not restarted.
    Ended,
    /// The subject has died more often than the restart limit permits.
    GaveUp,
    /// The subject has died, and could not be restored.
    Failed,
    /// The guardian has ended, but the subject still runs.
    Unprotected,
    /// The guardian and the subject have ended.
    Dead,
}

impl SubjectState {
    /// Reports whether a guardian protects the subject: the subject runs, or its restart is in progress.
    #[must_use]
    pub const fn is_watched(self) -> bool {
        matches!(self, Self::Running | Self::Held | Self::Restoring | Self::BackingOff)
    }

    /// Reports whether the subject has ended and will not be restored.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::GaveUp | Self::Failed | Self::Dead)
    }
}

impl From<State> for SubjectState {
    fn from(state: State) -> Self {
        match state {
            State::Stopped { step: StopStep::Holding(_), .. } => Self::Held,
            State::Running
            | State::Checkpointing { .. }
            | State::Held
            | State::Stopped { .. }
            | State::Dying(_) => Self::Running,
            State::BackingOff(..) => Self::BackingOff,
            State::Starting { .. } | State::Restoring { .. } => Self::Restoring,
            State::Ended(End::Over(_)) => Self::Ended,
            State::Ended(End::GaveUp(_)) => Self::GaveUp,
            State::Ended(End::Failed(_)) => Self::Failed,
            State::Ended(End::Left) => Self::Unprotected,
        }
    }
}

impl std::fmt::Display for SubjectState {
    /// Writes the serialised name of the state.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}
