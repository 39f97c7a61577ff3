//! Tracked files at a boundary, and copying of changed pages.
//!
//! Owns: the choice of the files that are tracked, and the records of their old content.
//! Invariants: the old content of a page is recorded before the copy of the page changes.
//! Does not: end an epoch; `watch::boundary` does.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use model::{ByteCount, PageCount};
use rustix::fs::OFlags;

use super::boundary::{is_device, is_on};
use super::descriptors::{duplicate, reopen, stat};
use super::epoch::{Armed, Content, How, Id, Pages, Part};
use super::mapped::{Device, Mapped, MappedFiles, PAGE, PageSet, Shadow, Wanted};
use super::state::{CHUNK, State};
use super::watched::Mark;
use super::{MappedFile, OpenFile};
use crate::error::{Result, UndoError};

/// Number of the file system in statfs(2).
const EXT4: u64 = 0xef53;
/// Minimum length in bytes of a file that is tracked. A shorter file is copied at each boundary.
const TRACKED_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of pages of tracked files that one boundary copies. The copy extends the pause by some milliseconds.
const RESIDUAL_PAGES_MAX: u64 = 2048;
/// Number of bytes of which the file and the copy are compared at a time.
const COMPARED: usize = CHUNK / 2;

impl State {
    /// Chooses the mapped files that are tracked at this boundary, and requests tracking of further files.
    pub(super) fn choose_tracked(
        &mut self,
        found: &mut HashMap<Id, (Armed, OwnedFd)>,
        open: &[OpenFile<'_>],
        mapped: &[MappedFile<'_>],
    ) {
        let direct = open.iter().filter(|file| OFlags::from_bits_retain(file.flags).contains(OFlags::DIRECT));
        let direct: Vec<Id> = direct
            .filter_map(|file| rustix::fs::fstat(file.file).ok())
            .map(|stat| (stat.st_dev, stat.st_ino))
            .collect();
        for (id, (armed, file)) in found.iter_mut() {
            if armed.how != How::Mapped || armed.attributes.size < TRACKED_BYTES_MIN {
                continue;
            }
            let files = &mut self.watched.mapped;
            if direct.contains(id) {
                files.note_call(*id, Part::Direct);
                let why = "the program has opened it with O_DIRECT".to_owned();
                files.refused.insert(*id, (armed.key.clone(), why));
                continue;
            }
            match files.files.get(id) {
                Some(mapped) if mapped.is_ready => armed.how = How::Tracked,
                Some(_) => {}
                None => {
                    let is_it = |one: &&MappedFile<'_>| one.inode == id.1 && is_device(id.0, one.device);
                    if let Some(one) = mapped.iter().find(is_it)
                        && let Err(error) = self.want(*id, one.device, armed, file)
                    {
                        let refusal = (armed.key.clone(), error.to_string());
                        self.watched.mapped.refused.insert(*id, refusal);
                    }
                }
            }
        }
    }

    /// Requests tracking of a file.
    fn want(&mut self, id: Id, device: Device, armed: &Armed, file: &OwnedFd) -> Result<()> {
        let files = &mut self.watched.mapped;
        let is_refused = files.refused.get(&id).is_some_and(|(key, _)| *key == armed.key);
        if is_refused || files.wanted.iter().any(|wanted| wanted.id == id) {
            return Ok(());
        }
        let wanted = Wanted::new(id, device, armed, duplicate(file.as_fd())?);
        let needs_events = wanted.needs_events;
        files.devices.insert(id, device);
        files.wanted.push(wanted);
        if needs_events {
            self.watched.mark(file.as_fd(), &stat(file.as_fd())?, Mark::Active)
        } else {
            Ok(())
        }
    }

    /// Takes the reports of all tracked files. Returns the reason if too many pages have changed for a copy inside the
    /// pause.
    pub(super) fn residual_too_large(&mut self) -> Result<Option<String>> {
        let mut left = RESIDUAL_PAGES_MAX;
        for mapped in self.watched.mapped.files.values_mut().filter(|mapped| mapped.is_ready) {
            mapped.take_reports()?;
            let size = mapped.shadow.file_length()?;
            let count = mapped.residual(size).count();
            let Some(rest) = left.checked_sub(count) else {
                // All threads of the subject are stopped, so that its calls are complete.
                mapped.calls_are_over(size);
                return Ok(Some(format!(
                    "{} is mapped by the program, and too many of its pages have changed to be copied inside the pause",
                    mapped.shadow.name.display()
                )));
            };
            left = rest;
        }
        Ok(None)
    }

    /// Makes the copies of all tracked files equal to the files, and completes the records of the present epoch.
    pub(super) fn copy_residual(&mut self) -> Result<()> {
        let ready = self.watched.mapped.files.iter().filter(|(_, mapped)| mapped.is_ready);
        let ids: Vec<Id> = ready.map(|(id, _)| *id).collect();
        for id in ids {
            let Some(mapped) = self.watched.mapped.files.get(&id) else { continue };
            let (shadow, length) = (mapped.shadow.clone(), mapped.length);
            let size = shadow.file_length()?;
            for run in mapped.residual(size).runs(0) {
                self.copy_pages(id, &shadow, run)?;
            }
            if size < length {
                self.record_pages(id, &shadow, size.div_ceil(PAGE), length.div_ceil(PAGE))?;
            }
            if size != length {
                shadow.resize(size)?;
                self.epoch.is_touched = true;
            }
            let Some(mapped) = self.watched.mapped.files.get_mut(&id) else { continue };
            mapped.length = size;
            mapped.calls_are_over(size);
            mapped.pending.clear();
            mapped.dirty.cut(size.div_ceil(PAGE));
        }
        Ok(())
    }

    /// Stops tracking of files that are not mapped any more. Called after an exact boundary, whose records do not need
    /// the copies of these files.
    pub(super) fn forget_unmapped(&mut self, list: &HashMap<Id, (Armed, OwnedFd)>) {
        let is_mapped =
            |id: &Id| list.get(id).is_some_and(|(armed, _)| matches!(armed.how, How::Mapped | How::Tracked));
        let files = &mut self.watched.mapped;
        for (_, mapped) in files.files.extract_if(|id, _| !is_mapped(id)) {
            if !mapped.is_named {
                // A copy that remains is removed together with the log.
                let _ = self.keep.remove(&mapped.shadow.path);
            }
        }
        files.refused.retain(|id, _| is_mapped(id));
        files.wanted.retain(|wanted| is_mapped(&wanted.id));
    }

    /// Records at the beginning of an epoch that the copy of a tracked file contains its content.
    pub(super) fn arm_tracked(&mut self, armed: &Armed, file: &impl AsFd) -> Result<()> {
        let id = (armed.key.device, armed.key.inode);
        let is_ready = |files: &MappedFiles| files.files.get(&id).is_some_and(|mapped| mapped.is_ready);
        if !is_ready(&self.watched.mapped) {
            self.track_now(armed, file)?;
        }
        let found = stat(file.as_fd())?;
        match self.watched.mapped.files.get_mut(&id) {
            Some(mapped) => {
                let number = self.epoch.inodes.get(&id).map(|old| old.id);
                if let Some(number) = number {
                    self.log.shadow(number, &mapped.shadow.path)?;
                    mapped.is_named = true;
                }
                if let Some(old) = self.epoch.inodes.get_mut(&id) {
                    old.content = Content::Shadow(Pages::default());
                }
                Ok(())
            }
            None => self.whole(file.as_fd(), &found),
        }
    }

    /// Tracks and copies a file at once. Used after a rollback, while no process of the subject exists.
    fn track_now(&mut self, armed: &Armed, file: &impl AsFd) -> Result<()> {
        let id = (armed.key.device, armed.key.inode);
        let Some(device) = self.watched.mapped.devices.get(&id).copied() else { return Ok(()) };
        let wanted = Wanted::new(id, device, armed, duplicate(file.as_fd())?);
        self.begin_tracking(wanted);
        let Some(mapped) = self.watched.mapped.files.get_mut(&id) else { return Ok(()) };
        mapped.tracked.tracker().settle()?;
        let clean = mapped.shadow.clean(mapped.dirty.runs(0))?;
        mapped.note_clean(&clean);
        (mapped.length, mapped.is_ready) = mapped.shadow.copy_from(0, u64::MAX)?;
        Ok(())
    }

    /// Begins to track a file. The caller then copies the file.
    pub(super) fn begin_tracking(&mut self, wanted: Wanted) {
        let (id, key) = (wanted.id, wanted.key.clone());
        if let Err(error) = self.try_tracking(wanted) {
            self.watched.mapped.refused.insert(id, (key, error.to_string()));
        }
    }

    fn try_tracking(&mut self, wanted: Wanted) -> Result<()> {
        let Some(tracker) = self.watched.mapped.tracker.clone() else { return Ok(()) };
        let (needed, max) = (ByteCount(self.log.bytes().get() + wanted.size), self.log.bytes_max());
        if needed > max {
            return Err(UndoError::Full { needed, max });
        }
        let file = reopen(wanted.file.as_fd())?;
        let pages = PageCount(wanted.size.div_ceil(PAGE));
        let tracked = tracker.track(wanted.device, wanted.id.1, pages)?;
        let shadow = Shadow::new(file, wanted.name.clone(), self.keep.file()?);
        self.watched.mapped.files.insert(wanted.id, Mapped::new(wanted, tracked, shadow));
        Ok(())
    }

    /// Makes pages of the copy equal to the file. Records the old content of pages that differ.
    pub(super) fn copy_pages(&mut self, id: Id, shadow: &Shadow, (first, end): (u64, u64)) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let (new, old) = buffer.split_at_mut(COMPARED);
        let mut outcome = Ok(());
        let mut at = first;
        while at < end && outcome.is_ok() {
            let room = ((end - at) as usize).min(COMPARED / PAGE as usize) * PAGE as usize;
            outcome = self.copy_piece(id, shadow, at, (&mut new[..room], &mut old[..room]));
            at += (room / PAGE as usize) as u64;
        }
        self.buffer = buffer;
        outcome
    }

    fn copy_piece(
        &mut self,
        id: Id,
        shadow: &Shadow,
        first: u64,
        (new, old): (&mut [u8], &mut [u8]),
    ) -> Result<()> {
        let length = shadow.read(new, first * PAGE)?;
        let before = shadow.read_copy(old, first * PAGE)?;
        let (new, old) = (&new[..length], &old[..before]);
        let mut differing = PageSet::default();
        let olds = old.chunks(PAGE as usize).chain(std::iter::repeat(&[][..]));
        for (page, (new, old)) in (0..).zip(new.chunks(PAGE as usize).zip(olds)) {
            if new != old {
                differing.insert(page, page + 1);
            }
        }
        let part = |bytes: &[u8], from: u64, to: u64| {
            let at = |page: u64| ((page * PAGE) as usize).min(bytes.len());
            at(from)..at(to)
        };
        for (from, to) in differing.runs(0) {
            self.record_old(id, first + from, &old[part(old, from, to)])?;
            shadow.write(&new[part(new, from, to)], (first + from) * PAGE)?;
            self.epoch.is_touched = true;
        }
        Ok(())
    }

    /// Records pages of the copy, before these pages change.
    pub(super) fn record_pages(&mut self, id: Id, shadow: &Shadow, first: u64, end: u64) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut outcome = Ok(());
        let mut at = first;
        while at < end && outcome.is_ok() {
            let room = ((end - at) as usize).min(CHUNK / PAGE as usize) * PAGE as usize;
            let piece = &mut buffer[..room];
            outcome =
                shadow.read_copy(piece, at * PAGE).and_then(|read| self.record_old(id, at, &piece[..read]));
            at += (room / PAGE as usize) as u64;
        }
        self.buffer = buffer;
        outcome
    }

