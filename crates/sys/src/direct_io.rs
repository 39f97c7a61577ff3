//! Writes large files with O_DIRECT, past the page cache. Several writes can be *in flight* (not yet complete).
//!
//! Owns: the writes to one file, O_DIRECT and preallocation.
//! Invariants: a buffer that was passed to `submit` is neither changed nor unmapped until its write is complete. A
//! short write is continued. After `finish`, every byte is on the device.
//! Does not: decide the number of buffers, or make the directory entry of the file durable.
//!
//! Man page: io_uring(7), open(2) O_DIRECT, fallocate(2), fdatasync(2), sync_file_range(2)
//! Since: Linux 5.6 for IORING_OP_WRITE
//! Probe: `probe_ring`; `features::REGISTRY` entries "io-uring" and "direct-io"
//! Fallback: without io_uring, one pwrite(2) after the other; without O_DIRECT, writes through the page cache

use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::IoUring;
use model::{ByteCount, PAGE_BYTES};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::process::Resource;

use crate::error::{Errno, Error, Result};
use crate::feature::{self, Feature};
use crate::page_buffer::PageBuffer;
use crate::write_ring::{Job, Ring};

pub use crate::write_ring::Rings;

/// Minimum number of bytes that are preallocated at a time.
const ALLOCATE_BYTES_MIN: u64 = 16 << 20;

/// Maximum number of bytes that are preallocated ahead of the writes. `finish` frees the unused space.
const ALLOCATE_BYTES_MAX: u64 = 256 << 20;

/// The method of writing a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Method {
    /// Through the page cache.
    Buffered,
    /// With O_DIRECT, one write after the other.
    Direct,
    /// With O_DIRECT, several writes in flight in an io_uring.
    Ring,
}

/// A writer that writes page buffers to one file.
#[derive(Debug)]
pub struct DirectWriter {
    /// Declared before `file`, so that the ring is dropped before the file is closed. After the close, a write
    /// could go to a reused fd.
    ring: Option<Ring>,
    file: File,
    path: PathBuf,
    method: Method,
    done: Vec<PageBuffer>,
    allocated: Option<u64>,
    rings: Rings,
}

impl Method {
    /// Returns the best method that is not turned off.
    #[must_use]
    pub fn best() -> Self {
        match (feature::enabled(Feature::DirectIo), feature::enabled(Feature::IoUring)) {
            (false, _) => Self::Buffered,
            (true, false) => Self::Direct,
            (true, true) => Self::Ring,
        }
    }
}

/// Checks whether the kernel lets this user create an io_uring.
pub fn probe_ring() -> Result<()> {
    IoUring::new(2).map(drop).map_err(|error| Error::new("create an io_uring", error))
}

