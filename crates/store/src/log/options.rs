//! Options for writing a log, and the retention policy. The retention policy decides which checkpoints of the log are
//! kept, so that they can be restored.
//!
//! Owns: `LogOptions` and the types of its fields, for example `RetentionPolicy`.
//! Invariants: the newest checkpoint is always kept. The retention policy uses only the number and the times of the
//! checkpoints, so the result is reproducible.
//! Does not: write or remove data. The writer removes a checkpoint by writing a root that no longer names the removed
//! checkpoint.

use std::num::NonZeroUsize;
use std::time::Duration;

use model::{ByteCount, PageCount};
use sys::clock::Clock;

use crate::codec::Codec;
use crate::service::StorageService;

/// The boundaries of the age intervals of `RetentionPolicy::thinned`. The policy keeps the newest checkpoints, and in
/// addition one checkpoint of each interval.
const AGES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(600)];

/// The number of age intervals. `RetentionPolicy::thinned` keeps at most this number of checkpoints for their age.
const AGED_MAX: usize = AGES.len() + 1;

/// The default number of kept checkpoints.
const KEEP_DEFAULT: usize = 8;

/// A retention policy: which checkpoints remain restorable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetentionPolicy {
    newest: usize,
    aged: usize,
}

impl RetentionPolicy {
    /// Keeps the newest `count` checkpoints, at least one.
    #[must_use]
    pub const fn newest(count: usize) -> Self {
        Self { newest: if count == 0 { 1 } else { count }, aged: 0 }
    }

    /// Keeps at most `count` checkpoints: the newest checkpoints, and one checkpoint of each age interval. The
    /// intervals are: under 1 s, 1 to 10 s, 10 s to 1 min, 1 to 10 min, and above 10 min. The oldest checkpoint of an
    /// interval is kept. Only in the interval above 10 min, the youngest checkpoint is kept. If `count` is below 8,
    /// only the youngest `count / 2` intervals are used.
    #[must_use]
    pub fn thinned(count: usize) -> Self {
        let aged = if count >= 2 * AGED_MAX - 2 { AGED_MAX } else { count / 2 };
        Self { newest: (count - aged).max(1), aged }
    }

    /// Returns the maximum number of kept checkpoints.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.newest + self.aged
    }

    /// Reports for each checkpoint whether the policy keeps the checkpoint. `taken` contains the times of the
    /// checkpoints, oldest first. The age of a checkpoint is the last time in `taken` minus the time of the
    /// checkpoint. If the clock was set back and the age would be negative, the age is 0.
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
            // In most intervals, the oldest checkpoint is kept: this checkpoint is the first to enter the next
            // interval. The last interval has no next interval, so the youngest checkpoint is kept.
            let found = if bucket < AGES.len() { (0..old).find(inside) } else { (0..old).rev().find(inside) };
            found.into_iter().for_each(|place| kept[place] = true);
        }
        kept
    }
}

impl Default for RetentionPolicy {
    /// Keeps at most eight checkpoints, as `thinned` does.
    fn default() -> Self {
        Self::thinned(KEEP_DEFAULT)
    }
}

/// The maximum size of a log. If the checkpoints of the retention policy need more, fewer old checkpoints are kept.
/// `KEPT_MIN` checkpoints are kept in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SizeLimit {
    /// `PAGES_FACTOR` times the pages of the newest checkpoint. For a small program, `SMALL_FACTOR` times the pages and a
    /// fixed part, if this is more.
    #[default]
    OfPages,
    /// A number of bytes.
    Bytes(ByteCount),
    /// No limit.
    None,
}

/// The number of checkpoints that are kept regardless of the size limit.
pub(super) const KEPT_MIN: usize = 2;
/// The default size limit, as a multiple of the stored pages of the newest checkpoint.
const PAGES_FACTOR: u64 = 4;
/// The smallest multiple for a program that rewrites all its pages: two checkpoints, and the one that is being written.
const SMALL_FACTOR: u64 = 3;
/// The fixed part of the default size limit, in segments: the segments that are being written, and partly filled ones.
const FIXED_SEGMENTS: u64 = 8;

impl SizeLimit {
    /// Returns the maximum size of the segments. In the default limit, one segment is for the files beside the log: the
    /// undo log and its reserve.
    pub(super) fn segments_bytes(self, stored: PageCount, segment: ByteCount) -> Option<ByteCount> {
        let stated = self.bytes(stored, segment)?;
        Some(if self == Self::OfPages { ByteCount(stated.get() - segment.get()) } else { stated })
    }

