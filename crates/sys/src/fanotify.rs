//! Receives events before the content of a file changes, by fanotify(7).
//!
//! A fanotify *group* is a descriptor from which events are read. A *mark* on a file or on a mount selects
//! the files whose events the group receives. Before a thread accesses the content of such a file, the kernel
//! sends an event to the group. The thread waits until the event is *answered*.
//!
//! Owns: fanotify_init(2) and fanotify_mark(2) for groups that receive events before an access
//! (FAN_CLASS_PRE_CONTENT), reading events, and answering events; groups with other flags ([`group`]).
//! Invariants: dropping an [`Event`] answers the event. When the last descriptor of a group is closed, all
//! waiting accesses happen. An open file description reports events only if the file or its mount had a mark
//! when the file was opened. A mark with an *ignore mask*, which suppresses all events of the mark, is
//! sufficient.
//! Does not: distinguish reads from writes, or report writes to mapped memory.
//!
//! Man page: fanotify(7), fanotify_init(2), fanotify_mark(2)
//! Since: Linux 6.14 (FAN_PRE_ACCESS; ext4, XFS, Btrfs)
//! Probe: `features::REGISTRY` entry "file-content"
//! Fallback: none; files whose content is overwritten are not rolled back with the program

use std::ffi::CString;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::ptr;

use model::{ByteCount, Pid};

use crate::error::{Errno, Error, Result, owned};

pub mod group;

/// FAN_PRE_ACCESS.
const PRE_ACCESS: u64 = 0x0010_0000;
/// FAN_EVENT_INFO_TYPE_RANGE.
const INFO_RANGE: u8 = 6;
const METADATA_VERSION: u8 = 3;
/// Size of the buffer for one read of events, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

const GROUP_FLAGS: libc::c_uint =
    libc::FAN_CLASS_PRE_CONTENT | libc::FAN_CLOEXEC | libc::FAN_UNLIMITED_QUEUE | libc::FAN_UNLIMITED_MARKS;
const FILE_FLAGS: i32 = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
const ADD: libc::c_uint = libc::FAN_MARK_ADD;
const REMOVE: libc::c_uint = libc::FAN_MARK_REMOVE;
const IGNORED: libc::c_uint = libc::FAN_MARK_IGNORED_MASK;
const SURVIVING: libc::c_uint = libc::FAN_MARK_IGNORED_SURV_MODIFY;

/// `struct fanotify_event_metadata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Metadata {
    event_length: u32,
    version: u8,
    reserved: u8,
    metadata_length: u16,
    mask: u64,
    descriptor: i32,
    pid: i32,
}

const _: () = assert!(size_of::<Metadata>() == 24);
const _: () = assert!(offset_of!(Metadata, descriptor) == 16);

/// `struct fanotify_event_info_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RangeInfo {
    kind: u8,
    pad: u8,
    length: u16,
    pad_of_range: u32,
    offset: u64,
    count: u64,
}

const _: () = assert!(size_of::<RangeInfo>() == 24);
const _: () = assert!(offset_of!(RangeInfo, offset) == 8);

/// `struct fanotify_response`.
#[repr(C)]
struct Response {
    descriptor: i32,
    answer: u32,
}

const _: () = assert!(size_of::<Response>() == 8);
const _: () = assert!(offset_of!(Response, answer) == 4);

/// A fanotify group that reports accesses to marked files before the accesses happen.
#[derive(Debug)]
pub struct ContentEvents {
    group: OwnedFd,
}

/// The bytes that an event concerns, in whole pages. For a write with O_APPEND, the offset is 0, and the
/// length is the length of the write. For a truncation, the range is one page at the new end of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventRange {
    /// The offset of the first byte.
    pub offset: ByteCount,
    /// The number of bytes.
    pub length: ByteCount,
}

/// An access to a watched file that waits for an answer. Dropping the event lets the access happen.
#[derive(Debug)]
pub struct Event<'a> {
    group: BorrowedFd<'a>,
    file: OwnedFd,
    pid: Pid,
    range: Option<EventRange>,
}

/// Returns the events of a group one by one. The reader reads several events at once into a buffer. Dropping
/// the reader answers all events that are still in the buffer.
#[derive(Debug)]
pub struct EventReader<'a> {
    group: BorrowedFd<'a>,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

/// A fanotify group with marks on mounts. The ignore masks of these marks suppress all events. But a file
/// that is opened while its mount is marked can report events to a [`ContentEvents`] group.
#[derive(Debug)]
pub struct Enabler {
    group: OwnedFd,
}

