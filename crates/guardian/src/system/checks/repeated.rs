//! A probe that is repeated.
//!
//! Owns: the time of the next attempt.
//! Invariants: one attempt at a time; it has ended before the next begins.
//! Does not: judge a result.

use std::time::{Duration, Instant};

use health::Handle;
use health::probe::{Attempt, Outcome, Probe};
use model::Pid;

use crate::error::{GuardianError, Result};

/// A probe with its times.
#[derive(Debug)]
pub(super) struct Repeated {
    probe: Probe,
    every: Duration,
    timeout: Duration,
    attempt: Option<Attempt>,
    next: Instant,
}

/// What a probe of a system file means.
///
/// # Errors
///
/// `BadProbe`, with what to write instead.
pub(super) fn parsed(probe: &supervise::Probe) -> Result<Probe> {
    let parsed = match probe {
        supervise::Probe::Tcp(text) => Probe::tcp(text),
        supervise::Probe::Http(text) => Probe::http(text),
        supervise::Probe::Exec(words) => Probe::exec(words),
    };
    parsed.map_err(|error| GuardianError::BadProbe { why: error.to_string() })
}

impl Repeated {
    /// The first attempt begins at `first`.
    pub(super) fn new(probe: Probe, (every, timeout): (Duration, Duration), first: Instant) -> Self {
        Self { probe, every, timeout, attempt: None, next: first }
    }

    pub(super) fn handle(&self) -> Option<Handle<'_>> {
        self.attempt.as_ref().and_then(Attempt::handle)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.attempt.as_ref().and_then(Attempt::due).unwrap_or(self.next))
    }

    /// The program of an attempt that runs now.
    pub(super) fn child(&self) -> Option<Pid> {
        self.attempt.as_ref().and_then(Attempt::child)
    }

    /// The address that it connects to.
    pub(super) fn address(&self) -> Option<String> {
        self.probe.address()
    }

    /// No attempt is made before the next one is due.
    pub(super) fn put_off(&mut self, now: Instant) {
        if self.attempt.is_none() && now >= self.next {
            self.next = now + self.every;
        }
    }

    /// Goes on; the outcome of an attempt that has ended.
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
