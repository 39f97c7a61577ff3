//! Records file content that is about to change.
//!
//! There are two causes to record content. A system call is about to open or change a file. Or fanotify(7) reports a
//! content event: a process is about to read, write or map a range of a marked file. The mark of a file is *active* if
//! changes are reported, and *silent* otherwise.
//!
//! Owns: the choice of the content that is recorded for each system call and each content event.
//! Invariants: before the watch answers a call or event that changes a range, the log contains the old content of the
//! range. Otherwise, the epoch is broken. When the log contains the whole content of a file, the file causes no further
//! events in the epoch. Content after the old length of a file is never recorded.
//! Does not: interpret system calls; `answer` does.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, Stat};

use super::descriptors::{duplicate, key_of, recorded_path, reopen, stat};
use super::epoch::{Content, Old, Pages, Part};
use super::paths::{Entry, is_shortage};
use super::state::{CHUNK, State};
use super::watched::Mark;
use crate::descriptor::path_of;
use crate::error::Result;
use crate::rights::Aspects;

/// Maximum length in bytes of a file that is copied whole when the file is opened for writing. For such a file, a copy
/// costs less than one content event.
const COPIED_AT_OPEN_MAX: u64 = 64 << 10;
/// Maximum length in bytes of a file that is copied whole at the first change.
const COPIED_AT_CHANGE_MAX: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// Returns the part of a file that can change when the file is opened with these flags.
pub(super) fn part_of_open(flags: OFlags) -> Part {
    if flags.contains(OFlags::TRUNC) {
        Part::All
    } else if flags.contains(OFlags::DIRECT) {
        Part::Direct
    } else if flags.contains(OFlags::APPEND) && !flags.contains(OFlags::RDWR) {
        Part::End
    } else {
        Part::Any
    }
}

