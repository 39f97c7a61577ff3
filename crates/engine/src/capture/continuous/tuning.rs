//! The options of continuous checkpoints.
//!
//! Owns: the options and their defaults.
//! Invariants: every combination of options gives correct checkpoints.
//! Does not: apply the options.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use model::PageCount;

/// The options for the checkpoints of one subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Number of threads that work inside the pause, including the tracer. The other threads scan for dirty
    /// pages and read files of `/proc`.
    pub copiers: NonZeroUsize,
    /// Affinity mask of the threads other than the tracer, one bit for each processor. If the mask is empty,
    /// these threads use the processors of the tracer and of the subject. The processors of the subject are
    /// idle while the subject is stopped.
    pub processors: Vec<u64>,
    /// Dirty pages are copied in aligned groups of this many pages. A group does not extend beyond one
    /// anonymous mapping.
    pub granularity: NonZeroU64,
    /// The pause budget: the maximum duration of one stop of the subject. `None`: no limit.
    pub max_pause: Option<Duration>,
    /// The goal of pre-copy.
    pub prefer: Preference,
}

/// The default pause budget. People and most timeouts do not notice a stop of this length.
pub const MAX_PAUSE_DEFAULT: Duration = Duration::from_millis(5);
/// The smallest pause budget. A stop of a few threads takes about this long even if no page is copied.
pub const MAX_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The choice between short pauses and low processor use of `undying`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// Short pauses: pages that the subject writes during pre-copy are copied again before the pause.
    #[default]
    Pause,
    /// Low processor use: the running subject is not scanned, if the pause can copy all dirty pages in half a
    /// millisecond.
    Throughput,
}

/// Maximum number of dirty pages that the pause copies without pre-copy. Copying this many scattered pages
/// takes half a millisecond (docs/design/0011).
const DIRECT_MAX: PageCount = PageCount(512);

impl Preference {
    /// All preferences.
    pub const ALL: [Self; 2] = [Self::Pause, Self::Throughput];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Throughput => "throughput",
        }
    }

    /// Returns the maximum number of pre-copy rounds for this number of dirty pages. Each round copies the
    /// pages that the subject has dirtied during the round before.
    pub(super) fn rounds_max(self, dirty: PageCount) -> usize {
        match self {
            Self::Pause => 6,
            Self::Throughput => usize::from(dirty > DIRECT_MAX),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            // The memory limits the speed of a scan, and most machines have two free processors.
            copiers: const { NonZeroUsize::new(2).expect("2 is not zero") },
            processors: Vec::new(),
            granularity: NonZeroU64::MIN,
            max_pause: Some(MAX_PAUSE_DEFAULT),
            prefer: Preference::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_throughput_few_pages_are_left_to_the_pause() {
        assert_eq!(Preference::Throughput.rounds_max(DIRECT_MAX), 0);
        assert_eq!(Preference::Throughput.rounds_max(PageCount(DIRECT_MAX.get() + 1)), 1);
        assert!(Preference::Pause.rounds_max(PageCount(1)) > 1);
    }
}
