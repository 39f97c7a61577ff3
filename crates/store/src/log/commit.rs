//! Making a checkpoint of an epoch: the new state, its part, its root, its slot.
//!
//! Owns: what a commit writes, in order: moved pages, part, root, slot.
//! Invariants: the state changes only here; a root names every segment that its checkpoint needs.
//! Does not: sync; the scribe does, once for all that are waiting.

use std::collections::BTreeSet;
use std::time::Duration;

use image::{Blob, Commit, ImageKind, LogKept, LogPartRef, LogRoot, LogSegment, SealedFile};
use model::{ByteCount, PageCount};
use sys::Errno;

use super::clean::Fill;
use super::index::State;
use super::pending::Pending;
use super::queue::Finish;
use super::records::RecordMap;
use super::scribe::{OpenEpoch, Scribe};
use super::space::{self, Kept, unix_ns};
use super::table::{Cell, PageTable};
use super::tail::Owner;
use crate::error::{Error, Result};
use crate::writer::CommitMeta;

/// What a checkpoint's own bytes are called where a file of an image would be.
const LOG_FILE: &str = "log";

impl Scribe {
    /// Writes everything that makes a checkpoint of the open epoch.
    pub(super) fn commit(&mut self, finish: Finish) -> Result<()> {
        let Finish { records, meta, promise, begun } = finish;
        let Some(mut epoch) = self.epoch.take() else {
            let error = sys::Error::new("finish an epoch that was not begun", Errno::EINVAL).into();
            promise.answer(Err(error));
            return Ok(());
        };
        let (commit, moved) = match self.write_commit(&mut epoch, &records, meta) {
            Ok(done) => done,
            Err(error) => {
                promise.answer(Err(error.clone()));
                return Err(error);
            }
        };
        self.pending.push(Pending {
            promise,
            commit,
            written: self.tail.written() - epoch.begun_at,
            moved,
            hash: epoch.hash,
            write: epoch.write,
            begun,
        });
        Ok(())
    }

    pub(super) fn write_commit(
        &mut self,
        epoch: &mut OpenEpoch,
        records: &image::RecordSet,
        meta: CommitMeta,
    ) -> Result<(Commit, u64)> {
        let records = RecordMap::of(records);
        let changed = records.changes(&self.records);
        self.records = records;
        self.apply(epoch);
        let moved = self.move_pages(epoch)?;
        let state = State { pages: &self.pages, segments: &self.segments, records: &self.records };
        let appended = ByteCount(self.tail.written());
        let encoding = |error| Error::encoding(self.tail.directory(), error);
        let part = self.parts.next(state, &mut epoch.delta, &changed, appended).map_err(encoding)?;
        let blob = self.tail.blob(&part.bytes)?;
        self.status.full_indexes += u64::from(part.is_full());
        self.parts.enter(blob.clone(), &part);
        let written = self.tail.written() - epoch.begun_at + part.bytes.len() as u64;
        let commit = self.commit_record(epoch, meta, &blob, written);
        let root = self.root(&commit)?;
        let named = self.segments_of(&root.parts);
        let bytes = self.encode_root(root, named.clone())?;
        let place = self.tail.blob(&bytes)?;
        self.tail.flush()?;
        self.enter_kept(Kept::new(entry_of(&commit, place.clone()), named))?;
        self.slot(epoch.sequence, place)?;
        Ok((commit, moved))
    }

    /// Makes the epoch's changes part of the newest state.
    fn apply(&mut self, epoch: &OpenEpoch) {
        let segments = &mut self.segments;
        if epoch.delta.full {
            self.pages.clear();
            segments.leave_all();
        }
        for (space, range) in epoch.delta.drops() {
            self.pages.remove(*space, range.clone(), |cell| segments.leave(cell));
        }
        for (space, page, cell) in epoch.delta.pages().iter() {
            enter(&mut self.pages, segments, space, page, cell);
        }
    }

