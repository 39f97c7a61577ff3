//! One component of a running system, as the supervisor sees it.
//!
//! Owns: the state and the wanted state of one component.
//! Invariants: only a component with a run is ending or faulty.
//! Does not: know other components.

use std::time::{Duration, Instant};

use super::event::ComponentState;
use super::tally::Tally;
use crate::fault::Fault;

/// The length of a good run, in windows of the restart limit. After a good run, a give-up counts as a first give-up.
///
/// The deaths that cause a give-up lie within one window. A longer run therefore had a whole window without these
/// deaths.
const WINDOWS_GOOD: u32 = 2;

/// The state of one component.
#[derive(Debug)]
pub(super) struct Supervised {
    pub(super) state: ComponentState,
    /// Whether the component should run.
    pub(super) is_wanted: bool,
    /// Whether the current run is being ended. If the component is wanted, another run follows.
    pub(super) is_ending: bool,
    /// The fault for which the current incarnation is being killed.
    pub(super) fault: Option<Fault>,
    /// Whether the current run began after a give-up.
    pub(super) is_last_try: bool,
    /// The time at which the last run began.
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

    pub(super) fn begin_run(&mut self, now: Instant) {
        self.state = ComponentState::Starting { since: now, ready_by: None };
        self.began = Some(now);
    }

    /// Marks the current run, if there is one, to be ended.
    pub(super) fn end_run(&mut self) {
        self.is_ending = self.state.has_run();
    }

    /// Ends an incarnation: clears its complaints and its fault. Returns the fault for which the incarnation was
    /// killed.
    pub(super) fn end_incarnation(&mut self) -> Option<Fault> {
        self.complaints.clear();
        self.fault.take()
    }

    /// Reports whether a fault has an effect: the component is alive, and is neither being killed nor being ended.
    pub(super) fn can_fail(&self) -> bool {
        self.state.is_alive() && self.fault.is_none() && !self.is_ending
    }

    /// Returns the next deadline of the component: the timeout for readiness, or the timeout of a stop.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            ComponentState::Starting { ready_by, .. } if self.can_fail() => ready_by,
            ComponentState::Stopping { until } => Some(until),
            _ => None,
        }
    }

    /// Reports whether a give-up now is the second give-up, without a good run since the first give-up.
    pub(super) fn gives_up_again(&self, now: Instant, window: Duration) -> bool {
        let good = window.saturating_mul(WINDOWS_GOOD);
        let is_good = |began| now.saturating_duration_since(began) > good;
        self.is_last_try && !self.began.is_some_and(is_good)
    }
}
