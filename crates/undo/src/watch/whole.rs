//! Recording of the whole content of a file.
//!
//! Owns: the methods of recording, and the choice between the methods by their measured cost.
//! Invariants: after recording, the undo log contains all content that the file had when the epoch began.
//! Does not: decide when a file is recorded whole; `content` does.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::Stat;

use super::descriptors::{data_behind, reopen};
use super::epoch::{Content, Id, Pages, Part};
use super::paths::is_shortage;
use super::state::State;
use super::watched::Mark;
use crate::error::Result;

const PAGE: u64 = 4096;

/// A method of recording all content of a file.
trait Keeping: fmt::Debug {
    /// Returns the expected cost, or `None` if the method is impossible.
    fn cost(&self, state: &State, bytes: u64, device: u64) -> Option<Duration>;
    /// Records the content. Returns `false` if the method turns out to be impossible.
    fn keep(&self, state: &mut State, file: BorrowedFd<'_>, found: &Stat) -> Result<bool>;
}

/// All methods.
const METHODS: [&dyn Keeping; 2] = [&Clone, &Copy];

/// A reflink (FICLONE), on xfs, btrfs and bcachefs. The kernel first writes dirty pages of the file back, so that the
/// cost hardly depends on the length.
#[derive(Debug)]
struct Clone;

/// A copy of the content into the log.
#[derive(Debug)]
struct Copy;

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
            let mut methods: Vec<_> = METHODS
                .iter()
                .filter_map(|method| Some((method.cost(self, size, found.st_dev)?, *method)))
                .collect();
            methods.sort_by_key(|(cost, _)| *cost);
            for (_, method) in methods {
                if method.keep(self, file, found)? {
                    break;
                }
            }
        }
        if let Some(old) = self.epoch.inodes.get_mut(&id)
            && old.content != Content::OfImage
        {
            old.content = Content::Whole;
        }
        self.watched.note_kept(file, found)
    }
}

impl Keeping for Clone {
    fn cost(&self, state: &State, bytes: u64, device: u64) -> Option<Duration> {
        (bytes > 0 && state.file_systems.may_clone(device)).then_some(state.costs.rates.clone)
    }

    fn keep(&self, state: &mut State, file: BorrowedFd<'_>, found: &Stat) -> Result<bool> {
        // Pages that are already in the log have changed. A clone would contain the new content of these pages.
        let id = (found.st_dev, found.st_ino);
        let Some(old) = state.epoch.inodes.get(&id) else { return Ok(true) };
        if !matches!(old.content, Content::Untouched | Content::Appends) {
            return Ok(false);
        }
        let number = old.id;
        let started = state.costs.clock().now();
        if state.watched.has_id(id) {
            // Cloning reads the file, which would cause an event. This thread may be the thread that answers events.
            state.watched.mark(file, found, Mark::Silent)?;
        }
        let source = reopen(file)?;
        let Some(mount) = state.file_systems.mount(found.st_dev) else { return Ok(false) };
        let (target, path) = state.keep.file_near(mount)?;
        if let Err(errno) = rustix::fs::ioctl_ficlone(&target, &source) {
            if !is_shortage(errno) {
                // No further clone is tried on this file system.
                state.file_systems.note_no_clone(found.st_dev);
            }
            state.log.drop_unnamed(&path)?;
            return Ok(false);
        }
        let took = state.costs.clock().now() - started;
        state.costs.rates.note_clone(took);
        state.log.whole_in(number, &path)?;
        Ok(true)
    }
}

impl Keeping for Copy {
    fn cost(&self, state: &State, bytes: u64, _device: u64) -> Option<Duration> {
        Some(state.costs.rates.copy_of(bytes))
    }

    fn keep(&self, state: &mut State, file: BorrowedFd<'_>, found: &Stat) -> Result<bool> {
        let id = (found.st_dev, found.st_ino);
        let Some(old) = state.epoch.inodes.get_mut(&id) else { return Ok(true) };
        let size = old.size;
        if matches!(old.content, Content::Untouched | Content::Appends) {
            old.content = Content::Pages(Pages::default());
        }
        let started = state.costs.clock().now();
        let source = reopen(file)?;
        let mut copied = 0;
        let mut at = 0;
        while at < size {
            let (data, end) = data_behind(source.as_fd(), at, size)?;
            if data > at {
                state.hole(id, at, data)?;
            }
            if end > data {
                state.save(file, found, data, end - data)?;
                copied += end - data;
            }
            at = end.max(data);
        }
        let took = state.costs.clock().now() - started;
        state.costs.rates.note_copy(copied, took);
        Ok(true)
    }
}

impl State {
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
