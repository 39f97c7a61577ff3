//! The limits of a component on memory and descriptors.
//!
//! Owns: the times of the checks.
//! Does not: measure the use; `health::usage` does.

use std::time::{Duration, Instant};

use health::usage::{Inspection, Usage};
use model::Pid;
use supervise::{Fault, Limits};

/// Interval between two inspections. A leak takes longer, and an inspection costs some 20 µs per process.
const EVERY: Duration = Duration::from_secs(1);

/// The checks of the resource use of a component.
#[derive(Debug)]
pub(super) struct LimitCheck {
    limits: Limits,
    inspection: Option<Inspection>,
    next: Instant,
}

impl LimitCheck {
    pub(super) fn begin(limits: Limits, now: Instant) -> Self {
        Self { limits, inspection: None, next: now + EVERY }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.inspection.as_ref().and_then(Inspection::due).unwrap_or(self.next))
    }

    pub(super) fn advance(&mut self, root: Pid, now: Instant) -> Option<Fault> {
        if self.inspection.is_none() && now >= self.next {
            self.next = now + EVERY;
            self.inspection = Inspection::begin(root, now).ok();
        }
        let usage = self.inspection.as_mut()?.advance(now)?;
        self.inspection = None;
        self.exceeded(&usage)
    }

    fn exceeded(&self, usage: &Usage) -> Option<Fault> {
        let memory = self.limits.memory.is_some_and(|limit| usage.resident > limit.0);
        let descriptors = self.limits.descriptors.zip(usage.descriptors);
        let descriptors = descriptors.is_some_and(|(limit, (_, count))| count > limit);
        match (memory, descriptors) {
            (true, _) => Some(Fault::Memory),
            (_, true) => Some(Fault::Descriptors),
            _ => None,
        }
    }
}
