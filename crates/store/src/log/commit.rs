//! Commits an epoch as a checkpoint. A commit changes the state, and writes an index part, a root and a slot. The root
//! describes the checkpoint, and the slot is the block that publishes the root.
//!
//! Owns: the order of the writes of a commit: moved pages, part, root, slot.
//! Invariants: the state changes only here. A root names every segment that its checkpoint needs.
//! Does not: sync; `settle` syncs once for all waiting commits.

use image::{Blob, Commit, ImageKind, LogFeature, LogRoot, SealedFile};
use model::{ByteCount, PageCount};
use sys::Errno;

use super::active_segment::Owner;
use super::clean::Fill;
use super::queue::Finish;
use super::segments::too_long;
use super::space::Kept;
use super::table::PageContent;
use super::ticket::LogCommitted;
use super::writer_thread::{OpenEpoch, Pending, WriterThread};
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::meta::CommitMeta;

/// The file name in commit records of a log, because the format requires a name.
const LOG_FILE: &str = "log";

impl WriterThread {
    /// Writes a checkpoint of the open epoch. The caller must sync afterwards.
    pub(super) fn commit(&mut self, finish: Finish) -> Result<()> {
        let Finish { records, meta, promise, begun } = finish;
        let Some(mut epoch) = self.epoch.take() else {
            let error = sys::Error::new("finish an epoch that was not begun", Errno::EINVAL).into();
            promise.answer(Err(error));
            return Ok(());
        };
        match self.write_commit(&mut epoch, &records, meta) {
            Ok(written) => self.pending.push(Pending { promise, written, begun }),
            Err(error) => {
                promise.answer(Err(error.clone()));
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn write_commit(
        &mut self,
        epoch: &mut OpenEpoch,
        records: &image::RecordSet,
        meta: CommitMeta,
    ) -> Result<LogCommitted> {
        let changed = self.state.set_records(records);
        self.state.apply(&epoch.delta);
        let moved = self.move_pages(epoch)?;
        let appended = ByteCount(self.active_segment.written);
        let part = self.parts.next(&self.state, &mut epoch.delta, &changed, appended);
        let part = part.map_err(|error| Error::encoding(&self.active_segment.directory, error))?;
        let blob = self.active_segment.blob(&part.bytes)?;
        self.status.full_indexes += u64::from(part.is_full());
        self.parts.enter(blob.clone(), &part);
        let written = self.active_segment.written - epoch.begun_at + part.bytes.len() as u64;
        let commit = self.commit_record(epoch, meta, &blob, written);
        self.thin(&commit, ByteCount(written));
        self.retention.newest = Some((commit.clone(), ByteCount(written)));
        self.publish(&self.root(&commit))?;
        let written = ByteCount(self.active_segment.written - epoch.begun_at);
        let (sequence, timings) = (epoch.sequence, epoch.timings);
        Ok(LogCommitted { sequence, commit, written, moved, timings })
    }

    /// Removes the older checkpoints that are not kept beside the new checkpoint. `written` is the size of the new
    /// checkpoint.
    fn thin(&mut self, commit: &Commit, written: ByteCount) {
        let mut shared = locked(&self.shared.state);
        let (held, newest) = (shared.kept.held.clone(), shared.kept.newest_once.take());
        drop(shared);
        self.retention.thin(commit, &held, newest);
        self.fit_size(&held, self.expected(written));
    }

    /// Writes a root and the slot that publishes it. The checkpoint becomes the newest checkpoint.
    pub(super) fn publish(&mut self, root: &LogRoot) -> Result<()> {
        let segments = &self.state.segments;
        let is_compressed =
            self.compression.is_some() || segments.iter().any(|state| state.compressed.is_some());
        let feature = match (segments.lengths.are_equal(), is_compressed) {
            (false, _) => LogFeature::Lengths,
            (true, true) => LogFeature::Compressed,
            (true, false) => LogFeature::Plain,
        };
        let bytes =
            root.encode(feature).map_err(|error| Error::encoding(&self.active_segment.directory, error))?;
        let place = self.active_segment.blob(&bytes)?;
        self.active_segment.flush()?;
        let kept = Kept::new(&root.commit, place.clone(), root.segments.iter().copied());
        // Segments that contain only blobs are added too, so that they are removed when no checkpoint needs them.
        if !kept.segments.iter().all(|number| self.state.segments.add(*number).is_some()) {
            return Err(too_long());
        }
        self.retention.kept.push(kept);
        self.slot(root.commit.sequence, place)
    }

    /// Writes pages that the background writer has read for compaction, up to the quota of this epoch, and records
    /// their new places.
    fn move_pages(&mut self, epoch: &mut OpenEpoch) -> Result<PageCount> {
        let end = self.stamp.durable.segment;
        let quota = Fill::of(&self.state.segments, epoch.pages_written).quota(epoch.pages_written);
        let mut moved = 0;
        while moved < quota {
            let fill = Fill::of(&self.state.segments, epoch.pages_written);
            if self.active_segment.background_writer.reading == 0 {
                self.cleaner.plan(&mut self.state, fill, end);
                self.feed_cleaner(fill.is_pressing())?;
            }
            let read = self.active_segment.background_writer.take_read(fill.is_pressing());
            let Some((mut job, read)) = read else { break };
            match read {
                Ok(()) => {}
                // The segment was removed, because the program has changed all of these pages meanwhile.
                Err(Error::Io(error)) if error.errno == Errno::ENOENT => job.moves.clear(),
                Err(error) => return Err(error),
            }
            let mut live = 0;
            for number in 0..job.moves.len() {
                let entry = job.moves[number];
                if self.state.pages.get(entry.space, entry.page)
                    == Some(PageContent::At(entry.block_index, entry.checksum))
                {
                    job.moves[live] = entry;
                    if number != live {
                        let block = |number: usize| number * image::LOG_BLOCK_BYTES as usize;
                        job.buffer.copy_within(block(number)..block(number + 1), block(live));
                    }
                    live += 1;
                }
            }
            self.await_removals();
            let places = self.append_packed(job.buffer, Owner::Cleaner, live as u32)?;
            for (number, entry) in job.moves[..live].iter().enumerate() {
                let content = PageContent::At(places.block_index(number as u32), entry.checksum);
                self.state.enter(entry.space, entry.page, content);
                epoch.delta.set(entry.space, entry.page, content);
            }
            moved += live as u64;
            self.cleaner.feed(&mut self.active_segment.background_writer)?;
        }
        self.status.moved.0 += moved;
        Ok(PageCount(moved))
    }

    /// Passes queued jobs of compaction to the background writer. With `wait`, waits until a buffer of compaction is
    /// written, if all are in use.
    fn feed_cleaner(&mut self, wait: bool) -> Result<()> {
        loop {
            self.collect()?;
            self.cleaner.feed(&mut self.active_segment.background_writer)?;
            let is_stuck = self.cleaner.has_jobs() && self.active_segment.background_writer.reading == 0;
            if !wait || !is_stuck || !self.active_segment.wait()? {
                return Ok(());
            }
        }
    }

    fn commit_record(&self, epoch: &OpenEpoch, meta: CommitMeta, part: &Blob, written: u64) -> Commit {
        let file = SealedFile { name: LOG_FILE.to_owned(), length: part.length(), checksum: part.checksum };
        let kind = if epoch.delta.full { ImageKind::Full } else { ImageKind::Delta };
        let (pages, bytes) = (PageCount(self.state.pages.pages), ByteCount(written));
        let meta = CommitMeta { sequence: epoch.sequence, ..meta };
        meta.record(kind, pages, bytes, file.clone(), file, Vec::new())
    }

    /// Returns a root with the current parts, the older checkpoints that remain, and the needed segments.
    pub(super) fn root(&self, commit: &Commit) -> LogRoot {
        LogRoot {
            commit: commit.clone(),
            parts: self.parts.parts.clone(),
            kept: self.retention.entries().cloned().collect(),
            segments: self.needed().into_iter().collect(),
        }
    }
}
