//! The reports of stops of children (SIGCHLD) while subjects (protected process trees) are traced.
//!
//! Each stop of a traced thread would wake the event loop by SIGCHLD, inside the pause. So the kernel reports no stops while
//! any subject of this process is traced. A stop by the terminal during this time is detected after the checkpoint.
//!
//! Owns: the action of SIGCHLD, for all subjects of this process.
//! Invariants: stops are reported exactly if no [`Silence`] exists.
//! Does not: receive signals.

use std::sync::{Arc, Mutex, PoisonError};

/// The owner of the reports.
#[derive(Debug)]
pub(crate) struct ChildStops {
    traced: Mutex<usize>,
    report: fn(bool),
}

impl Default for ChildStops {
    fn default() -> Self {
        // The call fails only for signals that a process cannot handle. SIGCHLD can be handled.
        Self::with(|is_reported| drop(sys::signal::report_child_stops(is_reported)))
    }
}

impl ChildStops {
    fn with(report: fn(bool)) -> Self {
        Self { traced: Mutex::new(0), report }
    }

    /// Ends the reports until the value is dropped.
    pub(super) fn silence(self: &Arc<Self>) -> Silence {
        let mut traced = self.traced.lock().unwrap_or_else(PoisonError::into_inner);
        *traced += 1;
        if *traced == 1 {
            (self.report)(false);
        }
        Silence(Arc::clone(self))
    }
}

/// While a value exists, the kernel reports no stops of children.
#[derive(Debug)]
pub(super) struct Silence(Arc<ChildStops>);

impl Drop for Silence {
    fn drop(&mut self) {
        let mut traced = self.0.traced.lock().unwrap_or_else(PoisonError::into_inner);
        *traced -= 1;
        if *traced == 0 {
            (self.0.report)(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_checkpoint_reports_no_stops_to_the_pause_of_another() {
        static CALLS: Mutex<Vec<bool>> = Mutex::new(Vec::new());
        let calls = || CALLS.lock().unwrap().clone();
        let stops = Arc::new(ChildStops::with(|is_reported| CALLS.lock().unwrap().push(is_reported)));
        let (one, other) = (stops.silence(), stops.silence());
        drop(one);
        assert_eq!(calls(), [false]);
        drop(other);
        assert_eq!(calls(), [false, true]);
        drop(stops.silence());
        assert_eq!(calls(), [false, true, false, true]);
    }
}