/// Starts writing the dirty pages of a file to the device, without waiting. The call makes no data durable. The
/// call saves time if several files are synced one after the other. If the file system does not support the call,
/// each sync writes all pages.
pub fn start_writeback(file: &File) {
    // SAFETY: the descriptor is open during the call, and the call takes no pointer.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

impl DirectWriter {
    /// Creates a file that must not exist yet. Only the owner may read and write the file. `method` is the best
    /// method to try. If the kernel or the file system refuses a method, the next lower method is used. At most
    /// `in_flight` writes are in flight at a time.
    pub fn create(path: &Path, method: Method, in_flight: NonZeroUsize) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| Error::path("create", path, error))?;
        Ok(Self::of(file, path, method, &Rings::new(in_flight)))
    }

    /// Creates a writer for a new, empty file. `method` is used as in [`Self::create`]. `path` is used only in error
    /// messages.
    #[must_use]
    pub fn of(file: File, path: &Path, method: Method, rings: &Rings) -> Self {
        let (path, rings) = (path.to_path_buf(), rings.clone());
        let mut writer = Self { file, path, method, ring: None, done: Vec::new(), allocated: Some(0), rings };
        if method >= Method::Direct && writer.set_direct(true).is_err() {
            writer.method = Method::Buffered;
        }
        if writer.method == Method::Ring {
            match writer.rings.take_or_make() {
                Ok(ring) => writer.ring = Some(ring),
                Err(_) => writer.method = Method::Direct,
            }
        }
        writer
    }

    /// Returns the method in use. A method can only be replaced by a lower method.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// Gives the file its final length, and allocates its space on the device. Writes inside this length do not
    /// change the length and cannot run out of space. On a file system without preallocation, only the length is
    /// set.
    pub fn reserve(&mut self, length: ByteCount) -> Result<()> {
        self.allocated = None;
        // An allocation beyond the file size limit would raise SIGXFSZ.
        let limit = rustix::process::getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if length.0 > limit {
            return Err(self.failed("reserve", rustix::io::Errno::FBIG));
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length.0) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                self.file.set_len(length.0).map_err(|error| self.failed("reserve", error))
            }
            result => result.map_err(|errno| self.failed("reserve", errno)),
        }
    }

    /// Writes the first `length` bytes of a buffer at `offset` of the file. Both numbers must be multiples of the
    /// page size. The call waits for the write. With [`Method::Ring`], the call waits only if the maximum number of
    /// writes is in flight. A returned error can be the error of an earlier write.
    pub fn submit(&mut self, buffer: PageBuffer, length: ByteCount, offset: ByteCount) -> Result<()> {
        self.submit_part(buffer, ByteCount(0)..length, offset)
    }

    /// Writes the bytes in `range` of the buffer, otherwise like `submit`.
    pub fn submit_part(
        &mut self,
        buffer: PageBuffer,
        range: Range<ByteCount>,
        offset: ByteCount,
    ) -> Result<()> {
        let aligned = [range.start, range.end, offset].iter().all(|at| at.0.is_multiple_of(PAGE_BYTES));
        if !aligned || range.end > buffer.size() || range.start >= range.end {
            return Err(self.failed("write", Errno::EINVAL));
        }
        let (begin, length) = (range.start.0 as usize, range.end.0 as usize);
        let job = Job::new(buffer, begin..length, offset.0);
        self.allocate(offset.0, (length - begin) as u64);
        if self.ring.is_none() {
            return self.write_here(job);
        }
        self.reap(Wait::No)?;
        while let Some(ring) = &self.ring
            && ring.is_full()
        {
            self.reap(Wait::ForOne)?;
        }
        match &mut self.ring {
            Some(ring) if self.method == Method::Ring => {
                ring.start(&self.file, job).map_err(|errno| self.failed("write", errno))
            }
            _ => self.write_here(job),
        }
    }

    /// Waits for all earlier writes, then replaces bytes of the file that were written before. From then on, all writes
    /// go through the page cache, because replaced bytes are often single pages.
    pub fn rewrite(&mut self, bytes: &[u8], offset: ByteCount) -> Result<()> {
        self.wait_for_all()?;
        if self.method > Method::Buffered {
            self.go_buffered()?;
        }
        self.file.write_all_at(bytes, offset.0).map_err(|error| self.failed("write", error))
    }

    fn wait_for_all(&mut self) -> Result<()> {
        while self.ring.as_ref().is_some_and(|ring| !ring.is_idle()) {
            self.reap(Wait::ForOne)?;
        }
        Ok(())
    }

    /// Returns a buffer whose write is complete. Returns `None` without waiting if no write is complete.
    pub fn take_done(&mut self) -> Result<Option<PageBuffer>> {
        if self.done.is_empty() {
            self.reap(Wait::No)?;
        }
        Ok(self.done.pop())
    }

    /// Waits for a buffer whose write is complete, and returns the buffer. Returns `None` if no write is in flight.
    pub fn wait_done(&mut self) -> Result<Option<PageBuffer>> {
        while self.done.is_empty() && self.ring.as_ref().is_some_and(|ring| !ring.is_idle()) {
            self.reap(Wait::ForOne)?;
        }
        Ok(self.done.pop())
    }

    /// Waits for all writes, and makes the content durable. After that, `take_done` returns the buffers.
    pub fn sync(&mut self) -> Result<()> {
        self.wait_for_all()?;
        self.file.sync_data().map_err(|error| self.failed("sync", error))
    }

    /// Starts the writeback of written data from the page cache, without waiting.
    pub fn start_sync(&self) {
        if self.method == Method::Buffered {
            start_writeback(&self.file);
        }
    }

    /// Waits for all writes, truncates the file to `length`, and makes the content durable.
    pub fn finish(mut self, length: ByteCount) -> Result<()> {
        while self.wait_done()?.is_some() {}
        self.file.set_len(length.0).map_err(|error| self.failed("cut to size", error))?;
        self.file.sync_data().map_err(|error| self.failed("sync", error))
    }

    /// Allocates space for this and the following writes. Writes to allocated space do not extend the file, and can
    /// run in parallel. If the allocation fails, the writes are only slower.
    fn allocate(&mut self, offset: u64, length: u64) {
        let (Some(allocated), true) = (self.allocated, offset > 0) else { return };
        if offset + length <= allocated || self.method == Method::Buffered {
            return;
        }
        let ahead = (offset * 2).clamp(ALLOCATE_BYTES_MIN, ALLOCATE_BYTES_MAX).max(length);
        // An allocation beyond the file size limit would raise SIGXFSZ, although the space may never be needed.
        let limit = rustix::process::getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let took = offset + ahead <= limit
            && rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, ahead).is_ok();
        self.allocated = took.then_some(offset + ahead);
    }

    fn reap(&mut self, wait: Wait) -> Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        if ring.is_idle() {
            return Ok(());
        }
        if wait == Wait::ForOne {
            let waited = ring.wait();
            waited.map_err(|errno| self.failed("wait for a write", errno))?;
        }
        while let Some((mut job, result)) = self.ring.as_mut().and_then(Ring::next_completion) {
            match result {
                Ok(count) if count > 0 => job.written += count,
                Ok(_) => return Err(self.failed("write", Errno::SHORT)),
                Err(errno) if job.may_retry(errno) => {}
                // The file system accepted the flag O_DIRECT, but does not accept this write.
                Err(errno) if errno == Errno::EINVAL && self.method > Method::Buffered => {
                    self.go_buffered()?
                }
                Err(errno) => return Err(self.failed("write", errno)),
            }
            if job.written >= job.length {
                self.done.push(job.buffer);
            } else if let Some(ring) = &mut self.ring
                && self.method == Method::Ring
            {
                ring.start(&self.file, job).map_err(|errno| self.failed("write", errno))?;
            } else {
                self.write_here(job)?;
            }
        }
        Ok(())
    }

    fn write_here(&mut self, mut job: Job) -> Result<()> {
        while job.written < job.length {
            let bytes = &job.buffer[job.written..job.length];
            match self.file.write_at(bytes, job.place()).map_err(Errno::from) {
                Ok(0) => return Err(self.failed("write", Errno::SHORT)),
                Ok(count) => job.written += count,
                Err(errno) if job.may_retry(errno) => {}
                Err(errno) if errno == Errno::EINVAL && self.method > Method::Buffered => {
                    self.go_buffered()?
                }
                Err(errno) => return Err(self.failed("write", errno)),
            }
        }
        self.done.push(job.buffer);
        Ok(())
    }

    /// Switches to writes through the page cache. Writes in flight stay in the ring until they are complete.
    fn go_buffered(&mut self) -> Result<()> {
        self.method = Method::Buffered;
        self.set_direct(false).map_err(|errno| self.failed("leave O_DIRECT of", errno))
    }

    fn set_direct(&self, on: bool) -> std::result::Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        let wanted = if on { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
        Ok(rustix::fs::fcntl_setfl(&self.file, wanted)?)
    }

    fn failed(&self, operation: &'static str, errno: impl Into<Errno>) -> Error {
        Error::path(operation, &self.path, errno)
    }
}

