//! Events that come before the content of a file changes.
//!
//! Owns: fanotify_init(2) and fanotify_mark(2) of the class that comes before content, reading events, answers.
//! Invariants: a change waits until its event is answered; an event that is dropped is answered; all end with the last
//! descriptor of the group: what waits then happens. An open file reports events only if a mark was in force when it was
//! opened (on its inode or its mount, also one that ignores everything).
//! Does not: tell reads from writes, or see stores through mappings.
//!
//! Man page: fanotify(7), fanotify_init(2), fanotify_mark(2)
//! Since: Linux 6.14 (FAN_PRE_ACCESS; ext4, XFS, Btrfs)
//! Probe: `features::REGISTRY` entry "file-content"
//! Fallback: none; files whose content changes do not go back with the program

use std::ffi::CString;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use model::{ByteCount, Pid};

use crate::error::{Errno, Error, Result};

/// FAN_PRE_ACCESS.
const PRE_ACCESS: u64 = 0x0010_0000;
/// FAN_EVENT_INFO_TYPE_RANGE.
const INFO_RANGE: u8 = 6;
const METADATA_VERSION: u8 = 3;
/// Bytes of events that are read at once.
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

/// Marks of files, and the queue of what is about to happen to them.
#[derive(Debug)]
pub struct ContentEvents {
    group: OwnedFd,
}

/// Which bytes of a file an event is about: whole pages. An append by O_APPEND says 0 and its length; what is cut off
/// says one page at the new end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventRange {
    /// Where they begin.
    pub offset: ByteCount,
    /// How many.
    pub length: ByteCount,
}

/// An access to a watched file that waits for its answer. Dropping it lets the access happen.
#[derive(Debug)]
pub struct Event<'a> {
    group: BorrowedFd<'a>,
    file: OwnedFd,
    pid: Pid,
    range: Option<EventRange>,
}

/// Reads events of a group one by one. Dropping it lets happen what it has read and not given out.
#[derive(Debug)]
pub struct EventReader<'a> {
    group: BorrowedFd<'a>,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
}

/// Marks that make the files which are opened meanwhile able to report later, and report nothing themselves.
#[derive(Debug)]
pub struct Enabler {
    group: OwnedFd,
}

impl ContentEvents {
    /// A group without marks. `enabler` marks the same files.
    ///
    /// An access that waits for one group holds the marks of both. The end of a group waits for such accesses, and that
    /// of this one answers them: so this one has to end first. The kernel releases the descriptors of a process that
    /// dies from the highest number down (task_work_run, Linux 6.18); this one gets the higher number.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN.
    pub fn new(enabler: &Enabler) -> Result<Self> {
        let group = create()?;
        let above = rustix::io::fcntl_dupfd_cloexec(&group, enabler.group.as_raw_fd() + 1);
        let group = above.map_err(|errno| Error::new("duplicate a fanotify group", errno))?;
        Ok(Self { group })
    }

    /// Has accesses to the content of a regular file reported from now on, by descriptors that were opened while a mark
    /// was in force.
    ///
    /// # Errors
    ///
    /// EINVAL before Linux 6.14; EOPNOTSUPP on a file system without such events.
    pub fn watch(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.mark(ADD, file)
    }

    /// Has accesses to a file not reported from now on. The mark stays in force: files that are opened meanwhile can
    /// report later.
    pub fn silence(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.mark(ADD | IGNORED | SURVIVING, file)
    }

    /// Has accesses to a silenced file reported again, if it is watched.
    pub fn unsilence(&self, file: BorrowedFd<'_>) -> Result<()> {
        no_matter_if_missing(self.mark(REMOVE | IGNORED, file))
    }

    /// Takes the mark away.
    pub fn forget(&self, file: BorrowedFd<'_>) -> Result<()> {
        no_matter_if_missing(self.mark(REMOVE, file))?;
        self.unsilence(file)
    }

    /// Reads events from now on. A group may have several readers; each event goes to one.
    #[must_use]
    pub fn reader(&self) -> EventReader<'_> {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        EventReader { group: self.group.as_fd(), buffer, at: 0, end: 0 }
    }

    fn mark(&self, flags: libc::c_uint, file: BorrowedFd<'_>) -> Result<()> {
        mark(self.group.as_fd(), flags, file, "watch the content of")
    }
}

