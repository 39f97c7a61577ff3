//! The live segments of a log: segments that a kept checkpoint needs.
//!
//! Owns: the kept checkpoints; the segments that they need; the choice of removable segments. Opening, committing,
//! pruning and garbage collection use this module.
//! Invariants: a segment is live if a kept checkpoint names it or if it contains the slot of the newest checkpoint.
//! Does not: remove files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use image::{Blob, Commit, LogKept, LogSegment};
use model::{ByteCount, Sequence};

use super::layout::{self, SegmentFiles};
use super::load::{LogFiles, Newest};
use super::options::{KEPT_MIN, RetentionPolicy, SizeLimit};
use crate::error::Result;
use crate::medium::Medium;

/// A checkpoint that can be restored, and the segments that it needs.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    entry: LogKept,
    /// The needed segments, including the segments of the root. Sorted.
    pub(super) segments: Vec<LogSegment>,
}

impl Kept {
    /// Returns a checkpoint whose root is at `root` and names these segments.
    pub(super) fn new(commit: &Commit, root: Blob, named: impl IntoIterator<Item = LogSegment>) -> Self {
        Self::of(LogKept { sequence: commit.sequence, time_unix_ns: unix_ns(commit), root }, named)
    }

    pub(super) const fn sequence(&self) -> Sequence {
        self.entry.sequence
    }

    fn of(entry: LogKept, named: impl IntoIterator<Item = LogSegment>) -> Self {
        let segments = named.into_iter().chain(segments_of(&entry.root)).collect::<BTreeSet<_>>();
        Self { segments: segments.into_iter().collect(), entry }
    }
}

/// Returns the segments that contain a blob (a checksummed byte sequence).
pub(super) fn segments_of(blob: &Blob) -> impl Iterator<Item = LogSegment> + '_ {
    blob.pieces.iter().map(|piece| piece.segment)
}

/// The checkpoints that can be restored, oldest first, and the retention policy for older checkpoints.
#[derive(Debug)]
pub(super) struct Retention {
    pub(super) policy: RetentionPolicy,
    pub(super) size: SizeLimit,
    /// The size of the first segments, and of all segments of a small log. The size limit counts in this unit.
    pub(super) segment: ByteCount,
    pub(super) kept: Vec<Kept>,
    /// The newest checkpoint that this writer has written, and its size.
    pub(super) newest: Option<(Commit, ByteCount)>,
}

impl Retention {
    /// Removes the checkpoints that the policy does not keep after the new checkpoint `new`, except the checkpoints in
    /// `held`. If `newest` is given, the policy keeps at most this number of the newest checkpoints, including `new`.
    pub(super) fn thin(&mut self, new: &Commit, held: &[Sequence], newest: Option<usize>) {
        let times = self.entries().map(|entry| entry.time_unix_ns).chain([unix_ns(new)]);
        let stays = self.policy.choose(&times.map(Duration::from_nanos).collect::<Vec<_>>());
        let surplus = newest.map_or(0, |newest| stays.len().saturating_sub(newest));
        let mut stays = stays.into_iter().enumerate().map(|(place, stays)| stays && place >= surplus);
        self.kept.retain(|kept| stays.next() == Some(true) || held.contains(&kept.entry.sequence));
    }

    /// Removes the oldest checkpoints, except the checkpoints in `held`, until the needed segments fit into `max` bytes, or
    /// `KEPT_MIN` checkpoints remain. `own` are the segments of the checkpoint that follows. Returns whether a checkpoint
    /// was removed.
    pub(super) fn fit(
        &mut self,
        max: ByteCount,
        own: &BTreeSet<LogSegment>,
        held: &[Sequence],
        length: impl Fn(LogSegment) -> ByteCount,
    ) -> bool {
        let before = self.kept.len();
        loop {
            let kept = self.kept.iter().flat_map(|kept| kept.segments.iter().copied());
            let needed: BTreeSet<LogSegment> = kept.chain(own.iter().copied()).collect();
            let bytes: u64 = needed.into_iter().map(|segment| length(segment).get()).sum();
            let oldest = self.kept.iter().position(|kept| !held.contains(&kept.entry.sequence));
            match oldest.filter(|_| bytes > max.get() && self.kept.len() + 1 > KEPT_MIN) {
                Some(oldest) => drop(self.kept.remove(oldest)),
                None => return self.kept.len() < before,
            }
        }
    }

    /// Removes the oldest checkpoints until `count` checkpoints remain. Returns the sequence numbers of the removed
    /// checkpoints.
    pub(super) fn shorten(&mut self, count: usize) -> Vec<Sequence> {
        let surplus = self.kept.len().saturating_sub(count);
        self.kept.drain(..surplus).map(|kept| kept.entry.sequence).collect()
    }

    /// Removes the checkpoints above `newest`, because the subject continues from an older state.
    pub(super) fn void_above(&mut self, newest: Sequence) {
        self.newest = None;
        self.kept.retain(|kept| kept.entry.sequence <= newest);
    }

    /// Returns the entries of the kept checkpoints, as a root names them.
    pub(super) fn entries(&self) -> impl DoubleEndedIterator<Item = &LogKept> + ExactSizeIterator {
        self.kept.iter().map(|kept| &kept.entry)
    }
}

/// Returns the live segments: the segments of the kept checkpoints, and the segment of the newest slot.
pub(super) fn live(kept: &[Kept], slot: Option<LogSegment>) -> BTreeSet<LogSegment> {
    kept.iter().flat_map(|kept| kept.segments.iter().copied()).chain(slot).collect()
}

/// The content of a log without a writer.
pub(super) struct Inventory {
    pub(super) newest: Option<Newest>,
    pub(super) there: BTreeMap<LogSegment, SegmentFiles>,
    /// The kept checkpoints, oldest first.
    pub(super) kept: Vec<Kept>,
    pub(super) live: BTreeSet<LogSegment>,
    /// Files without references.
    pub(super) garbage: Vec<PathBuf>,
}

impl Inventory {
    /// Reads the content of a log. The caller must hold the lock of the log, so that the log has no writer.
    pub(super) fn take(files: &mut LogFiles<'_>) -> Result<Self> {
        let newest = files.newest()?;
        let directory = files.directory.clone();
        let there = layout::files(files.medium, &directory)?;
        let kept = newest.as_ref().map_or_else(|| Ok(Vec::new()), |newest| kept_of(files, newest))?;
        let live = live(&kept, newest.as_ref().map(|newest| newest.slot.segment));
        let garbage = there.iter().flat_map(|(number, files)| match live.contains(number) {
            true => files.leftovers(&directory, *number),
            false => files.paths(&directory, *number),
        });
        Ok(Self { garbage: garbage.collect(), newest, there, kept, live })
    }
}

/// Returns the files without references in the log in this directory.
pub(crate) fn garbage(medium: &dyn Medium, directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(Inventory::take(&mut LogFiles::new(medium, directory))?.garbage)
}

fn kept_of(files: &mut LogFiles<'_>, newest: &Newest) -> Result<Vec<Kept>> {
    let mut kept = Vec::with_capacity(newest.root.kept.len() + 1);
    for entry in &newest.root.kept {
        let root = files.root(newest, entry.sequence)?;
        kept.push(Kept::of(entry.clone(), root.map(|root| root.segments).unwrap_or_default()));
    }
    let named = newest.root.segments.iter().copied();
    kept.push(Kept::new(&newest.root.commit, newest.slot.root.clone(), named));
    Ok(kept)
}

/// Returns the time of a checkpoint in nanoseconds since 1970.
fn unix_ns(commit: &Commit) -> u64 {
    let since = commit.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
