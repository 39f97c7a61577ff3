//! The file operations for storing an image, so that a test can replace the disk.
//!
//! Owns: the traits `Medium`, `NewFile`, `PageFile`, `PageSource`, `Lock`.
//! Invariants of an implementation: nothing is durable before the matching sync has returned; afterwards it survives a
//! power cut. A rename is atomic.
//! Does not: define the order of writes; `publish` and `writer` do.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};

use model::ByteCount;
use sys::Result;
use sys::page_buffer::PageBuffer;
use sys::part_reader::PartReader;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// The name; one that is not UTF-8 is none of ours and is left out of listings.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory.
    Directory {
        /// Its permission bits.
        mode: u32,
    },
    /// Anything else.
    File,
}

/// How a file of pages is going to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// Few pages at once, to be made durable together with other small files.
    One,
    /// With at most so many writes under way.
    Many(NonZeroUsize),
}

/// Something that holds directories and files.
pub trait Medium: Send + Sync + Debug {
    /// Creates a directory for its owner only; it must not exist.
    fn create_directory(&self, path: &Path) -> Result<()>;

    /// Creates a small file for its owner only; it must not exist.
    fn create_file(&self, path: &Path) -> Result<Box<dyn NewFile>>;

    /// Creates a file of pages for its owner only; it must not exist.
    fn create_pages(&self, path: &Path, writes: Writes) -> Result<Box<dyn PageFile>>;

    /// Creates a file of this length for its owner only, its space taken, to be written in place; it must not
    /// exist.
    fn create_log(
        &self,
        path: &Path,
        length: ByteCount,
        in_flight: NonZeroUsize,
    ) -> Result<Box<dyn PageFile>>;

    /// Opens a file of pages, if no other user can have written it. It stays readable after it has been removed.
    fn open_pages(&self, path: &Path) -> crate::error::Result<Box<dyn PageSource>>;

    /// The first bytes of a file, at most `limit`, if no other user can have written it.
    fn read_file(&self, path: &Path, limit: ByteCount) -> crate::error::Result<Vec<u8>>;

    /// Checks that no other user can have written to a directory. Succeeds if nothing is there.
    fn check_directory(&self, _path: &Path) -> crate::error::Result<()> {
        Ok(())
    }

    /// The path that a path given by the operator leads to if it is a symbolic link; otherwise the same path.
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_path_buf())
    }

    /// The names in a directory, in no order.
    fn list(&self, path: &Path) -> Result<Vec<Entry>>;

    /// What a path leads to; `None` when to nothing.
    fn kind(&self, path: &Path) -> Result<Option<Kind>>;

    /// Makes what others have written to a file durable.
    fn sync_file(&self, path: &Path) -> Result<()>;

    /// Makes a directory's entries durable.
    fn sync_directory(&self, path: &Path) -> Result<()>;

    /// Gives a directory another name. An empty directory there is replaced, anything else is an error.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Gives a file a second name, which must not exist.
    fn link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> Result<()>;

    /// Takes a directory for this writer until the lock is dropped or the process ends; `None` when another
    /// has it, or when it is gone.
    fn lock(&self, path: &Path) -> Result<Option<Box<dyn Lock>>>;
}

/// A file being written once, from the beginning to the end.
pub trait NewFile: Send + Debug {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Begins to make the content durable without waiting for it; only for speed.
    fn start_sync(&mut self) -> Result<()>;

    /// Makes the content durable.
    fn sync(&mut self) -> Result<()>;
}

/// A file of pages being written.
pub trait PageFile: Send + Debug {
    /// Writes a part of a buffer at an offset, possibly later; all whole pages.
    fn submit(&mut self, buffer: PageBuffer, part: Range<ByteCount>, offset: ByteCount) -> Result<()>;

    /// A buffer that has been written, if there is one now.
    fn take_done(&mut self) -> Result<Option<PageBuffer>>;

    /// A buffer that has been written, waiting for it; `None` when no write is under way.
    fn wait_done(&mut self) -> Result<Option<PageBuffer>>;

    /// Begins to make the content durable without waiting for it; only for speed.
    fn start_sync(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits for all writes and makes the content durable.
    fn sync(&mut self) -> Result<()>;

    /// As `sync`, at this length.
    fn finish(self: Box<Self>, length: ByteCount) -> Result<()>;
}

/// A file of pages being read, by several threads at once.
pub trait PageSource: Send + Sync + Debug {
    /// The length of the file.
    fn length(&self) -> Result<ByteCount>;

    /// Fills the buffer from an offset; a file that ends before is an error.
    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> Result<()>;

    /// Reads parts, whole pages, rising, one behind the other into the reader's buffer.
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

/// A directory held by one writer.
pub trait Lock: Send + Sync + Debug {}