impl AsFd for ContentEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

impl Enabler {
    /// A group without marks.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_SYS_ADMIN.
    pub fn new() -> Result<Self> {
        create().map(|group| Self { group })
    }

    /// From now on, files that are opened on the mount of this one can report later. While it is in force, every read
    /// and write on the mount costs about 0.15 us.
    pub fn enable_mount(&self, any: BorrowedFd<'_>) -> Result<()> {
        self.mark(ADD | IGNORED | SURVIVING, any)
    }

    /// Ends `enable_mount`.
    pub fn disable_mount(&self, any: BorrowedFd<'_>) -> Result<()> {
        no_matter_if_missing(self.mark(REMOVE | IGNORED, any))
    }

    fn mark(&self, flags: libc::c_uint, any: BorrowedFd<'_>) -> Result<()> {
        mark(
            self.group.as_fd(),
            flags | libc::FAN_MARK_MOUNT,
            any,
            "make files able to report on the mount of",
        )
    }
}

fn create() -> Result<OwnedFd> {
    // SAFETY: plain numbers.
    let group = unsafe { libc::fanotify_init(GROUP_FLAGS, FILE_FLAGS as libc::c_uint) };
    if group < 0 {
        return Err(Error::new(
            "create a fanotify group that is asked before content changes",
            Errno::last(),
        ));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(group) })
}

fn mark(
    group: BorrowedFd<'_>,
    flags: libc::c_uint,
    file: BorrowedFd<'_>,
    operation: &'static str,
) -> Result<()> {
    let (group, number) = (group.as_raw_fd(), file.as_raw_fd());
    // SAFETY: plain numbers; without a path the mark is for what the descriptor refers to.
    let result = unsafe { libc::fanotify_mark(group, flags, PRE_ACCESS, number, ptr::null()) };
    if result == 0 {
        return Ok(());
    }
    let errno = Errno::last();
    if errno != Errno::EBADF {
        return Err(Error::path(operation, format!("/proc/self/fd/{number}"), errno));
    }
    // A descriptor by O_PATH.
    let path = format!("/proc/self/fd/{number}");
    let name = CString::new(path.as_str()).map_err(|_| Error::path(operation, &path, Errno::EINVAL))?;
    // SAFETY: the kernel reads the string up to its zero.
    let result = unsafe { libc::fanotify_mark(group, flags, PRE_ACCESS, libc::AT_FDCWD, name.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(Error::path(operation, path, Errno::last())) }
}

/// What is taken away may never have been there.
fn no_matter_if_missing(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.errno == Errno::ENOENT => Ok(()),
        other => other,
    }
}

impl<'a> EventReader<'a> {
    /// Whether the next event is there already.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.at < self.end
    }

    /// The next event; waits for it if there is none. `None` if a signal came.
    ///
    /// # Errors
    ///
    /// Why events cannot be read. EMFILE would have let an access fail: keep descriptors free.
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
        // SAFETY: the kernel writes at most as many bytes as the buffer has.
        let result = unsafe { libc::read(group, self.buffer.as_mut_ptr().cast(), room) };
        match result {
            0.. => (self.at, self.end) = (0, result as usize),
            _ if Errno::last().0 == libc::EINTR => return Ok(false),
            _ => return Err(Error::new("read events of files", Errno::last())),
        }
        Ok(self.has_read())
    }

    /// Takes an event from the buffer; `None` for one without file.
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
        // SAFETY: the kernel has opened this descriptor for the event, and the event is taken once.
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

/// Plain numbers at the start of bytes that the kernel has written.
fn read_structure<T: Copy + Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: the slice has as many bytes as the type, of which any are valid (`Plain`).
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A type that consists of numbers.
trait Plain {}
impl Plain for Metadata {}
impl Plain for RangeInfo {}

/// The range among the records behind the metadata of an event.
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
    /// The file, open for reading; reading it by this descriptor reports nothing.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The process that accesses it; 0 if it is in no pid namespace that is visible here.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Which bytes, if the kernel says so.
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
        // SAFETY: the kernel reads the 8 bytes of the structure. It refuses an answer only if the access waits no more.
        unsafe { libc::write(self.group.as_raw_fd(), (&raw const response).cast(), size_of::<Response>()) };
    }
}

#[cfg(test)]
mod tests;