    /// Returns the limit for a newest checkpoint with this number of stored pages.
    pub(super) fn bytes(self, stored: PageCount, segment: ByteCount) -> Option<ByteCount> {
        match self {
            Self::OfPages => {
                let small = SMALL_FACTOR * stored.bytes().get() + FIXED_SEGMENTS * segment.get();
                Some(ByteCount(small.max(PAGES_FACTOR * stored.bytes().get())))
            }
            Self::Bytes(bytes) => Some(bytes),
            Self::None => None,
        }
    }
}

/// The threads that write the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogThreads {
    /// Threads of the service, while there is work: one thread writes, and one thread creates segments and reads pages
    /// for compaction.
    Own,
    /// No own thread: a thread that waits for the writer does the work. Tools and deterministic tests use this mode.
    Caller,
}

/// Options for writing a log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The maximum number of buffers that a checkpoint uses. This number does not include the buffers that an epoch
    /// reserves for a pause.
    pub buffers: NonZeroUsize,
    /// The page buffers, the threads and the order of the I/O. Logs of one process should share a service.
    pub service: StorageService,
    /// The size of the segments of a small log. If the newest segment of an existing log is smaller, its size is used. The
    /// segments of a larger log are larger, up to 64 MiB.
    pub segment: ByteCount,
    /// The retention policy.
    pub keep: RetentionPolicy,
    /// The maximum size.
    pub size: SizeLimit,
    /// The number of places that wasted copies of one checkpoint may occupy, besides one of 64 places in use. A
    /// wasted copy is a copy of a page that is copied again before the commit.
    pub wasted_max: PageCount,
    /// The compression of old segments; `None` disables compression.
    pub compression: Option<SegmentCompression>,
    /// The threads that do the work.
    pub threads: LogThreads,
}

/// Compression of old segments: segments that have been full for some time and have lost few live pages.
#[derive(Clone, Debug)]
pub struct SegmentCompression {
    /// The codec for compression.
    pub codec: &'static dyn Codec,
    /// The time for which a full segment is observed before the segment is compressed.
    pub after: Duration,
    /// The clock that measures `after`.
    pub clock: Clock,
}

impl SegmentCompression {
    /// Returns options that use the clock of the kernel.
    #[must_use]
    pub fn new(codec: &'static dyn Codec, after: Duration) -> Self {
        Self { codec, after, clock: Clock::default() }
    }
}

impl Default for LogOptions {
    /// Returns options with 8 buffers of 2 MiB and segments of 8 MiB. At the highest expected write rate, a segment
    /// is full after 20 ms. With larger segments, the default size limit of a small subject would not suffice for all
    /// checkpoints of the default retention policy: each old checkpoint can need a segment of its own.
    fn default() -> Self {
        const BUFFERS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");
        Self {
            buffers: BUFFERS,
            service: StorageService::default(),
            segment: ByteCount(8 << 20),
            keep: RetentionPolicy::default(),
            size: SizeLimit::default(),
            // Blocks that are written again go through the page cache, and are often single blocks. Appending is faster.
            wasted_max: PageCount(256),
            compression: None,
            threads: LogThreads::Own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a checkpoint at every interval `every` for the time `total`. Applies the policy, and passes the times
    /// of the kept checkpoints to `inspect`, oldest first.
    fn run(keep: RetentionPolicy, every: Duration, total: Duration, mut inspect: impl FnMut(&[Duration])) {
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
            inspect(&taken);
            now += every;
        }
    }

    #[test]
    fn the_newest_are_kept_and_never_more_than_asked_for() {
        for count in 0..12 {
            for keep in [RetentionPolicy::newest(count), RetentionPolicy::thinned(count)] {
                assert!(keep.count() == count.max(1), "{keep:?}");
                run(keep, Duration::from_millis(100), Duration::from_secs(90), |taken| {
                    assert!(taken.len() <= count.max(1), "{keep:?}: {}", taken.len());
                });
            }
        }
        let kept = RetentionPolicy::newest(3).choose(&[Duration::from_secs(1); 5]);
        assert_eq!(kept, [false, false, true, true, true]);
        assert!(RetentionPolicy::default().choose(&[]).is_empty());
    }

    #[test]
    fn no_age_is_without_a_checkpoint_for_long() {
        let started = Duration::from_secs(1_000);
        // For each age interval: start and end in seconds, and the maximum time in seconds without a checkpoint in the
        // interval. Before this time is over, a checkpoint of the next younger interval becomes old enough for the
        // interval.
        let places = [(0.03, 1.0, 0.1), (1.0, 10.0, 1.1), (10.0, 60.0, 11.1), (60.0, 600.0, 71.1)];
        let mut seen = [started; 4];
        run(RetentionPolicy::default(), Duration::from_millis(10), Duration::from_secs(1_300), |taken| {
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
        let kept = RetentionPolicy::thinned(4).choose(&times);
        assert_eq!(&kept[3..], [true, true]);
    }
}