impl Drop for DirectWriter {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take_if(|ring| ring.is_idle()) {
            self.rings.keep(ring);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForOne,
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    fn scratch(place: &str, name: &str) -> PathBuf {
        let path = Path::new(place).join(format!("undying-direct-io-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn filled(value: u8, pages: u64) -> PageBuffer {
        let mut buffer = PageBuffer::new(ByteCount(pages * PAGE_BYTES)).unwrap();
        buffer.fill(value);
        buffer
    }

    fn writes_and_reads_back(path: &Path, method: Method) -> Method {
        let mut writer = DirectWriter::create(path, method, IN_FLIGHT).unwrap();
        let mut expected = Vec::new();
        for value in 1..=40u8 {
            let pages = u64::from(value % 3 + 1);
            let offset = ByteCount(expected.len() as u64);
            writer.submit(filled(value, 4), ByteCount(pages * PAGE_BYTES), offset).unwrap();
            expected.resize(expected.len() + (pages * PAGE_BYTES) as usize, value);
        }
        let mut back = 0;
        while let Some(buffer) = writer.wait_done().unwrap() {
            assert_eq!(buffer.size(), ByteCount(4 * PAGE_BYTES));
            back += 1;
        }
        assert_eq!(back, 40, "every buffer comes back");
        let used = writer.method();
        writer.finish(ByteCount(expected.len() as u64)).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), expected);
        std::fs::remove_file(path).unwrap();
        used
    }

    #[test]
    fn every_method_writes_the_same_bytes() {
        let disk = std::env::temp_dir();
        let disk = disk.to_str().unwrap();
        for method in [Method::Buffered, Method::Direct, Method::Ring] {
            let used = writes_and_reads_back(&scratch(disk, &format!("{method:?}")), method);
            assert!(used <= method);
        }
    }

