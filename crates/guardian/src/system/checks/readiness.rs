//! The readiness of an incarnation of a component.
//!
//! Owns: the condition that is waited for.
//! Does not: limit the wait; `supervise::Supervisor` does.

use std::path::Path;
use std::time::{Duration, Instant};

use health::Handle;
use health::ready::{FdReady, ListenReady, LogReady};
use model::Pid;
use supervise::Condition;

use super::repeated::{Repeated, parsed};
use crate::error::{GuardianError, Result};

/// Interval between two probes, and the time limit of one probe.
const PROBE_EVERY: Duration = Duration::from_millis(20);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Readiness {
    /// A message to the socket of the component.
    Notify,
    Fd(FdReady),
    Log(LogReady),
    Listen(ListenReady),
    Probe(Repeated),
    /// The condition cannot be checked, so the wait ends with the timeout.
    Never,
}

/// Reports an error if a condition cannot be waited for.
pub(super) fn check(condition: Option<&Condition>) -> Result<()> {
    match condition {
        Some(Condition::Probe(probe)) => parsed(probe).map(drop),
        Some(Condition::Log(text)) => {
            let made = LogReady::new(Path::new("/"), 0, text, sys::clock::Clock::default().now());
            made.map(drop).map_err(|error| GuardianError::BadProbe { why: error.to_string() })
        }
        _ => Ok(()),
    }
}

impl Readiness {
    pub(super) fn begin(
        condition: &Condition,
        root: Pid,
        (log, pipe): (Option<(&Path, u64)>, Option<FdReady>),
        now: Instant,
    ) -> Self {
        let begun = match condition {
            Condition::Notify => Some(Self::Notify),
            Condition::Fd(_) => pipe.map(Self::Fd),
            Condition::Log(text) => {
                let made = log.and_then(|(log, offset)| LogReady::new(log, offset, text, now).ok());
                made.map(Self::Log)
            }
            Condition::Listen => ListenReady::new(root, now).ok().map(Self::Listen),
            Condition::Probe(probe) => {
                let times = (PROBE_EVERY, PROBE_TIMEOUT);
                parsed(probe).ok().map(|probe| Self::Probe(Repeated::new(probe, times, now)))
            }
        };
        begun.unwrap_or(Self::Never)
    }

    pub(super) fn is_notified(&self) -> bool {
        matches!(self, Self::Notify)
    }

    pub(super) fn handle(&self) -> Option<Handle<'_>> {
        match self {
            Self::Fd(pipe) => pipe.handle(),
            Self::Probe(probe) => probe.handle(),
            Self::Notify | Self::Log(_) | Self::Listen(_) | Self::Never => None,
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Log(log) => log.due(),
            Self::Listen(listen) => listen.due(),
            Self::Probe(probe) => probe.due(),
            Self::Notify | Self::Fd(_) | Self::Never => None,
        }
    }

    pub(super) fn child(&self) -> Option<Pid> {
        if let Self::Probe(probe) = self { probe.child() } else { None }
    }

    /// Reports whether the condition is a probe that connects. A connection succeeds as soon as a kept listener exists.
    /// The connection proves readiness only if the incarnation itself listens.
    pub(super) fn connects(&self) -> bool {
        matches!(self, Self::Probe(probe) if probe.address().is_some())
    }

    /// Skips a due probe, because the incarnation does not listen yet.
    pub(super) fn postpone(&mut self, now: Instant) {
        if let Self::Probe(probe) = self {
            probe.postpone(now);
        }
    }

    /// Reports whether the incarnation is ready now. A failed check is repeated.
    pub(super) fn advance(&mut self, now: Instant) -> bool {
        match self {
            Self::Notify | Self::Never => false,
            Self::Fd(pipe) => pipe.advance().is_some(),
            Self::Log(log) => log.advance(now).is_ok_and(|ready| ready.is_some()),
            Self::Listen(listen) => listen.advance(now).is_ok_and(|ready| ready.is_some()),
            Self::Probe(probe) => probe.advance(now).is_some_and(|outcome| outcome.is_ok()),
        }
    }
}
