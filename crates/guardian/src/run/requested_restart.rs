//! The callers that wait until a subject was restarted from a checkpoint of this moment.
//!
//! Owns: these callers, and the answer as far as it is known.
//! Does not: send the answer; the guard does.

use model::Sequence;

use super::requests::Asker;
use crate::error::GuardianError;
use crate::event::reason::{headline, headline_of};

/// Callers that wait for a restart from a checkpoint of this moment.
#[derive(Default)]
pub(super) struct RequestedRestart {
    pub(super) askers: Vec<Asker>,
    /// The last checkpoint before the kill.
    pub(super) last: Option<Sequence>,
    /// Why the last checkpoint could not be taken, written or used.
    pub(super) failure: Option<String>,
    /// Whether the callers wait for a hold.
    pub(super) is_hold: bool,
    /// What has become of the subject since the kill.
    pub(super) outcome: Option<String>,
    /// Whether a check has found this incarnation of a component ready.
    pub(super) is_ready: bool,
}

impl RequestedRestart {
    /// Records why a checkpoint has failed, if a caller waits for it.
    pub(super) fn note_failure(&mut self, error: &GuardianError) {
        if !self.askers.is_empty() {
            self.failure = Some(headline_of(error));
        }
    }

    /// Records that the subject runs again from a checkpoint.
    pub(super) fn restored(&mut self, sequence: Sequence) {
        self.outcome = Some(if self.last == Some(sequence) {
            format!("ok {sequence}\n")
        } else {
            format!("error the program has died, and was restored from checkpoint {sequence}\n")
        });
    }

    /// Records that the program was started from its beginning.
    pub(super) fn started_anew(&mut self, why: Option<&str>) {
        let why = why.map(|why| format!(": {}", headline(why))).unwrap_or_default();
        self.outcome = Some(format!("error the program was started from its beginning{why}\n"));
    }
}
