//! The content of a file that is saved in the image, with its holes.
//!
//! Owns: copying the content into a buffer that is reused between checkpoints, the message with the content, and
//! writing the content into a new file.
//! Invariants: holes are preserved. Content above the limit is refused, and never truncated.
//! Does not: compare with earlier content. The whole content is copied.

#[cfg(test)]
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno as E;
use sys::{Errno, Error, Result};

/// The maximum number of data bytes of one file in an image. Holes do not count. The data is copied inside the pause
/// (while all threads of the program are stopped), and stays in memory until the image is written.
pub(crate) const DATA_BYTES_MAX: u64 = 64 << 20;

/// The content of a file, as a message in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Content {
    /// The length of the file in bytes, including holes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    #[prost(message, repeated, tag = "2")]
    pub extents: Vec<Extent>,
}

/// A range of data without holes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Extent {
    #[prost(uint64, tag = "1")]
    pub offset: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub bytes: Vec<u8>,
}

impl Content {
    /// Writes this content into a new, empty file.
    pub(crate) fn write_to(&self, file: BorrowedFd<'_>) -> Result<()> {
        rustix::fs::ftruncate(file, self.size).map_err(|errno| failed("set the length", errno))?;
        for extent in &self.extents {
            let mut done = 0;
            while done < extent.bytes.len() {
                let at = extent.offset + done as u64;
                match rustix::io::pwrite(file, &extent.bytes[done..], at) {
                    Ok(0) => return Err(failed("write the content", Errno::SHORT)),
                    Ok(count) => done += count,
                    Err(E::INTR) => {}
                    Err(errno) => return Err(failed("write the content", errno)),
                }
            }
        }
        Ok(())
    }
}

/// A buffer for the content of one file.
#[derive(Debug, Default)]
pub(crate) struct ContentCopy {
    size: u64,
    /// The offset in the file and the length of each range of data. The bytes of the ranges follow one another in
    /// `bytes`.
    extents: Vec<(u64, usize)>,
    bytes: Vec<u8>,
}

/// The result of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copied {
    /// The copy is complete.
    Whole,
    /// The file has more data than [`DATA_BYTES_MAX`].
    TooMuch,
}

impl ContentCopy {
    /// Allocates memory for the present content, and touches the memory so that the pause has no page faults. Called
    /// before the pause.
    pub(crate) fn reserve(&mut self, file: BorrowedFd<'_>) -> Result<()> {
        let wanted = data_bytes(file)?.min(DATA_BYTES_MAX) as usize;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        Ok(())
    }

    /// Copies the content. Called inside the pause. `file` must be readable, and must not share its position with the
    /// program.
    pub(crate) fn copy(&mut self, file: BorrowedFd<'_>) -> Result<Copied> {
        self.extents.clear();
        self.size = size(file)?;
        let mut used = 0;
        let mut at = 0;
        while let Some((start, end)) = next_data(file, at, self.size)? {
            let length = (end - start) as usize;
            if (used + length) as u64 > DATA_BYTES_MAX {
                return Ok(Copied::TooMuch);
            }
            if self.bytes.len() < used + length {
                self.bytes.resize(used + length, 0);
            }
            read_exactly(file, start, &mut self.bytes[used..used + length])?;
            self.extents.push((start, length));
            used += length;
            at = end;
        }
        Ok(Copied::Whole)
    }

    /// Creates the message with the copied content. Called after the pause.
    pub(crate) fn message(&self) -> Content {
        let mut from = 0;
        let extents = self.extents.iter().map(|(offset, length)| {
            let bytes = self.bytes[from..from + length].to_vec();
            from += length;
            Extent { offset: *offset, bytes }
        });
        Content { size: self.size, extents: extents.collect() }
    }
}

/// Returns the number of data bytes of a file. Holes do not count. Counting stops above [`DATA_BYTES_MAX`].
pub(crate) fn data_bytes(file: BorrowedFd<'_>) -> Result<u64> {
    let size = size(file)?;
    let (mut total, mut at) = (0, 0);
    while let Some((start, end)) = next_data(file, at, size)? {
        total += end - start;
        at = end;
        if total > DATA_BYTES_MAX {
            break;
        }
    }
    Ok(total)
}

fn size(file: BorrowedFd<'_>) -> Result<u64> {
    Ok(rustix::fs::fstat(file).map_err(|errno| failed("stat", errno))?.st_size as u64)
}

/// Returns the next range of data at or behind `at`. Changes the position of the file.
fn next_data(file: BorrowedFd<'_>, at: u64, size: u64) -> Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(E::NXIO) => return Ok(None),
        Err(E::INVAL) => return Ok(Some((at, size))),
        Err(errno) => return Err(failed("find data", errno)),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(|errno| failed("find a hole", errno))?;
    Ok((start < size).then_some((start, end.min(size))))
}

fn read_exactly(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => return Err(failed("read the content", Errno::SHORT)),
            Ok(count) => done += count,
            Err(E::INTR) => {}
            Err(errno) => return Err(failed("read the content", errno)),
        }
    }
    Ok(())
}

fn failed(operation: &'static str, errno: impl Into<Errno>) -> Error {
    Error::new(format!("{operation} of a file without a name"), errno)
}

/// Reports whether two descriptors of this process have the same content, for assertions. Both descriptors must be
/// readable.
#[cfg(test)]
pub(crate) fn same(first: impl AsFd, second: impl AsFd) -> bool {
    let take = |file: BorrowedFd<'_>| {
        let mut copy = ContentCopy::default();
        assert_eq!(copy.copy(file).unwrap(), Copied::Whole);
        copy.message()
    };
    take(first.as_fd()) == take(second.as_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_preserved() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 30).unwrap();
        file.write_all_at(b"first", 1 << 20).unwrap();
        file.write_all_at(b"second", 32 << 30).unwrap();
        let mut copy = ContentCopy::default();
        copy.reserve(file.as_fd()).unwrap();
        assert_eq!(copy.copy(file.as_fd()).unwrap(), Copied::Whole);
        let again = tempfile::tempfile().unwrap();
        copy.message().write_to(again.as_fd()).unwrap();
        assert!(same(&file, &again));
        let stat = rustix::fs::fstat(&again).unwrap();
        assert_eq!(stat.st_size, 64 << 30);
        assert!(stat.st_blocks < 1000, "{} blocks are used", stat.st_blocks);
    }

    #[test]
    fn content_above_the_limit_is_not_truncated() {
        let file = tempfile::tempfile().unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, DATA_BYTES_MAX + 1).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        let zeros = vec![7_u8; 1 << 20];
        for piece in 0..=64 {
            file.write_all_at(&zeros, piece << 20).unwrap();
        }
        assert!(data_bytes(file.as_fd()).unwrap() > DATA_BYTES_MAX);
        assert_eq!(ContentCopy::default().copy(file.as_fd()).unwrap(), Copied::TooMuch);
    }

    #[test]
    fn an_empty_file_is_copied_as_empty() {
        let file = tempfile::tempfile().unwrap();
        let mut copy = ContentCopy::default();
        assert_eq!(copy.copy(file.as_fd()).unwrap(), Copied::Whole);
        assert_eq!(copy.message(), Content::default());
    }
}
