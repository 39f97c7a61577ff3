//! The heartbeat of an incarnation that is ready.
//!
//! Owns: the number of successive missed beats, and the difference between a hang and a failed probe.
//! Invariants: a fault is found only after as many successive misses as the system file allows, or when the program
//! reports a fault.
//! Does not: act on a fault.

use std::time::{Duration, Instant};

use health::Handle;
use health::notify::Sign;
use health::usage::{Hang, Inspection};
use model::Pid;
use supervise::{Fault, Heartbeat};

use super::repeated::{Repeated, parsed};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Heart {
    misses: u32,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The program sends messages.
    Messages { last: Instant, every: Duration, is_triggered: bool },
    /// Probes are made, and the process tree is inspected while probes fail.
    Probes { probe: Repeated, missed: u32, hang: Hang, inspection: Option<Inspection> },
}

pub(super) fn check(heartbeat: Option<&Heartbeat>) -> Result<()> {
    let probe = heartbeat.and_then(|heartbeat| heartbeat.probe.as_ref());
    probe.map_or(Ok(()), |probe| parsed(probe).map(drop))
}

impl Heart {
    pub(super) fn begin(heartbeat: &Heartbeat, now: Instant) -> Self {
        let every = heartbeat.every.0;
        let source = match heartbeat.probe.as_ref().and_then(|probe| parsed(probe).ok()) {
            None => Source::Messages { last: now, every, is_triggered: false },
            Some(probe) => {
                let probe = Repeated::new(probe, (every, every), now + every);
                Source::Probes { probe, missed: 0, hang: Hang::default(), inspection: None }
            }
        };
        Self { misses: heartbeat.misses.max(1), source }
    }

    /// Handles a report of the program.
    pub(super) fn receive(&mut self, sign: &Sign, now: Instant) {
        if let Source::Messages { last, every, is_triggered } = &mut self.source {
            match sign {
                Sign::Watchdog => *last = now,
                Sign::WatchdogTrigger => *is_triggered = true,
                Sign::WatchdogInterval(interval) if !interval.is_zero() => {
                    (*last, *every) = (now, *interval);
                }
                _ => {}
            }
        }
    }

    pub(super) fn handle(&self) -> Option<Handle<'_>> {
        if let Source::Probes { probe, .. } = &self.source { probe.handle() } else { None }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match &self.source {
            Source::Messages { last, every, .. } => Some(*last + *every * self.misses),
            Source::Probes { probe, inspection, .. } => {
                inspection.as_ref().and_then(Inspection::due).into_iter().chain(probe.due()).min()
            }
        }
    }

    pub(super) fn child(&self) -> Option<Pid> {
        if let Source::Probes { probe, .. } = &self.source { probe.child() } else { None }
    }

    pub(super) fn advance(&mut self, root: Pid, now: Instant) -> Option<Fault> {
        let misses = self.misses;
        match &mut self.source {
            Source::Messages { last, every, is_triggered } => {
                let is_late = now.saturating_duration_since(*last) >= *every * misses;
                (is_late || *is_triggered).then_some(Fault::MissedHeartbeat)
            }
            Source::Probes { probe, missed, hang, inspection } => {
                match probe.advance(now) {
                    Some(Ok(())) => (*missed, *hang, *inspection) = (0, Hang::default(), None),
                    // An attempt that could not be made proves nothing about the program.
                    Some(Err(why)) if !why.is_of_the_program() => {}
                    Some(Err(_)) => {
                        *missed += 1;
                        *inspection = Inspection::begin(root, now).ok();
                    }
                    None => {}
                }
                let usage = inspection.as_mut().and_then(|inspection| inspection.advance(now));
                let hangs = usage.is_some_and(|usage| hang.note(now, *missed > 0, usage.progress));
                if *missed >= misses {
                    // The inspection after the last miss decides between a hang and a failed probe.
                    let is_known = inspection.as_ref().is_none_or(|inspection| inspection.due().is_none());
                    return is_known.then_some(if hangs { Fault::Hang } else { Fault::FailedProbe });
                }
                None
            }
        }
    }
}
