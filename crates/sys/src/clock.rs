//! The clock that timestamps of the kernel are compared with.
//!
//! Owns: reading CLOCK_MONOTONIC.
//! Invariants: none beyond the kernel's.
//! Does not: measure durations; `Instant` does.
//!
//! Man page: clock_gettime(2)
//! Since: Linux 2.6
//! Probe: none; every kernel has it
//! Fallback: none

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time on CLOCK_MONOTONIC, which stands still while the machine is suspended.
#[must_use]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
