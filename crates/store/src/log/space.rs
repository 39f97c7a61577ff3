//! Which segments of a log are live.
//!
//! Owns: what is kept, the segments that it needs, and the choice of what can go. Opening, committing, pruning and
//! collecting garbage ask here.
//! Invariants: a segment is live as long as a kept checkpoint names it, or the slot by which the newest is found lies
//! in it.
//! Does not: remove anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use image::{Blob, Commit, LogKept, LogSegment};

use super::layout::{self, SegmentFiles};
use super::load::{LogFiles, Newest};
use crate::error::Result;
use crate::medium::Medium;

/// A checkpoint that can be restored, and what stays for it.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) entry: LogKept,
    /// With those of its root.
    pub(super) segments: Vec<LogSegment>,
}

impl Kept {
    /// A checkpoint whose root names these segments.
    pub(super) fn new(entry: LogKept, named: impl IntoIterator<Item = LogSegment>) -> Self {
        let segments = named.into_iter().chain(segments_of(&entry.root)).collect::<BTreeSet<_>>();
        Self { segments: segments.into_iter().collect(), entry }
    }
}

/// The segments that a blob lies in.
pub(super) fn segments_of(blob: &Blob) -> impl Iterator<Item = LogSegment> + '_ {
    blob.pieces.iter().map(|piece| piece.segment)
}

/// The segments that are live: those of what is kept, and the one that the newest slot is in.
pub(super) fn live(kept: &[Kept], slot: Option<LogSegment>) -> BTreeSet<LogSegment> {
    kept.iter().flat_map(|kept| kept.segments.iter().copied()).chain(slot).collect()
}

/// What a log without a writer holds.
pub(super) struct Inventory {
    /// Oldest first.
    pub(super) kept: Vec<Kept>,
    pub(super) live: BTreeSet<LogSegment>,
    /// Files that nothing refers to.
    pub(super) garbage: Vec<PathBuf>,
}

impl Inventory {
    /// Takes it, of the files that are there. Only while the log has no writer, which the caller's lock says.
    pub(super) fn take(
        files: &mut LogFiles<'_>,
        directory: &Path,
        newest: Option<&Newest>,
        there: &BTreeMap<LogSegment, SegmentFiles>,
    ) -> Result<Self> {
        let kept = newest.map_or_else(|| Ok(Vec::new()), |newest| kept_of(files, newest))?;
        let live = live(&kept, newest.map(|newest| newest.slot.segment));
        let garbage = there.iter().flat_map(|(number, files)| match live.contains(number) {
            true => files.leftovers(directory, *number),
            false => files.paths(directory, *number),
        });
        Ok(Self { garbage: garbage.collect(), kept, live })
    }
}

/// Files of the log in this directory that nothing refers to.
pub(crate) fn garbage(medium: &dyn Medium, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = LogFiles::new(medium, directory);
    let newest = files.newest()?;
    let there = layout::files(medium, directory)?;
    Ok(Inventory::take(&mut files, directory, newest.as_ref(), &there)?.garbage)
}

fn kept_of(files: &mut LogFiles<'_>, newest: &Newest) -> Result<Vec<Kept>> {
    let mut entries = newest.root.kept.clone();
    let time_unix_ns = unix_ns(&newest.root.commit);
    let (sequence, root) = (newest.slot.sequence, newest.slot.root.clone());
    entries.push(LogKept { sequence, time_unix_ns, root });
    let mut kept = Vec::with_capacity(entries.len());
    for entry in entries {
        let root = files.root(newest, entry.sequence)?;
        kept.push(Kept::new(entry, root.map(|root| root.segments).unwrap_or_default()));
    }
    Ok(kept)
}

/// When a checkpoint was taken, in nanoseconds since 1970.
pub(super) fn unix_ns(commit: &Commit) -> u64 {
    let since = commit.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
