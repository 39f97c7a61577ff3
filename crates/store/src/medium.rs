//! The file operations that the store needs, as traits. A test can implement these traits without a disk.
//!
//! Owns: the traits `Medium`, `NewFile`, `PageFile`, `PageSource`, `Lock`.
//! Invariants of an implementation: content and names are durable after the sync of their file or directory has
//! returned. Durable data survives a power cut. A caller must not rely on data before the sync. A rename is atomic.
//! Does not: define the order of writes; the modules `staging`, `writer` and `log` do.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use model::ByteCount;
use sys::Result;
use sys::direct_io::Rings;
use sys::page_buffer::PageBuffer;
use sys::part_reader::PartReader;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// The name. Listings omit names that are not UTF-8, because the store creates only UTF-8 names.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_directory: bool,
}

/// The type of the object at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory {
        /// The permission bits of the directory.
        mode: u32,
    },
    /// Any other object.
    File,
}

/// The expected pattern of writes to a file of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// One write of few pages. The caller makes the file durable together with the other small files of the image.
    One,
    /// Many writes. At most this number of writes is in flight at the same time.
    Many(NonZeroUsize),
}

/// A file system, or a simulation of one.
pub trait Medium: Send + Sync + Debug {
    /// Creates a directory with permissions for its owner only. The path must not exist.
    fn create_directory(&self, path: &Path) -> Result<()>;

    /// Creates a small file with permissions for its owner only. The path must not exist.
    fn create_file(&self, path: &Path) -> Result<Box<dyn NewFile>>;

    /// Creates a file of pages with permissions for its owner only. The path must not exist.
    fn create_pages(&self, path: &Path, writes: Writes) -> Result<Box<dyn PageFile>>;

    /// Creates a preallocated file of this length for writes in place, with permissions for its owner only. The path
    /// must not exist. `rings` are those of all files of the log.
    fn create_log(&self, path: &Path, length: ByteCount, rings: &Rings) -> Result<Box<dyn PageFile>>;

    /// Opens a file of pages. Fails if another user can have written to the file. The open file stays readable when
    /// its name is removed.
    fn open_pages(&self, path: &Path) -> crate::error::Result<Box<dyn PageSource>>;

    /// Reads at most `limit` bytes from the start of a file. Fails if another user can have written to the file.
    fn read_file(&self, path: &Path, limit: ByteCount) -> crate::error::Result<Vec<u8>>;

    /// Checks that no other user can have written to a directory. Succeeds if the path does not exist.
    fn check_directory(&self, _path: &Path) -> crate::error::Result<()> {
        Ok(())
    }

    /// Returns the destination if the path is a symbolic link, and the unchanged path otherwise. The operator has
    /// chosen the path.
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_path_buf())
    }

    /// Returns the entries of a directory, in no particular order.
    fn list(&self, path: &Path) -> Result<Vec<Entry>>;

    /// Returns the type of the object at a path; `None` if the path does not exist.
    fn kind(&self, path: &Path) -> Result<Option<Kind>>;

    /// Makes the content of a file durable, whichever descriptor the content was written through.
    fn sync_file(&self, path: &Path) -> Result<()>;

    /// Makes the entries of a directory durable.
    fn sync_directory(&self, path: &Path) -> Result<()>;

    /// Renames a directory. An empty directory at `to` is replaced. Fails if `to` is a directory with entries or a
    /// file.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Creates a hard link to a file. The new path must not exist.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> Result<()>;

    /// Locks a directory until the lock is dropped or the process ends. Returns `None` if another process holds the
    /// lock, or if the directory was removed.
    fn lock(&self, path: &Path) -> Result<Option<Box<dyn Lock>>>;
}

/// A file that is written once, from the beginning to the end.
pub trait NewFile: Send + Debug {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Starts writeback, and returns before the writeback is complete. The call makes a following `sync` faster, and
    /// guarantees nothing.
    fn start_sync(&mut self) -> Result<()>;

    /// Makes the content durable.
    fn sync(&mut self) -> Result<()>;
}

/// A file of pages that is being written.
pub trait PageFile: Send + Debug {
    /// Begins to write the range `part` of a buffer to the file at `offset`. The range consists of whole pages. The
    /// write may still be in flight when the method returns.
    fn submit(&mut self, buffer: PageBuffer, part: Range<ByteCount>, offset: ByteCount) -> Result<()>;

    /// Waits for all earlier writes, then replaces bytes that were written before. The bytes are whole pages.
    fn rewrite(&mut self, bytes: &[u8], offset: ByteCount) -> Result<()>;

    /// Returns a buffer whose write is complete, without waiting. Returns `None` if no submitted write has completed
    /// yet.
    fn take_done(&mut self) -> Result<Option<PageBuffer>>;

    /// Waits until one write is complete, and returns the buffer of this write. Returns `None` if no write is in
    /// flight.
    fn wait_done(&mut self) -> Result<Option<PageBuffer>>;

    /// Starts writeback, and returns before the writeback is complete. The call makes a following `sync` faster, and
    /// guarantees nothing.
    fn start_sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits for all writes and makes the content durable.
    fn sync(&mut self) -> Result<()>;

    /// Waits for all writes, truncates the file to `length`, and makes the content durable.
    fn finish(self: Box<Self>, length: ByteCount) -> Result<()>;
}

/// A file of pages that several threads read at the same time.
pub trait PageSource: Send + Sync + Debug {
    /// Returns the length of the file.
    fn length(&self) -> Result<ByteCount>;

    /// Fills the buffer with the bytes of the file at `offset`. Fails if the file ends before the buffer is full.
    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> Result<()>;

    /// Reads the ranges `parts` of the file. Returns the bytes of all ranges without gaps, in the buffer of `reader`.
    /// The ranges consist of whole pages and are sorted by offset.
    fn read_parts<'a>(&self, parts: &[Range<ByteCount>], reader: &'a mut PartReader) -> Result<&'a [u8]> {
        let total = parts.iter().map(|part| part.end.get() - part.start.get()).sum::<u64>();
        let buffer = reader.buffer(ByteCount(total))?;
        let mut at = 0;
        for part in parts {
            let end = at + (part.end.get() - part.start.get()) as usize;
            self.read(&mut buffer[at..end], part.start)?;
            at = end;
        }
        Ok(&buffer[..at])
    }
}

/// The lock of a directory. Dropping the value releases the lock.
pub trait Lock: Send + Sync + Debug {}