    #[test]
    fn a_file_system_without_direct_io_is_written_through_the_cache() {
        writes_and_reads_back(&scratch("/dev/shm", "shm"), Method::Ring);
        let path = scratch("/dev/shm", "fall");
        let mut writer = DirectWriter::create(&path, Method::Ring, IN_FLIGHT).unwrap();
        writer.submit(filled(9, 1), ByteCount(4096), ByteCount(0)).unwrap();
        writer.go_buffered().unwrap();
        writer.submit(filled(8, 1), ByteCount(4096), ByteCount(4096)).unwrap();
        while writer.wait_done().unwrap().is_some() {}
        assert_eq!(writer.method(), Method::Buffered);
        writer.finish(ByteCount(8192)).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((bytes[0], bytes[4096], bytes.len()), (9, 8, 8192));
    }

    #[test]
    fn a_reserved_file_is_written_in_parts_and_keeps_its_length() {
        for method in [Method::Buffered, Method::Direct, Method::Ring] {
            let path = scratch(std::env::temp_dir().to_str().unwrap(), &format!("reserved-{method:?}"));
            let mut writer = DirectWriter::create(&path, method, IN_FLIGHT).unwrap();
            writer.reserve(ByteCount(16 * PAGE_BYTES)).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 * PAGE_BYTES);
            let mut buffer = filled(1, 4);
            buffer[2 * PAGE_BYTES as usize..].fill(2);
            let pages = |count| ByteCount(count * PAGE_BYTES);
            writer.submit_part(buffer, pages(1)..pages(3), pages(5)).unwrap();
            writer.sync().unwrap();
            assert!(writer.take_done().unwrap().is_some(), "sync keeps the buffers");
            let bytes = std::fs::read(&path).unwrap();
            let firsts: Vec<u8> = bytes.chunks(PAGE_BYTES as usize).map(|page| page[4095]).collect();
            assert_eq!(firsts, [0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_buffer_in_flight_survives_the_writer() {
        let path = scratch(std::env::temp_dir().to_str().unwrap(), "dropped");
        let mut writer = DirectWriter::create(&path, Method::Ring, IN_FLIGHT).unwrap();
        for place in 0..4 {
            writer.submit(filled(5, 256), ByteCount(1 << 20), ByteCount(place << 20)).unwrap();
        }
        drop(writer);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(bytes[..4 << 20].iter().all(|byte| *byte == 5));
    }

    #[test]
    fn a_full_device_and_bad_arguments_are_errors() {
        let path = scratch(std::env::temp_dir().to_str().unwrap(), "bad");
        let mut writer = DirectWriter::create(&path, Method::Ring, IN_FLIGHT).unwrap();
        for (length, offset) in [(100, 0), (0, 0), (8192, 0), (4096, 100)] {
            let result = writer.submit(filled(1, 1), ByteCount(length), ByteCount(offset));
            assert_eq!(result.unwrap_err().errno, Errno::EINVAL);
        }
        assert_eq!(
            DirectWriter::create(&path, Method::Ring, IN_FLIGHT).unwrap_err().errno,
            Errno::EEXIST,
            "an existing file is never overwritten"
        );
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_closed_file_leaves_its_ring_to_the_next_one() {
        let rings = Rings::new(IN_FLIGHT);
        let open = |name: &str| {
            let path = scratch(".", name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
            (DirectWriter::of(file, &path, Method::Ring, &rings), path)
        };
        let has_unused = || rings.unused().is_some();
        let (mut files, paths): (Vec<_>, Vec<_>) = ["first", "second", "third"].map(open).into_iter().unzip();
        if files[0].method() != Method::Ring {
            println!("unsupported: io_uring");
            return;
        }
        for (number, file) in files.iter_mut().enumerate() {
            let offset = ByteCount(number as u64 * PAGE_BYTES);
            file.submit(filled(7, 1), ByteCount(PAGE_BYTES), offset).unwrap();
        }
        assert!(!has_unused());
        files.drain(1..).for_each(|mut file| file.sync().unwrap());
        assert!(has_unused());
        let first = files.pop().unwrap();
        first.finish(ByteCount(PAGE_BYTES)).unwrap();
        assert!(has_unused());
        let (mut next, path) = open("next");
        assert!(!has_unused(), "it was taken");
        next.submit(filled(9, 1), ByteCount(PAGE_BYTES), ByteCount(0)).unwrap();
        next.finish(ByteCount(PAGE_BYTES)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![9; PAGE_BYTES as usize]);
        paths.iter().chain([&path]).for_each(|path| std::fs::remove_file(path).unwrap());
    }
}
