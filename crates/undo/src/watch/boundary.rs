//! The boundary between two epochs of the watch, inside the pause of a checkpoint.
//!
//! The boundary at a checkpoint has three possible results:
//!
//! - The checkpoint is exact, and the next epoch begins.
//! - No file has changed in the present epoch. The checkpoint is exact, and the present epoch continues.
//! - The boundary is *deferred*: the checkpoint is not exact, and the present epoch continues.
//!
//! The watch usually records a file when the subject opens the file. In the next epoch, the subject can change a file
//! that is open or mapped at the boundary without opening the file again. Therefore, a boundary inspects the open and
//! mapped files, and *arms* each file that can change. Arming marks or records the file, so that changes of the file
//! can be rolled back. Each checkpoint also has an image, which contains the memory of the subject and the content of
//! some files.
//!
//! Owns: the inspection of open and mapped files, and the marks and records of these files at a boundary.
//! Invariants: every thread of the subject is stopped. For each file that can change, one of three conditions holds
//! after an exact boundary. The kernel reports changes of the file. Or the log and the image contain the content that a
//! rollback needs. Or the log lists the file as a file that can change undetected.
//! Does not: list open and mapped files; the capture of the checkpoint does.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use model::Sequence;
use rustix::fs::{FileType, Mode, OFlags, Stat};

use super::calls::is_written_through;
use super::descriptors::{duplicate, key_of, stat};
use super::epoch::{Armed, Content, How, Id};
use super::state::State;
use super::watched::Mark;
use super::{Boundary, MappedFile, OpenFile};
use crate::descriptor::path_of;
use crate::error::Result;
use crate::key::{Attributes, FileKey, TMPFS, Time};

/// Maximum number of bytes that one boundary copies from mapped files. The copy extends the pause by about 2 ms.
const MAPPED_BYTES_MAX: u64 = 8 << 20;

/// The result of a scan of the open and mapped files.
#[derive(Default)]
struct Found {
    armed: HashMap<Id, (Armed, OwnedFd)>,
    uncovered: Vec<(Id, PathBuf)>,
    /// Files of which an open file description reports no changes, because the watch has not detected its open.
    unseen: HashSet<Id>,
    /// The reason if the watch has missed a change in the present epoch, so that the epoch is broken.
    missed: Option<String>,
}

