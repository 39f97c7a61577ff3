//! Writing large files past the page cache, several writes in flight.
//!
//! Owns: the io_uring of one file, the buffers in flight on it, O_DIRECT and preallocation.
//! Invariants: a buffer given to `submit` is neither touched nor unmapped until the kernel is done with it;
//! a short write is continued; after `finish` every byte is on the device.
//! Does not: hold a policy on buffer counts, or make the file's directory entry durable.
//!
//! Man page: io_uring(7), open(2) O_DIRECT, fallocate(2), fdatasync(2), sync_file_range(2)
//! Since: Linux 5.6 for IORING_OP_WRITE
//! Probe: `probe_ring`; `features::REGISTRY` entries "io-uring" and "direct-io"
//! Fallback: without io_uring pwrite(2) one by one; without O_DIRECT through the page cache

use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::{IoUring, opcode, types};
use model::{ByteCount, PAGE_BYTES};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::process::Resource;

use crate::error::{Errno, Error, Result};
use crate::feature::{self, Feature};
use crate::page_buffer::PageBuffer;

/// The least space taken ahead of the writes; below it a file is not worth preallocating.
const ALLOCATE_BYTES_MIN: u64 = 16 << 20;

/// The most space taken ahead of the writes; what is left over is given back by `finish`.
const ALLOCATE_BYTES_MAX: u64 = 256 << 20;

/// The most writes in flight; a ring of so many entries costs two pages.
const IN_FLIGHT_MAX: usize = 64;

/// The most times one write is tried again after an interruption: far more than signals can explain.
const RETRIES_MAX: u32 = 1000;

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Method {
    /// Through the page cache.
    Buffered,
    /// With O_DIRECT, one write after the other.
    Direct,
    /// With O_DIRECT, several writes in flight in an io_uring.
    Ring,
}

/// A file being written from page buffers.
#[derive(Debug)]
pub struct DirectWriter {
    /// Before `file`, so that it is dropped first: what it still submits must not meet a reused descriptor.
    ring: Option<Ring>,
    file: File,
    path: PathBuf,
    method: Method,
    done: Vec<PageBuffer>,
    allocated: Option<u64>,
}

impl Method {
    /// The best method that is not switched off.
    #[must_use]
    pub fn best() -> Self {
        match (feature::enabled(Feature::DirectIo), feature::enabled(Feature::IoUring)) {
            (false, _) => Self::Buffered,
            (true, false) => Self::Direct,
            (true, true) => Self::Ring,
        }
    }
}

/// Whether this kernel lets this user have an io_uring.
pub fn probe_ring() -> Result<()> {
    IoUring::new(2).map(drop).map_err(|error| Error::new("create an io_uring", error))
}

/// Starts to write a file's dirty pages to the device without waiting. It makes nothing durable; it saves time where
/// several files are synced one after the other. A file system without it writes everything when synced.
pub fn start_writeback(file: &File) {
    // SAFETY: the descriptor is open for the length of the call; no memory is passed.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

impl DirectWriter {
    /// Creates a file, readable by its owner only, that must not exist yet. `method` is the best to try;
    /// what the kernel or the file system refuses falls back to the next. At most `in_flight` writes are
    /// under way at once.
    pub fn create(path: &Path, method: Method, in_flight: NonZeroUsize) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| Error::path("create", path, error))?;
        Ok(Self::of(file, path, method, in_flight))
    }

    /// Writes to a new, empty file as `create` does. The path is for messages only.
    #[must_use]
    pub fn of(file: File, path: &Path, method: Method, in_flight: NonZeroUsize) -> Self {
        let mut writer =
            Self { file, path: path.to_path_buf(), method, ring: None, done: Vec::new(), allocated: Some(0) };
        if method >= Method::Direct && writer.set_direct(true).is_err() {
            writer.method = Method::Buffered;
        }
        if writer.method == Method::Ring {
            match Ring::new(in_flight.get().min(IN_FLIGHT_MAX)) {
                Ok(ring) => writer.ring = Some(ring),
                Err(_) => writer.method = Method::Direct,
            }
        }
        writer
    }

    /// The method in use; it can only fall.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    /// Gives the file its final length and space on the device now, so that writing inside it changes no
    /// length and cannot run out of space. On a file system without preallocation only the length.
    pub fn reserve(&mut self, length: ByteCount) -> Result<()> {
        self.allocated = None;
        // Growing past the file size limit would raise SIGXFSZ.
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

    /// Writes the first `length` bytes of a buffer at an offset of the file; both whole pages. Waits only
    /// where no further write can be in flight. An error may be that of an earlier buffer.
    pub fn submit(&mut self, buffer: PageBuffer, length: ByteCount, offset: ByteCount) -> Result<()> {
        self.submit_part(buffer, ByteCount(0)..length, offset)
    }

    /// As `submit`, for the bytes in this range of the buffer.
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
        let job = Job { buffer, begin, length, offset: offset.0, written: begin, retries: 0 };
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

    /// A buffer whose write is complete, if there is one now.
    pub fn take_done(&mut self) -> Result<Option<PageBuffer>> {
        if self.done.is_empty() {
            self.reap(Wait::No)?;
        }
        Ok(self.done.pop())
    }

    /// A buffer whose write is complete, waiting for it; `None` when no write is under way.
    pub fn wait_done(&mut self) -> Result<Option<PageBuffer>> {
        while self.done.is_empty() && self.ring.as_ref().is_some_and(|ring| ring.in_flight > 0) {
            self.reap(Wait::ForOne)?;
        }
        Ok(self.done.pop())
    }

    /// Waits for all writes and makes the content durable. Buffers that come back meanwhile are kept for
    /// `take_done`.
    pub fn sync(&mut self) -> Result<()> {
        while self.ring.as_ref().is_some_and(|ring| ring.in_flight > 0) {
            self.reap(Wait::ForOne)?;
        }
        self.file.sync_data().map_err(|error| self.failed("sync", error))
    }

    /// Starts to make durable what went through the page cache, without waiting for it.
    pub fn start_sync(&self) {
        if self.method == Method::Buffered {
            start_writeback(&self.file);
        }
    }

    /// Waits for all writes, cuts the file to `length` and makes its content durable.
    pub fn finish(mut self, length: ByteCount) -> Result<()> {
        while self.wait_done()?.is_some() {}
        self.file.set_len(length.0).map_err(|error| self.failed("cut to size", error))?;
        self.file.sync_data().map_err(|error| self.failed("sync", error))
    }

    /// Takes space for the write and some more ahead, so that writes that do not grow the file can run side
    /// by side. Purely for speed: where it fails, the writes themselves report what is wrong.
    fn allocate(&mut self, offset: u64, length: u64) {
        let (Some(allocated), true) = (self.allocated, offset > 0) else { return };
        if offset + length <= allocated || self.method == Method::Buffered {
            return;
        }
        let ahead = (offset * 2).clamp(ALLOCATE_BYTES_MIN, ALLOCATE_BYTES_MAX).max(length);
        // Growing past the file size limit would raise SIGXFSZ for space that may never be needed.
        let limit = rustix::process::getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let took = offset + ahead <= limit
            && rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, ahead).is_ok();
        self.allocated = took.then_some(offset + ahead);
    }

    fn reap(&mut self, wait: Wait) -> Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        if ring.in_flight == 0 {
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
                // The file system took O_DIRECT at open, but not these writes.
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

    /// From now on through the page cache; writes in the ring are still collected from there.
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForOne,
}

