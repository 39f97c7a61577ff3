//! Disk space that is reserved for records, so that a full disk does not end the recording at once.
//!
//! A store often shares its file system with the program. If this file system becomes full, no further checkpoint can be
//! written, but changes must be recorded to return to the last checkpoint.
//!
//! Owns: the file with the reserved space.
//! Invariants: the space is given away at once and to one log file, so that no other program takes much of it.
//! Does not: write records.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use model::ByteCount;
use rustix::fs::{FallocateFlags, Mode, OFlags};

/// The name of the file.
const NAME: &str = "reserve";
/// The size of the reserve. At 1 MiB of old content per second, the reserve lasts for 8 seconds.
pub(super) const RESERVE: ByteCount = ByteCount(8 << 20);
/// With less free space than this, no space is reserved.
const ROOM_MIN: ByteCount = ByteCount(2 * RESERVE.get());
/// How often the amount is halved that a log file asks for. The last amount is 16 KiB.
const HALVINGS: u32 = 10;

/// Removes the reserve in the directory of a log. The log must not be open.
pub(crate) fn remove_reserve(directory: &Path) -> sys::Result<()> {
    let path = directory.join(NAME);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(sys::Error::path("remove", &path, error))
        }
        _ => Ok(()),
    }
}

/// Reserved disk space.
#[derive(Debug)]
pub(super) struct Reserve {
    file: File,
    place: Mutex<Place>,
}

/// Where the reserved space is.
#[derive(Debug)]
enum Place {
    /// In the file of the reserve.
    Here,
    /// Behind the end of a log file, which may have used a part.
    Lent(File),
    /// Not reserved.
    Nowhere,
}

impl Reserve {
    /// Reserves space in the directory of a log. Returns `None` if the file cannot be created. The log then works
    /// without a reserve.
    pub(super) fn new(directory: BorrowedFd<'_>) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, NAME, flags, Mode::from_raw_mode(0o600)).ok()?;
        let reserve = Self { file: file.into(), place: Mutex::new(Place::Nowhere) };
        reserve.fill();
        Some(reserve)
    }

    /// Reserves the space again if it was given away. Does nothing if the disk is nearly full.
    pub(super) fn fill(&self) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*place, Place::Here) || !self.has_room() {
            return;
        }
        if let Place::Lent(file) = std::mem::replace(&mut *place, Place::Nowhere) {
            take_back(&file);
        }
        if rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, RESERVE.get()).is_ok() {
            *place = Place::Here;
        } else {
            // A failed preallocation can leave a part.
            let _ = self.file.set_len(0);
        }
    }

    /// Reports whether a log file has got the space.
    pub(super) fn is_lent(&self) -> bool {
        matches!(*self.place.lock().unwrap_or_else(PoisonError::into_inner), Place::Lent(_))
    }

    /// Reports whether the file system has so much space that the reserve does not matter.
    fn has_room(&self) -> bool {
        let found = rustix::fs::fstatvfs(&self.file);
        found.is_ok_and(|found| found.f_bavail * found.f_frsize >= ROOM_MIN.get())
    }

    /// Gives the reserved space to a log file, behind its present end `offset`. Returns whether the file has got space.
    pub(super) fn spend(&self, file: &File, offset: u64) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*place, Place::Here) || self.file.set_len(0).is_err() {
            return false;
        }
        *place = file.try_clone().map_or(Place::Nowhere, Place::Lent);
        // Some file systems need a part of the space for their own structures.
        let take = |bytes| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes).is_ok();
        (0..HALVINGS).any(|halvings| take(RESERVE.get() >> halvings))
    }
}

/// Frees the space behind the end of a file.
fn take_back(file: &File) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // The space that cannot be freed now is freed when the file is removed.
    let _ = file.metadata().map(|found| rustix::fs::fallocate(file, flags, found.len(), RESERVE.get()));
}
