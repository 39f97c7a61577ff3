//! A probe that is repeated.
//!
//! Owns: the time of the next attempt.
//! Invariants: only one attempt runs at a time. An attempt has ended before the next attempt begins.
//! Does not: decide what a result means.

use std::time::{Duration, Instant};

use health::Handle;
use health::probe::{Attempt, Outcome, Probe};
use model::Pid;

use crate::error::{GuardianError, Result};

/// A probe, with its interval and its time limit.
#[derive(Debug)]
pub(super) struct Repeated {
    probe: Probe,
    every: Duration,
    timeout: Duration,
    attempt: Option<Attempt>,
    next: Instant,
}

/// Parses a probe that is written in the system file.
///
/// # Errors
///
/// `BadProbe`, with the correct form of a probe.
pub(super) fn parsed(probe: &supervise::Probe) -> Result<Probe> {
    let parsed = match probe {
        supervise::Probe::Tcp(text) => Probe::tcp(text),
        supervise::Probe::Http(text) => Probe::http(text),
        supervise::Probe::Exec(words) => Probe::exec(words),
    };
    parsed.map_err(|error| GuardianError::BadProbe { why: error.to_string() })
}

impl Repeated {
    /// Creates a repeated probe. The first attempt begins at `first`.
    pub(super) fn new(probe: Probe, (every, timeout): (Duration, Duration), first: Instant) -> Self {
        Self { probe, every, timeout, attempt: None, next: first }
    }

    pub(super) fn handle(&self) -> Option<Handle<'_>> {
        self.attempt.as_ref().and_then(Attempt::handle)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.attempt.as_ref().and_then(Attempt::due).unwrap_or(self.next))
    }

    /// Returns the process that the running attempt of an `exec` probe has started.
    pub(super) fn child(&self) -> Option<Pid> {
        self.attempt.as_ref().and_then(Attempt::child)
    }

    pub(super) fn address(&self) -> Option<String> {
        self.probe.address()
    }

    /// Skips an attempt that is due.
    pub(super) fn postpone(&mut self, now: Instant) {
        if self.attempt.is_none() && now >= self.next {
            self.next = now + self.every;
        }
    }

    /// Begins a due attempt, or continues the present attempt. Returns the outcome of an attempt that has ended.
    pub(super) fn advance(&mut self, now: Instant) -> Option<Outcome> {
        if self.attempt.is_none() && now >= self.next {
            self.next = now + self.every;
            self.attempt = Some(Attempt::begin(&self.probe, now, self.timeout));
        }
        let outcome = self.attempt.as_mut()?.advance(now)?;
        self.attempt = None;
        Some(outcome)
    }
}
