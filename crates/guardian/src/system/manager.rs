//! The service manager that has started this process (systemd with `Type=notify`), if there is one.
//!
//! Owns: the times of the messages to the manager. The messages report that the system is up, the state of the system,
//! and that this process is alive.
//! Invariants: readiness is reported once, when every component that can be ready is ready. A message that does not fit
//! into the queue is sent again.
//! Does not: know components.

use std::time::{Duration, Instant};

use health::notify::ServiceManager;

/// The service manager, and the state that was reported to it.
#[derive(Debug)]
pub(super) struct Manager {
    service: ServiceManager,
    is_ready: bool,
    is_stopping: bool,
    status: String,
    ping: Option<(Duration, Instant)>,
}

/// A summary of the state of a system: numbers of components.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    pub(super) ready: usize,
    /// Components that are being started, restarted or waited for.
    pub(super) coming: usize,
    /// Components that were given up or failed.
    pub(super) failed: usize,
    pub(super) all: usize,
    /// Whether the system is being ended.
    pub(super) is_stopping: bool,
}

impl Manager {
    pub(super) fn new(service: ServiceManager, now: Instant) -> Self {
        // The interval is half of the required interval, because a busy machine may delay a message.
        let ping = service.watchdog_interval().map(|interval| (interval / 2, now));
        Self { service, is_ready: false, is_stopping: false, status: String::new(), ping }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.ping.map(|(_, next)| next)
    }

    /// Reports changes to the service manager. A message that is not delivered is sent again in the next turn.
    pub(super) fn report(&mut self, tally: Tally) {
        if !self.service.is_there() {
            return;
        }
        let is_up = tally.coming == 0 && !tally.is_stopping;
        if is_up && !self.is_ready {
            self.is_ready = self.service.ready().is_ok();
        }
        if tally.is_stopping && !self.is_stopping {
            self.is_stopping = self.service.stopping().is_ok();
        }
        let status = tally.to_string();
        if status != self.status && self.service.status(&status).is_ok() {
            self.status = status;
        }
    }

    /// Reports that this program is alive, if this report is due.
    pub(super) fn ping(&mut self, now: Instant) {
        if let Some((interval, next)) = &mut self.ping
            && now >= *next
        {
            *next = now + *interval;
            // A manager that does not read will detect the missing message.
            let _ = self.service.ping();
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} components are ready", self.ready, self.all)?;
        if self.failed > 0 {
            write!(f, ", {} failed", self.failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_system_fits_on_one_line() {
        let tally = Tally { ready: 3, coming: 1, failed: 0, all: 4, is_stopping: false };
        assert_eq!(tally.to_string(), "3 of 4 components are ready");
        assert_eq!(Tally { failed: 1, ..tally }.to_string(), "3 of 4 components are ready, 1 failed");
    }
}