    /// Writes pages that the cleaner has read, as many as this epoch may, and enters their new places.
    fn move_pages(&mut self, epoch: &mut OpenEpoch) -> Result<u64> {
        let quota = Fill::of(&self.segments, self.blocks).quota(epoch.pages_written);
        let mut moved = 0;
        while moved < quota
            && let Some((mut job, read)) = self.tail.helper().take_read()
        {
            match read {
                Ok(()) => {}
                // All its pages were written anew meanwhile, and it was removed.
                Err(Error::Io(error)) if error.errno == Errno::ENOENT => job.moves.clear(),
                Err(error) => return Err(error),
            }
            let mut live = 0;
            for number in 0..job.moves.len() {
                let entry = job.moves[number];
                if self.pages.get(entry.space, entry.page) == Some(Cell::At(entry.spot, entry.checksum)) {
                    job.moves[live] = entry;
                    let block = |number: usize| number * image::LOG_BLOCK_BYTES as usize;
                    job.buffer.copy_within(block(number)..block(number + 1), block(live));
                    live += 1;
                }
            }
            let places = self.append_packed(job.buffer, Owner::Cleaner, live as u32)?;
            for (number, entry) in job.moves[..live].iter().enumerate() {
                let cell = Cell::At(places.spot(number as u32), entry.checksum);
                enter(&mut self.pages, &mut self.segments, entry.space, entry.page, cell);
                epoch.delta.set(entry.space, entry.page, cell);
            }
            moved += live as u64;
            self.cleaner.feed(self.tail.helper())?;
        }
        self.status.moved.0 += moved;
        Ok(moved)
    }

    fn commit_record(&self, epoch: &OpenEpoch, meta: CommitMeta, part: &Blob, written: u64) -> Commit {
        let file = SealedFile { name: LOG_FILE.to_owned(), length: part.length(), checksum: part.checksum };
        let kind = if epoch.delta.full { ImageKind::Full } else { ImageKind::Delta };
        let (pages, bytes) = (PageCount(self.pages.pages()), ByteCount(written));
        let meta = CommitMeta { sequence: epoch.sequence, ..meta };
        meta.record(kind, pages, bytes, file.clone(), file, Vec::new())
    }

    /// A root that names the parts, and of the older checkpoints those that stay.
    fn root(&mut self, commit: &Commit) -> Result<LogRoot> {
        let mut times: Vec<Duration> =
            self.kept.iter().map(|kept| Duration::from_nanos(kept.entry.time_unix_ns)).collect();
        times.push(Duration::from_nanos(unix_ns(commit)));
        let stays = self.keep.choose(&times);
        let held = self.shared.held();
        let mut place = 0;
        self.kept.retain(|kept| {
            place += 1;
            stays[place - 1] || held.contains(&kept.entry.sequence)
        });
        Ok(LogRoot {
            commit: commit.clone(),
            parts: self.parts.all().to_vec(),
            kept: self.kept.iter().map(|kept| kept.entry.clone()).collect(),
            segments: Vec::new(),
        })
    }

    /// The segments that hold pages of the newest state or these parts.
    fn segments_of(&self, parts: &[LogPartRef]) -> Vec<LogSegment> {
        let live = self.segments.iter().filter(|state| state.live > 0).map(|state| state.number);
        let pieces = parts.iter().flat_map(|part| space::segments_of(&part.blob));
        live.chain(pieces).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn encode_root(&self, mut root: LogRoot, segments: Vec<LogSegment>) -> Result<Vec<u8>> {
        root.segments = segments;
        root.encode(self.may_be_compressed()).map_err(|error| Error::encoding(self.tail.directory(), error))
    }

    /// Notes the new checkpoint as one that is kept.
    fn enter_kept(&mut self, kept: Kept) -> Result<()> {
        // Segments that hold blobs alone are known too, so that they are removed when nothing needs them.
        for number in &kept.segments {
            if self.segments.add(*number).is_none() {
                return Err(sys::Error::new("count a log of more than 16 TiB", Errno::ENOSPC).into());
            }
        }
        self.kept.push(kept);
        Ok(())
    }
}

fn entry_of(commit: &Commit, root: Blob) -> LogKept {
    LogKept { sequence: commit.sequence, time_unix_ns: unix_ns(commit), root }
}

fn enter(
    pages: &mut PageTable,
    segments: &mut super::segments::Segments,
    space: image::SpaceId,
    page: u64,
    cell: Cell,
) {
    if let Some(before) = pages.set(space, page, cell) {
        segments.leave(before);
    }
    segments.enter(cell);
}
