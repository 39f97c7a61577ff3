//! The copy of a mapped file.
//!
//! Owns: the descriptors of file and copy, copying the whole file, and the pages of the file that are dirty.
//! Invariants: no other program has the copy open.
//! Does not: know which pages have changed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use model::ByteCount;
use rustix::io::Errno;
use sys::writeback;

use crate::descriptor::{data_behind, read_at};
use crate::error::Result;

pub(crate) const PAGE: u64 = 4096;
/// Bytes that one read requests.
const BLOCK: usize = 1 << 20;

/// A mapped file and its copy.
#[derive(Debug)]
pub(crate) struct Shadow {
    file: OwnedFd,
    copy: File,
    /// The path of the copy, in a keep directory.
    pub(crate) path: PathBuf,
    /// The path of the mapped file, for messages.
    pub(crate) name: PathBuf,
}

impl Shadow {
    pub(crate) fn new(file: OwnedFd, name: PathBuf, (copy, path): (File, PathBuf)) -> Self {
        Self { file, copy, path, name }
    }

    /// Returns the length of the file in bytes.
    pub(crate) fn file_length(&self) -> Result<u64> {
        let found = rustix::fs::fstat(&self.file);
        Ok(found.map_err(|errno| self.failed("inspect", &self.name, errno))?.st_size as u64)
    }

    /// Copies at most `bytes` bytes of the file from an offset on. Returns the offset for the next call, and whether this
    /// offset is the end of the file. Content that changes meanwhile can be copied before or after the change.
    pub(crate) fn copy_from(&self, offset: u64, bytes: u64) -> Result<(u64, bool)> {
        let mut buffer = vec![0; BLOCK];
        let length = self.file_length()?;
        let size = length.min(offset.saturating_add(bytes));
        let mut at = offset;
        while at < size {
            let (data, end) = data_behind(&self.file, at, size)?;
            let mut from = data;
            while from < end {
                let room = ((end - from) as usize).min(BLOCK);
                let read = self.read(&mut buffer[..room], from)?;
                if read == 0 {
                    break;
                }
                self.write(&buffer[..read], from)?;
                from += read as u64;
            }
            at = end.max(data);
        }
        if at >= length {
            self.resize(at)?;
        }
        Ok((at, at >= length))
    }

    /// Reads from the file. Returns fewer bytes than requested only at the end of the file.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        read_at(&self.file, buffer, offset).map_err(|errno| self.failed("read", &self.name, errno))
    }

    /// Reads from the copy. Returns fewer bytes than requested only at the end of the copy.
    pub(crate) fn read_copy(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        read_at(&self.copy, buffer, offset).map_err(|errno| self.failed("read", &self.path, errno))
    }

    /// Writes to the copy.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.copy.write_all_at(bytes, offset);
        written.map_err(|error| sys::Error::path("write", &self.path, error).into())
    }

    /// Sets the length of the copy.
    pub(crate) fn resize(&self, size: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.copy, size).map_err(|errno| self.failed("resize", &self.path, errno))
    }

    /// Returns those of the given pages that are not dirty, as ranges.
    pub(crate) fn clean(&self, runs: Vec<(u64, u64)>) -> Result<Vec<(u64, u64)>> {
        let mut clean = Vec::new();
        let mut left = runs;
        while let Some((first, end)) = left.pop() {
            let pages = end - first;
            let dirty = writeback::dirty_pages(&self.file, ByteCount(first * PAGE), ByteCount(pages * PAGE))?;
            if dirty == 0 {
                clean.push((first, end));
            } else if dirty < pages {
                let middle = first + pages / 2;
                left.extend([(first, middle), (middle, end)]);
            }
        }
        Ok(clean)
    }

    /// Starts to write pages of the file back.
    pub(crate) fn write_back(&self, (first, end): (u64, u64)) -> Result<()> {
        Ok(writeback::start(&self.file, ByteCount(first * PAGE), ByteCount((end - first) * PAGE))?)
    }

    fn failed(&self, what: &'static str, path: &Path, errno: Errno) -> crate::UndoError {
        sys::Error::path(what, path, errno).into()
    }
}