/// A write of `buffer[begin..length]` at `offset`, of which the bytes before `written` are done.
#[derive(Debug)]
struct Job {
    buffer: PageBuffer,
    begin: usize,
    length: usize,
    offset: u64,
    written: usize,
    retries: u32,
}

impl Job {
    /// Where the next byte goes.
    const fn place(&self) -> u64 {
        self.offset + (self.written - self.begin) as u64
    }

    /// Whether to try again after this error: an interruption, and not one too many. The kernel cancels what
    /// is queued when the thread that submitted it exits.
    fn may_retry(&mut self, errno: Errno) -> bool {
        self.retries += 1;
        matches!(errno, Errno(libc::EINTR | libc::EAGAIN | libc::ECANCELED)) && self.retries <= RETRIES_MAX
    }
}

/// The ring and the jobs the kernel may be reading from. A job's slot is its completion's user data.
struct Ring {
    ring: IoUring,
    slots: Box<[Option<Job>]>,
    in_flight: usize,
}

impl Ring {
    fn new(slots: usize) -> std::io::Result<Self> {
        let ring = IoUring::new(slots.next_power_of_two() as u32)?;
        Ok(Self { ring, slots: std::iter::repeat_with(|| None).take(slots).collect(), in_flight: 0 })
    }

    const fn is_full(&self) -> bool {
        self.in_flight == self.slots.len()
    }

    /// Starts the rest of a job. The caller has checked that a slot is free.
    fn start(&mut self, file: &File, job: Job) -> std::result::Result<(), Errno> {
        let slot = self.slots.iter().position(Option::is_none).ok_or(Errno(libc::EBUSY))?;
        let rest = &job.buffer[job.written..job.length];
        let length = u32::try_from(rest.len()).map_err(|_| Errno::EINVAL)?;
        let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), rest.as_ptr(), length)
            .offset(job.place())
            .build()
            .user_data(slot as u64);
        // SAFETY: the entry points into `job.buffer`, a mapping of its own that moving the job does not move.
        // The job stays in its slot until its completion is seen; should this value be dropped before, `drop`
        // waits for all completions or leaks the buffers. The file outlives the ring in `DirectWriter`.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
        self.slots[slot] = Some(job);
        self.in_flight += 1;
        self.enter(0)
    }

    /// Waits until a completion can be had.
    fn wait(&mut self) -> std::result::Result<(), Errno> {
        self.enter(1)
    }

    fn enter(&mut self, wanted: usize) -> std::result::Result<(), Errno> {
        loop {
            match self.ring.submit_and_wait(wanted) {
                Ok(_) => return Ok(()),
                Err(error) => match Errno::from(error) {
                    Errno(libc::EINTR) => {}
                    errno => return Err(errno),
                },
            }
        }
    }

    /// A job that has left the kernel, and the bytes written.
    fn next_completion(&mut self) -> Option<(Job, std::result::Result<usize, Errno>)> {
        let entry = self.ring.completion().next()?;
        let job = self.slots.get_mut(entry.user_data() as usize)?.take()?;
        self.in_flight -= 1;
        let result = usize::try_from(entry.result()).map_err(|_| Errno(-entry.result()));
        Some((job, result))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait().is_err() {
                // The kernel may still be reading these buffers: never unmap them.
                self.slots.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
                return;
            }
            while self.next_completion().is_some() {}
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
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
}
