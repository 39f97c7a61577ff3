//! The identity of a file in an image, independent of the name of the file.
//!
//! Owns: the identity in a record, and comparing the identity with an open file.
//! Invariants: a file that reuses the inode number of a removed file is a different file, if the file system records
//! birth times.
//! Does not: compare contents, or decide how a different file is treated.

use std::os::fd::AsFd;

use prost::Message;
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};
use sys::{Error, Result};

/// The mask of the file type in a mode (S_IFMT).
pub(crate) const FORMAT_MASK: u32 = 0o170_000;

/// Device, inode, type and birth time of a file.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Identity {
    #[prost(uint64, tag = "1")]
    pub(crate) device: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) inode: u64,
    /// The S_IFMT bits.
    #[prost(uint32, tag = "3")]
    pub(crate) format: u32,
    /// The birth time in seconds since 1970. `birth_s` and `birth_ns` are 0 if the file system does not record birth
    /// times.
    #[prost(int64, tag = "4")]
    birth_s: i64,
    #[prost(uint32, tag = "5")]
    birth_ns: u32,
}

impl Identity {
    /// Returns the identity of an open file. An O_PATH descriptor is enough.
    pub(crate) fn of(file: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstat(&file).map_err(|errno| Error::new("stat an open file", errno))?;
        Ok(Self::with(file, &stat))
    }

    /// Returns the identity of an open file whose stat is already known.
    pub(crate) fn with(file: impl AsFd, stat: &Stat) -> Self {
        let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let with_birth =
            found.filter(|found| StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME));
        let (birth_s, birth_ns) =
            with_birth.map_or((0, 0), |found| (found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        let format = stat.st_mode & FORMAT_MASK;
        Self { device: stat.st_dev, inode: stat.st_ino, format, birth_s, birth_ns }
    }

    /// Creates an identity without birth time, for records that store only device and inode.
    pub(crate) fn from_numbers(device: u64, inode: u64, format: FileType) -> Self {
        Self { device, inode, format: format.as_raw_mode(), birth_s: 0, birth_ns: 0 }
    }

    /// Reports whether the identity contains a birth time. Without one, a new file with the inode number of a removed
    /// file cannot be told apart from the removed file.
    pub(crate) fn has_birth(&self) -> bool {
        (self.birth_s, self.birth_ns) != (0, 0)
    }

    /// Reports whether the file is a symbolic link.
    pub(crate) fn is_link(&self) -> bool {
        self.format == FileType::Symlink.as_raw_mode()
    }

    /// Reports whether this recorded identity matches the open file with the identity `now`.
    pub(crate) fn is_that_of(&self, now: &Self) -> bool {
        let names = |one: &Self| (one.device, one.inode, one.format);
        let birth = |one: &Self| (one.birth_s, one.birth_ns);
        names(self) == names(now) && (birth(self) == birth(now) || birth(self) == (0, 0))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_with_another_birth_time_is_another_file() {
        let file = tempfile::tempfile().unwrap();
        let recorded = Identity::of(&file).unwrap();
        assert!(recorded.is_that_of(&Identity::of(&file).unwrap()));
        let later = Identity { birth_s: recorded.birth_s + 1, ..recorded };
        assert!(!Identity { birth_s: 1, ..recorded }.is_that_of(&later));
        let numbers = Identity::from_numbers(recorded.device, recorded.inode, FileType::RegularFile);
        assert!(numbers.is_that_of(&later));
        let directory = File::open(std::env::temp_dir()).unwrap();
        assert!(!recorded.is_that_of(&Identity::of(&directory).unwrap()));
    }
}