    /// Records the content that pages had when the epoch began, except for pages that are recorded already. `bytes` is
    /// the content of the copy from the page `first` on.
    fn record_old(&mut self, id: Id, first: u64, bytes: &[u8]) -> Result<()> {
        let Some(old) = self.epoch.inodes.get_mut(&id) else { return Ok(()) };
        let (number, size) = (old.id, old.size);
        let Content::Shadow(pages) = &mut old.content else { return Ok(()) };
        let start = first * PAGE;
        let end = (start + bytes.len() as u64).min(size);
        if start >= end {
            return Ok(());
        }
        for (first, last) in pages.gaps(first, end.div_ceil(PAGE)) {
            let (from, to) = (first * PAGE, (last * PAGE).min(end));
            let content = &bytes[(from - start) as usize..(to - start) as usize];
            self.epoch.is_touched = true;
            if content.iter().all(|byte| *byte == 0) {
                self.log.hole(number, from, ByteCount(to - from))?;
            } else {
                self.log.range(number, from, content)?;
            }
            pages.note(first, last);
        }
        Ok(())
    }
}

impl MappedFiles {
    /// Returns why a mapped file is not tracked, as the end of a sentence.
    pub(super) fn why_not(&self, armed: &Armed) -> String {
        let id = (armed.key.device, armed.key.inode);
        match self.refused.get(&id) {
            Some((key, why)) if *key == armed.key => format!("; its changed pages cannot be tracked: {why}"),
            _ => "; a copy of it is being made".to_owned(),
        }
    }

    /// Reports whether the tender has work and does not run.
    pub(super) fn needs_tender(&mut self) -> bool {
        let has_work = !self.wanted.is_empty() || !self.files.is_empty();
        has_work && !std::mem::replace(&mut self.is_tended, true)
    }

    /// Notes whether the tender was started. If not, the next pause tries again.
    pub(super) fn note_tender(&mut self, is_started: bool) {
        self.is_tended = is_started;
    }
}

impl Wanted {
    fn new(id: Id, device: Device, armed: &Armed, file: OwnedFd) -> Self {
        let (key, name, size) = (armed.key.clone(), armed.path.clone(), armed.attributes.size);
        // On ext4, a call that changes the file makes pages dirty, or the filter reports the call. Other file systems can
        // also share blocks with another file.
        let needs_events = !is_on(file.as_fd(), EXT4);
        Self { id, device, key, name, file, size, called_from: u64::MAX, needs_events }
    }
}

impl Mapped {
    /// Notes that no call of the subject is in progress. Pages that a call may have changed are pending now.
    fn calls_are_over(&mut self, size: u64) {
        self.pending.add(&self.called);
        self.pending.insert(self.called_from, size.div_ceil(PAGE));
        self.called.clear();
        self.called_from = u64::MAX;
    }
}
