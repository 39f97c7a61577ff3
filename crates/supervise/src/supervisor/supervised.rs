//! One component while its system is up.
//!
//! Owns: what is wanted of a component, beside its state.
//! Invariants: only a component with a run is ending or faulty.
//! Does not: know other components.

use std::time::{Duration, Instant};

use super::event::ComponentState;
use super::tally::Tally;
use crate::fault::Fault;

/// How many windows of its limit on restarts a run lasts that has made good a give-up. A run that lasted longer was
/// free of deaths for a whole window: no more deaths fit into the other one.
const WINDOWS_GOOD: u32 = 2;

/// The state of one component.
#[derive(Debug)]
pub(super) struct Supervised {
    pub(super) state: ComponentState,
    /// It is to run.
    pub(super) is_wanted: bool,
    /// Its present run is being ended. If it is wanted, another run follows.
    pub(super) is_ending: bool,
    /// Its present incarnation is being killed for this fault.
    pub(super) fault: Option<Fault>,
    /// Its present run began after a give-up.
    pub(super) is_last_try: bool,
    /// When its last run began.
    pub(super) began: Option<Instant>,
    pub(super) complaints: Tally,
}

impl Supervised {
    pub(super) fn idle() -> Self {
        Self {
            state: ComponentState::Idle,
            is_wanted: false,
            is_ending: false,
            fault: None,
            is_last_try: false,
            began: None,
            complaints: Tally::default(),
        }
    }

    /// Begins a run.
    pub(super) fn begin_run(&mut self, now: Instant) {
        self.state = ComponentState::Starting { since: now, ready_by: None };
        self.began = Some(now);
    }

    /// Has the present run end, if there is one.
    pub(super) fn end_run(&mut self) {
        self.is_ending = self.state.has_run();
    }

    /// An incarnation is over. What was wrong with it concerns the next one no more. Gives the fault that it was killed
    /// for.
    pub(super) fn end_incarnation(&mut self) -> Option<Fault> {
        self.complaints.clear();
        self.fault.take()
    }

    /// Whether a fault of it has an effect: it lives, and is neither being killed nor ended.
    pub(super) fn can_fail(&self) -> bool {
        self.state.is_alive() && self.fault.is_none() && !self.is_ending
    }

    /// When something about it is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            ComponentState::Starting { ready_by, .. } if self.can_fail() => ready_by,
            ComponentState::Stopping { until } => Some(until),
            _ => None,
        }
    }

    /// Whether it gives up for the second time, without a good run since the first.
    pub(super) fn gives_up_again(&self, now: Instant, window: Duration) -> bool {
        let good = window.saturating_mul(WINDOWS_GOOD);
        let is_good = |began| now.saturating_duration_since(began) > good;
        self.is_last_try && !self.began.is_some_and(is_good)
    }
}
