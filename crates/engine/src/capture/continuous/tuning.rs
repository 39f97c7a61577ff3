//! Options of continuous checkpoints.
//!
//! Owns: the options and their defaults.
//! Invariants: every combination gives correct checkpoints.
//! Does not: act on them.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use model::PageCount;

/// How checkpoints of one subject are taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Threads that look for dirty pages inside the pause, the tracer among them.
    pub copiers: NonZeroUsize,
    /// Where those beside the tracer run, one bit a processor; with none, on the tracer's and the subject's, which
    /// are idle while that stands.
    pub processors: Vec<u64>,
    /// Dirty pages are copied in aligned groups of so many, as far as they are of one area.
    pub granularity: NonZeroU64,
    /// The longest that one stop of the subject may last. `None` for as long as it takes.
    pub max_pause: Option<Duration>,
    /// What pre-copy is for.
    pub prefer: Preference,
}

/// The pause budget without a choice: below what people and most timeouts notice.
pub const MAX_PAUSE_DEFAULT: Duration = Duration::from_millis(5);
/// The smallest budget: what the stop of a few threads takes without any page.
pub const MAX_PAUSE_MIN: Duration = Duration::from_millis(1);

/// What the time of undying's own processor is spent on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// Short pauses: what is written during pre-copy is copied again before the pause.
    #[default]
    Pause,
    /// Little work: the subject is not looked at while it runs, as long as the pause can copy all that it dirties in
    /// half a millisecond.
    Throughput,
}

/// So many pages, scattered, take half a millisecond to copy (docs/design/0011).
const DIRECT_MAX: PageCount = PageCount(512);

impl Preference {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Pause, Self::Throughput];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Throughput => "throughput",
        }
    }

    /// Rounds of pre-copy at most, when so many pages are dirty. Each takes about as long as the copies of the round
    /// before, in which the subject dirties pages again.
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
            // Memory is what bounds a scan, and two processors are what most have free.
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
