//! The file systems of the subject, by device.
//!
//! Owns: descriptors on the mounts, and the known capabilities of each file system.
//! Invariants: each capability of a file system is tested once.
//! Does not: know the files on a file system.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::descriptors::duplicate;
use super::marks::ContentSource;
use super::paths::{self, is_shortage};
use crate::error::Result;
use crate::key::FileKey;

/// The file systems of the subject.
#[derive(Debug, Default)]
pub(super) struct FileSystems(HashMap<u64, FileSystem>);

#[derive(Debug, Default)]
struct FileSystem {
    /// A directory on the file system, for opening files by handle.
    mount: Option<OwnedFd>,
    /// A directory on a mount on which newly opened files can report changes later.
    enabled: Option<OwnedFd>,
    /// Whether the file system reports changes of content; `None` before the test.
    reports: Option<bool>,
    /// Whether the clone of a file has failed.
    clones_none: bool,
    /// Whether the kernel generates the content, as for proc(5); `None` before the test. A rollback does not change
    /// these files.
    is_made_up: Option<bool>,
}

impl FileSystems {
    fn at(&mut self, device: u64) -> &mut FileSystem {
        self.0.entry(device).or_default()
    }

    /// Remembers a directory of a file system, for opening files by handle.
    pub(super) fn note_mount(&mut self, directory: BorrowedFd<'_>, device: u64) {
        let known = self.at(device);
        if known.mount.is_none() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            known.mount = rustix::fs::openat(directory, ".", flags, Mode::empty()).ok();
        }
    }

    /// Returns a directory on a file system.
    pub(super) fn mount(&self, device: u64) -> Option<BorrowedFd<'_>> {
        Some(self.0.get(&device)?.mount.as_ref()?.as_fd())
    }

    /// Opens a file by its key, with O_PATH.
    pub(super) fn open(&self, key: &FileKey) -> Result<OwnedFd> {
        let mount = self
            .mount(key.device)
            .ok_or_else(|| sys::Error::new("find the file system of a file", sys::Errno::ENOENT))?;
        Ok(sys::file_handle::open(mount, &key.handle)?)
    }

    /// Reports whether the file system of a file reports changes of content.
    pub(super) fn reports(
        &mut self,
        source: &dyn ContentSource,
        file: BorrowedFd<'_>,
        device: u64,
    ) -> Result<bool> {
        let known = self.at(device);
        if known.reports.is_none() {
            known.reports = match source.watch(file).and_then(|()| source.forget(file)) {
                Err(error) if error.errno.is_shortage() => return Err(error.into()),
                outcome => Some(outcome.is_ok()),
            };
        }
        Ok(known.reports == Some(true))
    }

    /// Reports whether a file system is known to report changes of content.
    pub(super) fn is_reporting(&self, device: u64) -> bool {
        self.0.get(&device).is_some_and(|known| known.reports == Some(true))
    }

    /// Reports whether a file is on a file system whose content the kernel generates.
    pub(super) fn is_made_up(&mut self, file: BorrowedFd<'_>, device: u64) -> Result<bool> {
        let known = self.at(device);
        if known.is_made_up.is_none() {
            known.is_made_up = match paths::is_made_up(file) {
                Err(errno) if is_shortage(errno) => {
                    return Err(sys::Error::new("inspect a file system", errno).into());
                }
                found => Some(found.unwrap_or(false)),
            };
        }
        Ok(known.is_made_up == Some(true))
    }

    /// Reports whether a clone of a file can succeed: no clone has failed on this file system.
    pub(super) fn may_clone(&self, device: u64) -> bool {
        self.0.get(&device).is_some_and(|known| known.mount.is_some() && !known.clones_none)
    }

    /// Notes that a clone has failed.
    pub(super) fn note_no_clone(&mut self, device: u64) {
        self.at(device).clones_none = true;
    }

    /// Lets files that are opened or created on the mount of a directory from now on report changes later.
    pub(super) fn enable(
        &mut self,
        source: &dyn ContentSource,
        directory: BorrowedFd<'_>,
        device: u64,
    ) -> Result<()> {
        let known = self.at(device);
        if known.enabled.is_some() || known.reports == Some(false) {
            return Ok(());
        }
        match source.enable(directory) {
            Ok(()) => known.enabled = Some(duplicate(directory)?),
            Err(error) if error.errno.is_shortage() => return Err(error.into()),
            // A file system without content events fails at its first mark.
            Err(error) => {
                known.reports = Some(false);
                if error.errno != sys::Errno::EINVAL && error.errno != Errno::OPNOTSUPP.into() {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Works like `enable` for every known mount.
    pub(super) fn enable_all(&mut self, source: &dyn ContentSource) -> Result<()> {
        let devices: Vec<u64> = self.0.keys().copied().collect();
        for device in devices {
            let Some(mount) = self.mount(device) else { continue };
            let mount = duplicate(mount)?;
            self.enable(source, mount.as_fd(), device)?;
        }
        Ok(())
    }

    /// Ends the effect of `enable`. Called only while no open of the subject is in progress.
    pub(super) fn disable(&mut self, source: &dyn ContentSource) {
        for directory in self.0.values_mut().filter_map(|known| known.enabled.take()) {
            // A mount that stays enabled costs a little time, but causes no error.
            let _ = source.disable(directory.as_fd());
        }
    }
}