impl ContentEvents {
    /// Creates a group without marks. `enabler` marks the mounts of the files that this group will watch.
    ///
    /// This group must be closed before `enabler`. An access that waits for an answer of this group holds the
    /// marks of both groups. Closing `enabler` would wait for the end of the access, without answering the
    /// event. Closing this group answers the event.
    ///
    /// When a process dies, the kernel releases its descriptors from the highest fd to the lowest
    /// (task_work_run, Linux 6.18). So this group gets a higher fd than `enabler`.
    ///
    /// # Errors
    ///
    /// Returns EPERM without CAP_SYS_ADMIN.
    pub fn new(enabler: &Enabler) -> Result<Self> {
        let group = create()?;
        let above = rustix::io::fcntl_dupfd_cloexec(&group, enabler.group.as_raw_fd() + 1);
        let group = above.map_err(|errno| Error::new("duplicate a fanotify group", errno))?;
        Ok(Self { group })
    }

    /// Starts to report accesses to the content of a regular file. Only descriptors that were opened while
    /// the file or its mount had a mark report accesses.
    ///
    /// # Errors
    ///
    /// Returns EINVAL before Linux 6.14, and EOPNOTSUPP if the file system does not support these events.
    pub fn watch(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.mark(ADD, file)
    }

    /// Stops the reports of accesses to a file. The mark stays. So descriptors that are opened before
    /// `unsilence` can report accesses after `unsilence`.
    pub fn silence(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.mark(ADD | IGNORED | SURVIVING, file)
    }

    /// Ends `silence`: accesses to the file are reported again if the file is watched.
    pub fn unsilence(&self, file: BorrowedFd<'_>) -> Result<()> {
        no_matter_if_missing(self.mark(REMOVE | IGNORED, file))
    }

    /// Removes the mark of a file, and its ignore mask.
    pub fn forget(&self, file: BorrowedFd<'_>) -> Result<()> {
        no_matter_if_missing(self.mark(REMOVE, file))?;
        self.unsilence(file)
    }

    /// Creates a reader of events. A group may have several readers. Each event goes to one reader.
    #[must_use]
    pub fn reader(&self) -> EventReader<'_> {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        EventReader { group: self.group.as_fd(), buffer, at: 0, end: 0 }
    }

    fn mark(&self, flags: libc::c_uint, file: BorrowedFd<'_>) -> Result<()> {
        mark(self.group.as_fd(), flags, PRE_ACCESS, file, "watch the content of")
    }
}

impl AsFd for ContentEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

impl Enabler {
    /// Creates a group without marks.
    ///
    /// # Errors
    ///
    /// Returns EPERM without CAP_SYS_ADMIN.
    pub fn new() -> Result<Self> {
        create().map(|group| Self { group })
    }

    /// Marks the mount of the file `any`. Files on the mount that are opened while this mark exists can
    /// report events. The mark makes each read and write on the mount about 0.15 µs slower.
    pub fn enable_mount(&self, any: BorrowedFd<'_>) -> Result<()> {
        self.mark(ADD | IGNORED | SURVIVING, any)
    }

    /// Removes the mark of `enable_mount`.
    pub fn disable_mount(&self, any: BorrowedFd<'_>) -> Result<()> {
        no_matter_if_missing(self.mark(REMOVE | IGNORED, any))
    }

    fn mark(&self, flags: libc::c_uint, any: BorrowedFd<'_>) -> Result<()> {
        mark(
            self.group.as_fd(),
            flags | libc::FAN_MARK_MOUNT,
            PRE_ACCESS,
            any,
            "make files able to report on the mount of",
        )
    }
}

fn create() -> Result<OwnedFd> {
    // SAFETY: plain numbers. The new descriptor has no other owner.
    unsafe { owned(libc::fanotify_init(GROUP_FLAGS, FILE_FLAGS as libc::c_uint)) }.map_err(|errno| {
        let operation = if errno == Errno::EMFILE {
            "create a fanotify group (see `sysctl fs.fanotify.max_user_groups`, `ulimit -n`)"
        } else {
            "create a fanotify group that is asked before content changes"
        };
        Error::new(operation, errno)
    })
}

fn mark(
    group: BorrowedFd<'_>,
    flags: libc::c_uint,
    mask: u64,
    file: BorrowedFd<'_>,
    operation: &'static str,
) -> Result<()> {
    let (group, number) = (group.as_raw_fd(), file.as_raw_fd());
    let failed = |errno| Error::path(operation, name_of(number), errno);
    // SAFETY: plain numbers and no path. Without a path, the kernel marks the object of the descriptor.
    let result = unsafe { libc::fanotify_mark(group, flags, mask, number, ptr::null()) };
    match Errno::check(result) {
        // The descriptor was opened with O_PATH.
        Err(Errno::EBADF) => {}
        outcome => return outcome.map(drop).map_err(failed),
    }
    let path = format!("/proc/self/fd/{number}");
    let name = CString::new(path.as_str()).map_err(|_| Error::path(operation, &path, Errno::EINVAL))?;
    // SAFETY: `name` is a string that ends with a zero byte. The kernel reads the string up to this byte.
    let result = unsafe { libc::fanotify_mark(group, flags, mask, libc::AT_FDCWD, name.as_ptr()) };
    Errno::check(result).map(drop).map_err(failed)
}

