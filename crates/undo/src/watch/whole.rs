//! Recording of the whole content of a file.
//!
//! Owns: the methods of recording, and the choice between the methods by their measured cost.
//! Invariants: after recording, the undo log contains all content that the file had when the epoch began.
//! Does not: decide when a file is recorded whole; `content` does.

use std::os::fd::BorrowedFd;

use rustix::fs::Stat;

use super::descriptors::reopen;
use super::epoch::{Content, Id, Pages, Part};
use super::paths::is_shortage;
use super::state::State;
use super::watched::Mark;
use crate::descriptor::data_behind;
use crate::error::Result;

const PAGE: u64 = 4096;

impl State {
    /// Records all content of a file with the cheapest method, unless the content is already recorded.
    pub(super) fn whole(&mut self, file: BorrowedFd<'_>, found: &Stat) -> Result<()> {
        let id = (found.st_dev, found.st_ino);
        let Some(old) = self.epoch.inodes.get(&id) else { return Ok(()) };
        let size = old.size;
        if matches!(old.content, Content::Shadow(_)) {
            self.save(file, found, 0, size)?;
            // The caller silences the events of the file.
            self.watched.mapped.note_call(id, Part::All);
        } else if !matches!(old.content, Content::Whole | Content::OfImage) {
            let rates = &self.costs.rates;
            let may_clone = size > 0 && self.file_systems.may_clone(found.st_dev);
            let is_cloned =
                may_clone && rates.clone <= rates.copy_of(size) && self.clone_whole(file, found)?;
            if !is_cloned {
                self.copy_whole(file, found)?;
            }
        }
        if let Some(old) = self.epoch.inodes.get_mut(&id)
            && old.content != Content::OfImage
        {
            old.content = Content::Whole;
        }
        self.watched.note_kept(file, found)
    }

    /// Records the content by a reflink (FICLONE), on xfs, btrfs and bcachefs. The kernel first writes dirty pages of the
    /// file back, so that the cost hardly depends on the length. Returns `false` if a reflink turns out to be impossible.
    fn clone_whole(&mut self, file: BorrowedFd<'_>, found: &Stat) -> Result<bool> {
        // Pages that are already in the log have changed. A clone would contain the new content of these pages.
        let id = (found.st_dev, found.st_ino);
        let Some(old) = self.epoch.inodes.get(&id) else { return Ok(true) };
        if !matches!(old.content, Content::Untouched | Content::Appends) {
            return Ok(false);
        }
        let number = old.id;
        let started = self.costs.clock().now();
        if self.watched.has_id(id) {
            // Cloning reads the file, which would cause an event. This thread may be the thread that answers events.
            self.watched.mark(file, found, Mark::Silent)?;
        }
        let source = reopen(file)?;
        let Some(mount) = self.file_systems.mount(found.st_dev) else { return Ok(false) };
        let (target, path) = self.keep.file_near(mount)?;
        if let Err(errno) = rustix::fs::ioctl_ficlone(&target, &source) {
            if !is_shortage(errno) {
                // No further clone is tried on this file system.
                self.file_systems.note_no_clone(found.st_dev);
            }
            self.log.drop_unnamed(&path)?;
            return Ok(false);
        }
        let took = self.costs.clock().now() - started;
        self.costs.rates.note_clone(took);
        self.log.whole_in(number, &path)?;
        Ok(true)
    }

    /// Records the content by a copy into the log.
    fn copy_whole(&mut self, file: BorrowedFd<'_>, found: &Stat) -> Result<()> {
        let id = (found.st_dev, found.st_ino);
        let Some(old) = self.epoch.inodes.get_mut(&id) else { return Ok(()) };
        let size = old.size;
        if matches!(old.content, Content::Untouched | Content::Appends) {
            old.content = Content::Pages(Pages::default());
        }
        let started = self.costs.clock().now();
        let source = reopen(file)?;
        let mut copied = 0;
        let mut at = 0;
        while at < size {
            let (data, end) = data_behind(&source, at, size)?;
            if data > at {
                self.hole(id, at, data)?;
            }
            if end > data {
                self.save(file, found, data, end - data)?;
                copied += end - data;
            }
            at = end.max(data);
        }
        let took = self.costs.clock().now() - started;
        self.costs.rates.note_copy(copied, took);
        Ok(())
    }

    /// Records a hole, except for pages of the hole that are already in the log.
    fn hole(&mut self, id: Id, start: u64, end: u64) -> Result<()> {
        let Some(old) = self.epoch.inodes.get(&id) else { return Ok(()) };
        let Content::Pages(pages) = &old.content else { return Ok(()) };
        for (first, last) in pages.gaps(start / PAGE, end.div_ceil(PAGE)) {
            let (from, to) = ((first * PAGE).max(start), (last * PAGE).min(end));
            self.log.hole(old.id, from, model::ByteCount(to - from))?;
        }
        Ok(())
    }
}