impl State {
    /// Ends the present epoch at checkpoint `sequence`, adds the checkpoint to the present epoch, or defers the
    /// boundary. If a boundary is deferred, earlier boundaries of the same checkpoint are not exact either: the memory of
    /// the checkpoint belongs to its last pause.
    pub(super) fn boundary(
        &mut self,
        sequence: Sequence,
        open: &[OpenFile<'_>],
        mapped: &[MappedFile<'_>],
    ) -> Boundary {
        // A pause must not wait for the disk of the log.
        self.log.hold();
        let boundary = self.try_boundary(sequence, open, mapped);
        if matches!(boundary, Boundary::Deferred(_)) {
            self.boundaries.retract(sequence);
            let outcome = self.log.retract(sequence);
            self.or_break(outcome, "a checkpoint that is not exact");
        }
        self.log.end_hold();
        boundary
    }

    fn try_boundary(
        &mut self,
        sequence: Sequence,
        open: &[OpenFile<'_>],
        mapped: &[MappedFile<'_>],
    ) -> Boundary {
        // No call of the subject is in progress, because all threads are stopped.
        self.file_systems.disable(self.watched.source());
        self.calls.crossings.clear();
        let mut found = match self.inspect(open, mapped) {
            Ok(found) => found,
            Err(error) => return Boundary::Deferred(error.to_string()),
        };
        if let Some(why) = &found.missed {
            self.break_epoch(why);
        }
        self.unreported.unseen.clone_from(&found.unseen);
        self.choose_tracked(&mut found.armed, open, mapped);
        self.unreported.paths = found.uncovered.iter().map(|(_, path)| path.clone()).collect();
        let is_demanded = self.costs.take_demand();
        let costs = self.epoch.is_touched && self.epoch.broken.is_none() && !is_demanded;
        if costs && self.costs.are_too_high() {
            return Boundary::Deferred(
                "keeping files would cost more than --files-cost-max allows".to_owned(),
            );
        }
        if let Some(armed) = too_large(&found) {
            return Boundary::Deferred(format!(
                "{} is mapped by the program, and too large to be copied inside the pause{}",
                armed.path.display(),
                self.watched.mapped.why_not(armed)
            ));
        }
        match self.residual_too_large() {
            Ok(None) => {}
            Ok(Some(why)) => return Boundary::Deferred(why),
            Err(error) => return Boundary::Deferred(error.to_string()),
        }
        if let Err(error) = self.copy_residual() {
            // A record of old content can be missing.
            self.break_epoch(&error.to_string());
            return Boundary::Deferred(error.to_string());
        }
        let list = armed_of(&found);
        let is_unchanged = self.is_as_at_newest(&list);
        // After an error of these steps, the present epoch continues.
        let begins = match self.joins(sequence, &list) {
            Ok(joins) => !joins,
            Err(error) => return Boundary::Deferred(error.to_string()),
        };
        let armed = if begins { self.arm_all(found) } else { Ok(()) };
        match armed {
            Ok(()) => {
                self.boundaries.insert(sequence, is_unchanged, self.moment(), list, written_through(open));
                Boundary::Exact
            }
            Err(error) => {
                self.break_epoch(&error.to_string());
                Boundary::Deferred(error.to_string())
            }
        }
    }

    fn inspect(&mut self, open: &[OpenFile<'_>], mapped: &[MappedFile<'_>]) -> Result<Found> {
        let mut found = Found::default();
        for file in open {
            let stat = rustix::fs::fstat(file.file)
                .map_err(|errno| sys::Error::new("inspect a descriptor of the subject", errno))?;
            // The image of the checkpoint contains the content of a file without a name.
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 0 {
                self.inspect_open(file, &stat, &mut found)?;
            }
        }
        for file in mapped {
            self.inspect_mapped(file, &mut found)?;
        }
        Ok(found)
    }

    fn inspect_open(&mut self, file: &OpenFile<'_>, stat: &Stat, found: &mut Found) -> Result<()> {
        let id = (stat.st_dev, stat.st_ino);
        let duplicate = duplicate(file.file)?;
        let path = path_of(file.file);
        if found.uncovered.iter().any(|(known, _)| *known == id) {
            return Ok(());
        }
        let key = key_of(duplicate.as_fd(), stat)?;
        let Some(how) = self.how(file, duplicate.as_fd(), stat)? else {
            found.armed.remove(&id);
            found.uncovered.push((id, path));
            return Ok(());
        };
        if !file.is_inherited && how != How::OfImage && !self.was_seen(duplicate.as_fd(), stat, &key)? {
            // The file was not marked when it was opened, so that this open file description never reports changes. The
            // path led to another file when the watch answered the open, or recording has failed.
            found.armed.remove(&id);
            if !self.unreported.unseen.contains(&id) {
                found.missed =
                    Some(format!("{} changed its name while the program opened it", path.display()));
            }
            found.unseen.insert(id);
            found.uncovered.push((id, path));
            return Ok(());
        }
        let attributes = Attributes::read(&duplicate, stat)?;
        let armed = Armed { key, attributes, how, path };
        let entry = found.armed.entry(id).or_insert((armed, duplicate));
        entry.0.how = entry.0.how.max(how);
        Ok(())
    }

    /// Returns how a file can change through an open file description. Returns `None` if the file can change
    /// undetected.
    fn how(&mut self, file: &OpenFile<'_>, duplicate: BorrowedFd<'_>, stat: &Stat) -> Result<Option<How>> {
        let flags = OFlags::from_bits_retain(file.flags);
        let only_writes = flags & OFlags::ACCMODE == OFlags::WRONLY;
        let appends = only_writes && flags.contains(OFlags::APPEND);
        if appends {
            return Ok(Some(How::Appends));
        }
        if file.is_inherited {
            // The description was opened before the watch began. The kernel reports no events for such a description.
            let is_at_end = file.position == Some(stat.st_size as u64);
            return Ok((only_writes && is_at_end).then_some(How::Appends));
        }
        if self.file_systems.reports(self.watched.source(), duplicate, stat.st_dev)? {
            return Ok(Some(How::Reports));
        }
        Ok(is_in_image(duplicate, stat).then_some(How::OfImage))
    }

    /// Reports whether the watch has detected the open or the creation of a file.
    fn was_seen(&mut self, file: BorrowedFd<'_>, stat: &Stat, key: &FileKey) -> Result<bool> {
        if self.unreported.unseen.contains(&(stat.st_dev, stat.st_ino)) {
            return Ok(false);
        }
        let was_open = || {
            let last = self.boundaries.newest_open();
            last.is_some_and(|last| last.iter().any(|armed| armed.key == *key))
        };
        if self.watched.has(key) || was_open() {
            return Ok(true);
        }
        self.is_made_file(file, stat)
    }

    fn inspect_mapped(&mut self, file: &MappedFile<'_>, found: &mut Found) -> Result<()> {
        if !file.is_writable {
            return Ok(());
        }
        let known = found
            .armed
            .values_mut()
            .find(|(armed, _)| armed.key.inode == file.inode && is_device(armed.key.device, file.device));
        if let Some((armed, _)) = known {
            armed.how = armed.how.max(How::Mapped);
            return Ok(());
        }
        if found
            .uncovered
            .iter()
            .any(|((device, inode), _)| *inode == file.inode && is_device(*device, file.device))
        {
            return Ok(());
        }
        let Some((opened, stat)) = self.find_mapped(file) else {
            // The image of the checkpoint contains the content of a file without a name.
            if !file.path.as_os_str().as_bytes().ends_with(b" (deleted)") {
                found.missed = Some(format!("{} is mapped, and its path was not found", file.path.display()));
            }
            return Ok(());
        };
        // The image of the checkpoint contains the content of a file without a name.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink == 0 {
            return Ok(());
        }
        let key = key_of(opened.as_fd(), &stat)?;
        let id = (stat.st_dev, stat.st_ino);
        let how = if self.file_systems.reports(self.watched.source(), opened.as_fd(), stat.st_dev)? {
            How::Mapped
        } else if is_in_image(opened.as_fd(), &stat) {
            How::OfImage
        } else {
            found.uncovered.push((id, file.path.to_owned()));
            return Ok(());
        };
        let (attributes, path) = (Attributes::read(&opened, &stat)?, file.path.to_owned());
        found.armed.insert(id, (Armed { key, attributes, how, path }, opened));
        Ok(())
    }

    /// Opens a mapped file that is not open. Tries the path of the mapping first, and then the handle of the file.
    fn find_mapped(&self, file: &MappedFile<'_>) -> Option<(OwnedFd, Stat)> {
        let is_it =
            |(_, stat): &(OwnedFd, Stat)| stat.st_ino == file.inode && is_device(stat.st_dev, file.device);
        let with_stat = |opened: OwnedFd| {
            let stat = stat(opened.as_fd()).ok()?;
            Some((opened, stat))
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let named = rustix::fs::open(file.path, flags, Mode::empty()).ok().and_then(with_stat).filter(is_it);
        let by_handle = || {
            let mut known = self.watched.keys();
            let key = known.find(|key| key.inode == file.inode && is_device(key.device, file.device))?;
            self.file_systems.open(key).ok().and_then(with_stat)
        };
        named.or_else(by_handle)
    }

    /// Makes checkpoint `sequence` exact. If no file has changed in the present epoch, adds the checkpoint to this epoch,
    /// and returns `true`. Otherwise, ends the present epoch and begins the next epoch.
    fn joins(&mut self, sequence: Sequence, list: &[Armed]) -> Result<bool> {
        let is_mapped = list.iter().any(|armed| armed.how == How::Mapped);
        let last = self.boundaries.newest_open();
        let may_go_on = !self.epoch.is_touched && !is_mapped && !self.log.is_long();
        if may_go_on && last.is_some_and(|last| are_same(last, list)) {
            self.log.same(sequence)?;
            return Ok(true);
        }
        self.log.boundary(sequence)?;
        self.begin_epoch();
        Ok(false)
    }

    /// Arms the open and mapped files at the beginning of an epoch.
    fn arm_all(&mut self, found: Found) -> Result<()> {
        for ((device, inode), path) in &found.uncovered {
            self.log.uncovered(*device, *inode, path)?;
        }
        for (armed, file) in found.armed.values() {
            self.arm(armed, file.as_fd())?;
        }
        self.forget_unmapped(&found.armed);
        self.epoch.is_touched = false;
        Ok(())
    }

    /// Arms an open or mapped file: marks or records the file, so that changes of the file in the present epoch can be
    /// rolled back.
    pub(super) fn arm(&mut self, armed: &Armed, file: BorrowedFd<'_>) -> Result<()> {
        let id = (armed.key.device, armed.key.inode);
        let found = stat(file)?;
        match armed.how {
            How::Reports => self.watched.mark(file, &found, Mark::Active)?,
            How::Appends | How::OfImage => {
                self.record(&armed.key, &armed.attributes, armed.path.clone())?;
                if let Some(old) = self.epoch.inodes.get_mut(&id) {
                    old.content = if armed.how == How::Appends { Content::Appends } else { Content::OfImage };
                }
            }
            How::Tracked => {
                self.record(&armed.key, &armed.attributes, armed.path.clone())?;
                self.arm_tracked(armed, &file)?;
                self.watched.mark(file, &found, Mark::Silent)?;
            }
            How::Mapped => {
                self.record(&armed.key, &armed.attributes, armed.path.clone())?;
                if !self.watched.has(&armed.key) {
                    self.watched.mark(file, &found, Mark::Silent)?;
                }
                self.whole(file, &found)?;
            }
        }
        Ok(())
    }

    /// Reports whether no file has changed between the newest boundary and a boundary with these files. Reads nothing,
    /// because the subject is stopped. A file that was closed meanwhile counts as changed.
    fn is_as_at_newest(&self, list: &[Armed]) -> bool {
        let is_same = |armed: &Armed| match armed.how {
            How::OfImage => true,
            How::Mapped | How::Tracked => false,
            How::Appends | How::Reports => {
                let place = |armed: &Armed| (armed.key.device, armed.key.inode);
                let now = list.binary_search_by_key(&place(armed), place).ok().map(|index| &list[index]);
                now.is_some_and(|now| {
                    now.key == armed.key && comparable(&now.attributes) == comparable(&armed.attributes)
                })
            }
        };
        let open = self.boundaries.newest_open().unwrap_or_default();
        !self.boundaries.is_retracted() && !self.epoch.is_touched && open.iter().all(is_same)
    }

    /// Reports whether no file has changed since the newest boundary. Messages of this program do not count.
    pub(super) fn is_unchanged(&self) -> bool {
        let open = self.boundaries.newest_open().unwrap_or_default();
        let is_as_exact = !self.boundaries.is_retracted() && !self.epoch.is_touched;
        is_as_exact && open.iter().all(|armed| self.is_as_armed(armed))
    }

    /// Reports whether a file that was armed at the newest boundary is unchanged. The kernel reports the changes of
    /// some armed files only, so the attributes are compared.
    fn is_as_armed(&self, armed: &Armed) -> bool {
        match armed.how {
            // The image of the checkpoint contains the file.
            How::OfImage => true,
            How::Mapped | How::Tracked => false,
            How::Appends | How::Reports => {
                let read = |file: OwnedFd| Attributes::read(&file, &stat(file.as_fd())?);
                let now = self.open_armed(armed).and_then(read);
                now.is_ok_and(|now| {
                    comparable(&now) == comparable(&armed.attributes) || self.has_own_lines_only(armed, &now)
                })
            }
        }
    }

    /// Opens an armed file by its key. Before the subject has used a path on its file system, tries the recorded path.
    fn open_armed(&self, armed: &Armed) -> Result<OwnedFd> {
        let by_path = |error| {
            let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let named = rustix::fs::open(&armed.path, flags, Mode::empty()).map_err(sys::Errno::from);
            let is_it = |found: &OwnedFd| {
                stat(found.as_fd())
                    .is_ok_and(|found| (found.st_dev, found.st_ino) == (armed.key.device, armed.key.inode))
            };
            named.ok().filter(is_it).ok_or(error)
        };
        self.file_systems.open(&armed.key).or_else(by_path)
    }

    /// Reports whether this program has appended messages to a file, and nothing else has changed.
    fn has_own_lines_only(&self, armed: &Armed, now: &Attributes) -> bool {
        let without_growth = |attributes: &Attributes| {
            let (mode, owner, group, ..) = comparable(attributes);
            (mode, owner, group)
        };
        let (before, id) = (&armed.attributes, (armed.key.device, armed.key.inode));
        let grows = armed.how == How::Appends && now.size > before.size;
        let are_own =
            || self.unreported.own_lines.is_some_and(|are_own| are_own(&armed.path, id, before.size));
        grows && without_growth(now) == without_growth(before) && are_own()
    }

    /// Removes the marks of files that are not open any more and that have no record in the present epoch.
    pub(super) fn sweep(&mut self) {
        let Some(list) = self.boundaries.newest_open() else { return };
        let open: HashSet<Id> = list.iter().map(|armed| (armed.key.device, armed.key.inode)).collect();
        let inodes = &self.epoch.inodes;
        let is_needed = |id: &Id| open.contains(id) || inodes.contains_key(id);
        self.watched.sweep(is_needed, |key| self.file_systems.open(key).ok());
    }
}

/// Returns the files that are to be armed, in a fixed order.
fn armed_of(found: &Found) -> Vec<Armed> {
    let mut list: Vec<Armed> = found.armed.values().map(|(armed, _)| armed.clone()).collect();
    list.sort_by_key(|armed| (armed.key.device, armed.key.inode));
    list
}

/// Reports whether two boundaries have armed the same files, and none of these files has changed between them. Ignores
/// the access time, because reading a file is not a change.
fn are_same(one: &[Armed], other: &[Armed]) -> bool {
    let of = |armed: &Armed| (armed.key.clone(), armed.how, comparable(&armed.attributes));
    one.iter().map(of).eq(other.iter().map(of))
}

/// Returns the attributes that differ if a file has changed.
fn comparable(attributes: &Attributes) -> (u32, u32, u32, u64, Time) {
    let Attributes { mode, owner, group, size, modified, .. } = *attributes;
    (mode, owner, group, size, modified)
}

/// Reports whether `device`, which is from stat(2), can be the device of a mapping, whose numbers are from
/// /proc/PID/maps. For btrfs, the two sources differ: /proc/PID/maps shows the device of the file system, but stat(2)
/// shows the device of the subvolume. Both devices have the major number 0, which means that no disk belongs to the
/// number.
pub(super) fn is_device(device: u64, (major, minor): (u32, u32)) -> bool {
    let own = (rustix::fs::major(device), rustix::fs::minor(device));
    own == (major, minor) || (own.0, major) == (0, 0)
}

/// Reports whether the image of a checkpoint contains the content of an open or mapped file that causes no events. The
/// image contains files on a tmpfs, up to a maximum length. The image does not contain files on network file systems
/// and FUSE, which also cause no events.
fn is_in_image(file: BorrowedFd<'_>, stat: &Stat) -> bool {
    /// Maximum length in bytes of a file that is in the image without being mapped.
    const SAVED_BYTES_MAX: i64 = 64 << 20;
    is_on(file, TMPFS) && stat.st_size <= SAVED_BYTES_MAX
}

/// Returns the files that are open for writing so that each write makes its data durable.
fn written_through(open: &[OpenFile<'_>]) -> Vec<FileKey> {
    let is_through = |file: &&OpenFile<'_>| is_written_through(OFlags::from_bits_retain(file.flags));
    let key = |file: &OpenFile<'_>| {
        let stat = stat(file.file).ok()?;
        key_of(file.file, &stat).ok()
    };
    open.iter().filter(is_through).filter_map(key).collect()
}

/// Reports whether a file is on a file system of this type.
pub(super) fn is_on(file: BorrowedFd<'_>, kind: u64) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type as u64 == kind)
}

/// Returns a mapped file whose copy would exceed `MAPPED_BYTES_MAX`. Returns `None` if all mapped files fit. Tracked files
/// are not copied.
fn too_large(found: &Found) -> Option<&Armed> {
    let mut left = MAPPED_BYTES_MAX;
    for (armed, _) in found.armed.values().filter(|(armed, _)| armed.how == How::Mapped) {
        match left.checked_sub(armed.attributes.size) {
            Some(rest) => left = rest,
            None => return Some(armed),
        }
    }
    None
}