impl State {
    /// Prepares for a change of `file` by a system call. Records the part that is about to change, or sets an active
    /// mark, so that events report changes. `entry` is the directory and name of the file in the call. Does nothing for
    /// a symbolic link.
    pub(super) fn change_named(&mut self, entry: &Entry, file: BorrowedFd<'_>, part: Part) -> Result<()> {
        let found = stat(file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        self.watched.mapped.note_call((found.st_dev, found.st_ino), part);
        if self.is_made(entry, file, &found)? {
            return self.watched.mark(file, &found, Mark::Silent);
        }
        self.change_old(file, &found, part)
    }

    /// Works like `change_named`, for a file that the system call names by a descriptor.
    pub(super) fn change(&mut self, file: BorrowedFd<'_>, part: Part) -> Result<()> {
        let found = stat(file)?;
        self.watched.mapped.note_call((found.st_dev, found.st_ino), part);
        // The image of the checkpoint contains the content of a file without a name.
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink == 0 {
            return Ok(());
        }
        if self.is_made_file(file, &found)? {
            return Ok(());
        }
        self.change_old(file, &found, part)
    }

    /// Reports whether an open file was created in this epoch. Determines the name of the file from the path of the
    /// descriptor, and then works like `is_made`.
    pub(super) fn is_made_file(&mut self, file: BorrowedFd<'_>, found: &Stat) -> Result<bool> {
        let id = (found.st_dev, found.st_ino);
        if self.is_old(file, found)? {
            return Ok(false);
        }
        if self.epoch.made.contains(&id) {
            return Ok(true);
        }
        let path = recorded_path(file)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let named = rustix::fs::open(parent, flags, rustix::fs::Mode::empty()).and_then(|directory| {
            let entry = Entry { directory, name: name.to_owned() };
            Ok(entry.stat()?.map(|named| (entry, named)))
        });
        match named {
            Ok(Some((entry, named))) if (named.st_dev, named.st_ino) == id => {
                self.is_made(&entry, file, found)
            }
            Err(errno) if is_shortage(errno) => Err(sys::Error::path("inspect", path, errno).into()),
            _ => Ok(false),
        }
    }

    fn change_old(&mut self, file: BorrowedFd<'_>, found: &Stat, part: Part) -> Result<()> {
        let started = self.costs.clock().now();
        let reports = self.file_systems.reports(self.watched.source(), file, found.st_dev)?;
        self.old(file, found, Aspects::CONTENT)?;
        let outcome = self.keep_part(file, found, part, reports);
        self.costs.note_kept(self.costs.clock().now() - started);
        outcome
    }

    fn keep_part(&mut self, file: BorrowedFd<'_>, found: &Stat, part: Part, reports: bool) -> Result<()> {
        let id = (found.st_dev, found.st_ino);
        let Some(old) = self.epoch.inodes.get(&id) else { return Ok(()) };
        let size = old.size;
        match (&old.content, part) {
            (Content::Whole | Content::OfImage, _) => {}
            // The tracker reports other changes than by these calls.
            (Content::Shadow(_), Part::Any | Part::Direct | Part::End) => return Ok(()),
            (Content::Shadow(_), Part::All) => return self.save(file, found, 0, size),
            (Content::Untouched | Content::Appends, Part::End) => {
                if let Some(old) = self.epoch.inodes.get_mut(&id) {
                    old.content = Content::Appends;
                }
            }
            // Keep the list of recorded pages. Changes of pages that are not in the list are still reported.
            (Content::Pages(_), Part::End) => {}
            (_, Part::Any | Part::Direct) if reports && size > COPIED_AT_OPEN_MAX => {
                return self.watched.mark(file, found, Mark::Active);
            }
            (_, Part::Behind(offset)) if offset >= size => {}
            (_, Part::Behind(offset)) if size > COPIED_AT_CHANGE_MAX => {
                return self.save(file, found, offset, size - offset);
            }
            (_, Part::Range(offset, length)) if size > COPIED_AT_CHANGE_MAX => {
                return self.save(file, found, offset, length);
            }
            _ => self.whole(file, found)?,
        }
        // Without a mark at the time of the open, an open file description never reports events. A silent mark lets the
        // description report events in later epochs.
        if reports && !self.watched.is_active(id) {
            self.watched.mark(file, found, Mark::Silent)?;
        }
        Ok(())
    }

    /// Handles a content event: a range of a file is about to be read, written or mapped.
    pub(super) fn event(&mut self, file: BorrowedFd<'_>, range: Option<(u64, u64)>) -> Result<()> {
        let found = stat(file)?;
        let id = (found.st_dev, found.st_ino);
        let part = range.map_or(Part::All, |(offset, length)| Part::Range(offset, length));
        self.watched.mapped.note_call(id, part);
        if self.is_restoring || found.st_nlink == 0 {
            return Ok(());
        }
        if !self.is_old(file, &found)? && self.epoch.made.contains(&id) {
            return self.watched.mark(file, &found, Mark::Silent);
        }
        let started = self.costs.clock().now();
        let is_content_touched = self.is_old(file, &found)?
            && self.epoch.inodes.get(&id).is_some_and(|old| old.touches(Aspects::CONTENT));
        if !is_content_touched {
            // The event does not show the rights of the writer. The file was open when the epoch began, so that the
            // rights do not matter.
            (self.calls.rights, self.calls.limit) = (None, None);
            self.old(file, &found, Aspects::CONTENT)?;
        }
        let size = self.epoch.inodes.get(&id).map_or(0, |old| old.size);
        let outcome = match range {
            Some((offset, length)) if size > COPIED_AT_CHANGE_MAX => self.save(file, &found, offset, length),
            _ => self.whole(file, &found),
        };
        let took = self.costs.clock().now() - started;
        self.costs.note_kept(took + self.costs.rates.event);
        outcome?;
        self.whole_if_cheaper(file, &found, took)
    }

    /// Records the whole content of a file as soon as the events of the file have cost as much as a copy of the file.
    /// For each sequence of changes, the total cost is thus at most twice the minimum cost (ski rental problem).
    fn whole_if_cheaper(&mut self, file: BorrowedFd<'_>, found: &Stat, took: Duration) -> Result<()> {
        let rate = self.costs.rates;
        let Some(old) = self.epoch.inodes.get_mut(&(found.st_dev, found.st_ino)) else { return Ok(()) };
        let size = old.size;
        let Content::Pages(pages) = &mut old.content else { return Ok(()) };
        pages.spent += took + rate.event;
        if pages.spent > rate.copy_of(size) { self.whole(file, found) } else { Ok(()) }
    }

    /// Records the pages of a range that are not in the log yet.
    pub(super) fn save(
        &mut self,
        file: BorrowedFd<'_>,
        found: &Stat,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let id = (found.st_dev, found.st_ino);
        let Some(old) = self.epoch.inodes.get_mut(&id) else { return Ok(()) };
        let size = old.size;
        let end = offset.saturating_add(length).min(size);
        if offset >= end {
            return Ok(());
        }
        if matches!(old.content, Content::Shadow(_)) {
            // If the copy is missing, the epoch is broken.
            let Some(shadow) = self.watched.mapped.shadow(id) else { return Ok(()) };
            return self.record_pages(id, &shadow, offset / PAGE, end.div_ceil(PAGE));
        }
        if matches!(old.content, Content::Untouched | Content::Appends) {
            old.content = Content::Pages(Pages::default());
        }
        let Content::Pages(pages) = &mut old.content else { return Ok(()) };
        for (first, last) in pages.gaps(offset / PAGE, end.div_ceil(PAGE)) {
            self.copy(file, found, first * PAGE, (last * PAGE).min(size))?;
            if let Some(Old { content: Content::Pages(pages), .. }) = self.epoch.inodes.get_mut(&id) {
                pages.note(first, last);
            }
        }
        Ok(())
    }

    /// Copies a range of a file into the log.
    pub(super) fn copy(&mut self, file: BorrowedFd<'_>, found: &Stat, start: u64, end: u64) -> Result<()> {
        let id = (found.st_dev, found.st_ino);
        let Some(number) = self.epoch.inodes.get(&id).map(|old| old.id) else { return Ok(()) };
        let reader = match of_event(file)? {
            Some(reader) => reader,
            None => match self.watched.reader(id) {
                Some(reader) => duplicate(reader)?,
                None => reopen(file)?,
            },
        };
        let mut at = start;
        while at < end {
            let room = ((end - at) as usize).min(CHUNK);
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(&reader, &mut self.buffer[..room], at))
                .map_err(|errno| sys::Error::path("read", path_of(file), errno))?;
            if read == 0 {
                // The file is shorter than recorded: another program has truncated the file, and the old content is
                // lost.
                return Err(sys::Error::path("read", path_of(file), sys::Errno::SHORT).into());
            }
            self.log.range(number, at, &self.buffer[..read])?;
            at += read as u64;
        }
        Ok(())
    }

    /// Records or marks a file before the flag O_APPEND of an open file description loses its effect. Afterwards, the
    /// subject can write at any offset. The call can also set the flag O_DIRECT.
    pub(super) fn appends_no_more(&mut self, file: BorrowedFd<'_>) -> Result<()> {
        let found = stat(file)?;
        let is_ours = self.watched.has_id((found.st_dev, found.st_ino))
            && key_of(file, &found).is_ok_and(|key| self.watched.has(&key));
        if is_ours { self.change(file, Part::Direct) } else { Ok(()) }
    }
}

/// Returns a duplicate of `file` if `file` is the descriptor of a content event, and `None` otherwise. Reading through
/// the descriptor of an event causes no event. If the reading thread is also the thread that answers events, an event
/// would block this thread for ever.
///
/// All other descriptors that reach this function are open with O_PATH, or are descriptors of the subject that are open
/// for writing.
fn of_event(file: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let flags =
        rustix::fs::fcntl_getfl(file).map_err(|errno| sys::Error::new("inspect a descriptor", errno))?;
    let is_of_event = !flags.contains(OFlags::PATH) && flags & OFlags::ACCMODE == OFlags::RDONLY;
    is_of_event.then(|| duplicate(file)).transpose()
}
