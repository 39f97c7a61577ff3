//! Reliability of file times.
//!
//! Owns: the resolution of file times by kernel release.
//! Invariants: file times count as fine only if each later change of the file changes the times.
//! Does not: compare file times.

use rustix::fs::Stat;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Two ticks of the slowest clock (100 Hz) that a kernel before 6.13 uses for file times.
const COARSE_NS: i64 = 20_000_000;
/// The first release with multigrain timestamps: the times differ after every change that follows a stat(2).
const FINE_TIMES: (u32, u32) = (6, 13);

/// A moment, to be compared with the times of files that are inspected later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    now: Timespec,
    has_fine_times: bool,
}

impl Clock {
    /// Returns the present time on this kernel.
    pub(super) fn now() -> Self {
        Self { now: clock_gettime(ClockId::RealtimeCoarse), has_fine_times: release() >= FINE_TIMES }
    }

    /// Returns the present time, as on a kernel before 6.13.
    #[cfg(test)]
    pub(super) fn coarse() -> Self {
        Self { has_fine_times: false, ..Self::now() }
    }

    /// Reports whether a change right after this moment could leave the times of a file unchanged.
    pub(super) fn is_coarse_for(self, stat: &Stat) -> bool {
        let changed = stat.st_ctime * 1_000_000_000 + stat.st_ctime_nsec as i64;
        let now = self.now.tv_sec * 1_000_000_000 + self.now.tv_nsec;
        !self.has_fine_times && now - changed < COARSE_NS
    }
}

/// Returns the major and the minor number of the running kernel.
fn release() -> (u32, u32) {
    let name = rustix::system::uname();
    let text = name.release().to_string_lossy();
    let mut numbers =
        text.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_has_two_numbers() {
        assert!(release() > (3, 0));
    }

    #[test]
    fn a_change_within_the_last_ticks_is_too_recent_for_coarse_times() {
        let clock = Clock::coarse();
        let mut stat = rustix::fs::stat("/").unwrap();
        stat.st_ctime = clock.now.tv_sec;
        stat.st_ctime_nsec = clock.now.tv_nsec as u64;
        assert!(clock.is_coarse_for(&stat));
        assert!(!Clock { has_fine_times: true, ..clock }.is_coarse_for(&stat));
        stat.st_ctime -= 1;
        assert!(!clock.is_coarse_for(&stat));
    }
}
