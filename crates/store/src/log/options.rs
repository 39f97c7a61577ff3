//! Options of writing a log, and which of its checkpoints stay restorable.
//!
//! Owns: the options of opening a log; `Keep`, the retention by age.
//! Invariants: the newest checkpoint is always kept. Retention depends only on numbers and times, so that the same
//! checkpoints give the same result.
//! Does not: write or remove anything; a checkpoint is removed when the next root does not name it.

use std::num::NonZeroUsize;
use std::time::Duration;

use model::{ByteCount, PageCount};
use sys::clock::Clock;

use crate::codec::Codec;

/// Ages at which one older checkpoint each is kept, beside those that are younger than the first.
const AGES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];

/// The thinned policy gives at most this many of its places to age; the rest goes to the newest.
const AGED_MAX: usize = AGES.len() + 1;

/// Checkpoints kept where nothing else is asked for.
const KEEP_DEFAULT: usize = 8;

/// Which checkpoints stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    newest: usize,
    aged: usize,
}

impl Keep {
    /// The newest so many, at least one.
    #[must_use]
    pub const fn newest(count: usize) -> Self {
        Self { newest: if count == 0 { 1 } else { count }, aged: 0 }
    }

    /// So many in all: the newest, and beside them the oldest that is younger than 1 s, the oldest of 1 to
    /// 10 s, 10 s to 1 min, 1 to 10 min, and the youngest above. Up to half of them, at most five, are such
    /// older ones; the young come first.
    #[must_use]
    pub fn thinned(count: usize) -> Self {
        let aged = if count >= 2 * AGED_MAX - 2 { AGED_MAX } else { count / 2 };
        Self { newest: (count - aged).max(1), aged }
    }

    /// How many are kept at most.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.newest + self.aged
    }

    /// Which of these stay, given when each was taken, oldest first. Ages count from the last one; a clock
    /// that went back makes a checkpoint young, not old.
    #[must_use]
    pub fn choose(&self, taken: &[Duration]) -> Vec<bool> {
        let mut kept = vec![false; taken.len()];
        let Some(&now) = taken.last() else { return kept };
        let old = taken.len().saturating_sub(self.newest);
        kept[old..].fill(true);
        for bucket in 0..self.aged {
            let from = bucket.checked_sub(1).map_or(Duration::ZERO, |below| AGES[below]);
            let below = AGES.get(bucket).copied().unwrap_or(Duration::MAX);
            let inside = |place: &usize| {
                let age = now.saturating_sub(taken[*place]);
                from <= age && age < below
            };
            // The oldest, so that it grows into the next bucket; in the last, which nothing leaves, the
            // youngest.
            let found = if bucket < AGES.len() { (0..old).find(inside) } else { (0..old).rev().find(inside) };
            found.into_iter().for_each(|place| kept[place] = true);
        }
        kept
    }
}

impl Default for Keep {
    /// Eight, thinned with age.
    fn default() -> Self {
        Self::thinned(KEEP_DEFAULT)
    }
}

/// Who does the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogThreads {
    /// Two threads of the writer's own: one writes, one makes segments and reads what is moved.
    Own,
    /// The caller, whenever it waits: for tools, and for tests that must go the same way twice.
    Caller,
}

/// How a log is written.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Buffers in circulation; all are made when the log is opened. Those that an epoch reserves for what it copies
    /// while its subject is stopped come on top.
    pub buffers: NonZeroUsize,
    /// Pages that a buffer holds.
    pub buffer_pages: PageCount,
    /// Size of a segment of a new log.
    pub segment: ByteCount,
    /// Which checkpoints stay restorable.
    pub keep: Keep,
    /// Whether segments are compressed, and which.
    pub compression: Option<SegmentCompression>,
    /// Who does the work.
    pub threads: LogThreads,
}

/// Segments that are compressed: those that have been full for a while, and have lost little of what lived in them.
#[derive(Clone, Debug)]
pub struct SegmentCompression {
    /// How.
    pub codec: &'static dyn Codec,
    /// How long a segment is watched, from when it is full.
    pub after: Duration,
    /// Tells how long that is.
    pub clock: Clock,
}

impl SegmentCompression {
    /// By the clock of the kernel.
    #[must_use]
    pub fn new(codec: &'static dyn Codec, after: Duration) -> Self {
        Self { codec, after, clock: Clock::default() }
    }
}

impl Default for LogOptions {
    /// 8 buffers of 2 MiB and segments of 16 MiB: a segment lasts 40 ms at the highest rate asked for, and
    /// cleaning by segments of that size keeps a subject of 64 MiB on twice its size.
    fn default() -> Self {
        const BUFFERS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");
        Self {
            buffers: BUFFERS,
            buffer_pages: PageCount(512),
            segment: ByteCount(16 << 20),
            keep: Keep::default(),
            compression: None,
            threads: LogThreads::Own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a checkpoint every so often for so long, keeping as the policy says; their ages then, rising.
    fn run(keep: Keep, every: Duration, total: Duration, mut look: impl FnMut(&[Duration])) {
        let mut taken: Vec<Duration> = Vec::new();
        let mut now = Duration::from_secs(1_000);
        let end = now + total;
        while now < end {
            taken.push(now);
            let kept = keep.choose(&taken);
            let mut place = 0;
            taken.retain(|_| {
                place += 1;
                kept[place - 1]
            });
            look(&taken);
            now += every;
        }
    }

    #[test]
    fn the_newest_are_kept_and_never_more_than_asked_for() {
        for count in 0..12 {
            for keep in [Keep::newest(count), Keep::thinned(count)] {
                assert!(keep.count() == count.max(1), "{keep:?}");
                run(keep, Duration::from_millis(100), Duration::from_secs(90), |taken| {
                    assert!(taken.len() <= count.max(1), "{keep:?}: {}", taken.len());
                });
            }
        }
        let kept = Keep::newest(3).choose(&[Duration::from_secs(1); 5]);
        assert_eq!(kept, [false, false, true, true, true]);
        assert!(Keep::default().choose(&[]).is_empty());
    }

    #[test]
    fn no_age_is_without_a_checkpoint_for_long() {
        let started = Duration::from_secs(1_000);
        // From, to, and for how long the place may be empty: until the one below fills it again.
        let places = [(0.03, 1.0, 0.1), (1.0, 10.0, 1.1), (10.0, 60.0, 11.1), (60.0, 600.0, 71.1)];
        let mut seen = [started; 4];
        run(Keep::default(), Duration::from_millis(10), Duration::from_secs(1_300), |taken| {
            let now = taken[taken.len() - 1];
            for ((from, to, empty_max), seen) in places.into_iter().zip(&mut seen) {
                if taken.iter().any(|at| (from..to).contains(&(now - *at).as_secs_f64())) {
                    *seen = now;
                }
                let since = (*seen).max(started + Duration::from_secs_f64(from));
                let empty = now.saturating_sub(since).as_secs_f64();
                assert!(empty <= empty_max, "{from} to {to} s: empty for {empty} s at {now:?}");
            }
        });
    }

    #[test]
    fn a_clock_that_goes_back_loses_nothing_new() {
        let times = [50, 60, 70, 10, 20].map(Duration::from_secs);
        let kept = Keep::thinned(4).choose(&times);
        assert_eq!(&kept[3..], [true, true]);
    }
}