/// Returns the path of the file of a descriptor. A number would tell the operator nothing.
fn name_of(number: RawFd) -> PathBuf {
    let link = PathBuf::from(format!("/proc/self/fd/{number}"));
    std::fs::read_link(&link).unwrap_or(link)
}

/// Ignores ENOENT, because a mark that is to be removed may not exist.
fn no_matter_if_missing(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.errno == Errno::ENOENT => Ok(()),
        other => other,
    }
}

impl<'a> EventReader<'a> {
    /// Reports whether the next event was already read into the buffer.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.at < self.end
    }

    /// Returns the next event. Waits if no event has arrived. Returns `None` if a signal has interrupted the
    /// wait.
    ///
    /// # Errors
    ///
    /// Returns the error of read(2). EMFILE means that this process has no free descriptor for the file of
    /// the event. In this case, the kernel makes the access of the program fail. So the caller must keep some
    /// descriptors free.
    pub fn receive(&mut self) -> Result<Option<Event<'a>>> {
        loop {
            if !self.has_read() && !self.read()? {
                return Ok(None);
            }
            if let Some(event) = self.parse()? {
                return Ok(Some(event));
            }
        }
    }

    fn read(&mut self) -> Result<bool> {
        let (group, room) = (self.group.as_raw_fd(), self.buffer.len());
        // SAFETY: the kernel writes at most as many bytes as the buffer contains.
        let result = unsafe { libc::read(group, self.buffer.as_mut_ptr().cast(), room) };
        match result {
            0.. => (self.at, self.end) = (0, result as usize),
            _ if Errno::last().0 == libc::EINTR => return Ok(false),
            _ => return Err(Error::new("read events of files", Errno::last())),
        }
        Ok(self.has_read())
    }

    /// Takes an event from the buffer. Returns `None` for an event without a file.
    fn parse(&mut self) -> Result<Option<Event<'a>>> {
        let malformed = || Error::new("understand an event of a file", Errno::EINVAL);
        let bytes = &self.buffer[self.at..self.end];
        let metadata = read_structure::<Metadata>(bytes).ok_or_else(malformed)?;
        let length = metadata.event_length as usize;
        let extra = usize::from(metadata.metadata_length)..length;
        if metadata.version != METADATA_VERSION || length < size_of::<Metadata>() {
            self.at = self.end;
            return Err(malformed());
        }
        let range = bytes.get(extra).and_then(range_of);
        self.at += length;
        if metadata.descriptor < 0 {
            return Ok(None);
        }
        // SAFETY: the kernel has opened this descriptor for the event. Each event is taken once, so the
        // descriptor has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(metadata.descriptor as RawFd) };
        Ok(Some(Event { group: self.group, file, pid: Pid(metadata.pid), range }))
    }
}

impl Drop for EventReader<'_> {
    fn drop(&mut self) {
        while self.has_read() {
            match self.parse() {
                Ok(event) => drop(event),
                Err(_) => return,
            }
        }
    }
}

/// Reads a structure of numbers from the start of bytes that the kernel has written.
fn read_structure<T: Copy + Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: the slice has as many bytes as the type. Any bytes are a valid value of the type (`Plain`).
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A type that consists of numbers, so that any bytes are a valid value.
trait Plain {}
impl Plain for Metadata {}
impl Plain for RangeInfo {}

/// Returns the range in the information records that follow the metadata of an event.
fn range_of(mut records: &[u8]) -> Option<EventRange> {
    const HEADER_BYTES: usize = 4;
    while records.len() >= HEADER_BYTES {
        let length = usize::from(u16::from_ne_bytes([records[2], records[3]]));
        if records[0] == INFO_RANGE {
            let RangeInfo { offset, count, .. } = read_structure(records)?;
            return Some(EventRange { offset: ByteCount(offset), length: ByteCount(count) });
        }
        records = records.get(length.max(HEADER_BYTES)..)?;
    }
    None
}

impl Event<'_> {
    /// Returns the accessed file, open for reading. A read through this descriptor reports no event.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the process that accesses the file; 0 if the process has no pid in the pid namespace of this
    /// process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the accessed bytes, if the kernel reports them.
    #[must_use]
    pub fn range(&self) -> Option<EventRange> {
        self.range
    }

    /// Lets the access happen.
    pub fn allow(self) {}
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        let response = Response { descriptor: self.file.as_raw_fd(), answer: libc::FAN_ALLOW };
        // SAFETY: the kernel reads the 8 bytes of the structure. The kernel refuses an answer only if the
        // access no longer waits.
        unsafe { libc::write(self.group.as_raw_fd(), (&raw const response).cast(), size_of::<Response>()) };
    }
}

#[cfg(test)]
mod tests;
