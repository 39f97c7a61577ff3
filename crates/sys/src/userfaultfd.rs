//! Write-protects the memory of another process, and fills missing pages at their first access, by userfaultfd(2).
//!
//! A descriptor of userfaultfd(2) *watches* ranges of one address space. The kernel reports page faults there:
//! writes to protected pages, or accesses to *missing* pages, which have no content yet.
//!
//! Owns: userfaultfd(2), the requests and the messages of a descriptor.
//! Invariants: a descriptor acts on the address space of the process that created it, even if another process holds
//! the descriptor. Closing the last duplicate of a descriptor ends every watch and wakes the waiting threads.
//! Does not: create a descriptor in another process. The crate `tracee` makes the other process create the
//! descriptor, and pidfd_getfd(2) duplicates the descriptor.
//!
//! Man page: userfaultfd(2), ioctl_userfaultfd(2)
//! Since: Linux 6.7 (asynchronous write protection), 4.11 (missing pages with events)
//! Probe: `features::REGISTRY` entries "userfaultfd-async" and "userfaultfd-missing"
//! Fallback: other trackers find written pages; all missing pages are filled before the program runs

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll, poll};

use crate::error::{Errno, Error, Result, owned};

/// Maximum number of messages that one read fetches.
const MESSAGES_PER_READ: usize = 32;

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
/// The only version of the protocol.
const API: u64 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;
const REGISTER_MODE_WP: u64 = 1 << 1;

/// Epoll data of the members of an [`Inbox`]: `ENDING` marks the pipe that ends the waits, `MESSAGE` marks a
/// userfaultfd.
const ENDING: u64 = 0;
const MESSAGE: u64 = 1;
/// Maximum number of events that one wait fetches. An inbox usually has three members.
const EVENTS_PER_WAIT: usize = 3;

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// UFFD_USER_MODE_ONLY: the descriptor serves only faults in user mode. The flag needs no privilege. With asynchronous
/// write protection, the kernel resolves all faults itself, so the flag is sufficient.
pub const USER_MODE_ONLY: u64 = 1;
/// Flags of every descriptor that is created here: close-on-exec and non-blocking.
pub const CREATE_FLAGS: u64 = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;

/// The effect of discarding watched pages (MADV_DONTNEED, MADV_REMOVE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discards {
    /// The kernel sends no message.
    Silent,
    /// The kernel sends a message. The thread that discards pages waits until the message was read, and then
    /// discards the pages.
    Announced,
}

/// `struct uffd_msg`: the kind of the message, then up to three words. The meaning of the words depends on the
/// kind.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

const _: () = assert!(size_of::<RawMessage>() == 32);
const _: () = assert!(offset_of!(RawMessage, words) == 8);

/// An event of a process that a descriptor watches. Only a fault needs an answer. After any other event, the process
/// continues once the event was read.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for the missing page at this address.
    Fault(Address),
    /// The process forked. The new descriptor serves the memory of the child.
    Fork(OwnedFd),
    /// Pages were moved.
    Remap {
        /// Range of the pages before the move.
        from: AddressRange,
        /// Start of the pages after the move.
        to: Address,
    },
    /// Pages in this range are about to be discarded.
    Remove(AddressRange),
    /// Pages in this range were unmapped.
    Unmap(AddressRange),
}

/// A buffer for messages.
#[derive(Default)]
pub struct Messages {
    raw: [RawMessage; MESSAGES_PER_READ],
    used: usize,
}

/// Creates a descriptor for the memory of this process.
pub fn create(flags: u64) -> Result<OwnedFd> {
    // SAFETY: userfaultfd takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | CREATE_FLAGS) };
    // SAFETY: the kernel returned a new descriptor without another owner.
    unsafe { owned(result) }.map_err(|errno| Error::new("create a userfaultfd", errno))
}

/// Sets the features of a new descriptor for write protection. At a write to a protected page, the kernel lifts the
/// protection by itself, and records the write. Call one `begin` function once per descriptor.
pub fn begin(fd: BorrowedFd<'_>, discards: Discards) -> Result<()> {
    const EVENT_REMOVE: u64 = 1 << 3;
    const WP_UNPOPULATED: u64 = 1 << 13;
    const WP_ASYNC: u64 = 1 << 15;
    let events = match discards {
        Discards::Silent => 0,
        Discards::Announced => EVENT_REMOVE,
    };
    agree(fd, WP_UNPOPULATED | WP_ASYNC | events)
}

/// Sets the features of a new descriptor for missing pages. Besides faults, the descriptor reports forks, and
/// moves, discards and unmaps of pages. Call one `begin` function once per descriptor.
///
/// Fails with EPERM without CAP_SYS_PTRACE, because fork events need this capability.
pub fn begin_for_missing(fd: BorrowedFd<'_>) -> Result<()> {
    const EVENT_FORK: u64 = 1 << 1;
    const EVENT_REMAP: u64 = 1 << 2;
    const EVENT_REMOVE: u64 = 1 << 3;
    const EVENT_UNMAP: u64 = 1 << 6;
    let features = EVENT_FORK | EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP;
    agree(fd, features)
}

/// Sets the features of a new descriptor that only fills missing pages. The descriptor reports no moves, discards,
/// unmaps or forks. Call one `begin` function once per descriptor.
pub fn begin_for_filling(fd: BorrowedFd<'_>) -> Result<()> {
    agree(fd, 0)
}

fn agree(fd: BorrowedFd<'_>, features: u64) -> Result<()> {
    // `struct uffdio_api`: version, features, and the requests that the kernel supports.
    request(fd, UFFDIO_API, &mut [API, features, 0])
        .map_err(|errno| Error::new("agree on the features of a userfaultfd", errno))
}

/// Watches writes to a range of whole pages. The kernel splits mappings at the ends of the range.
///
/// Fails with EBUSY if another descriptor watches this memory. Fails with EINVAL for memory that cannot be watched,
/// and with EPERM for memory that can never be writable.
pub fn register(fd: BorrowedFd<'_>, range: AddressRange) -> Result<()> {
    register_for(fd, range, REGISTER_MODE_WP)
}

/// Watches a range for the first access to missing pages. A thread that accesses a missing page waits. If the range
/// was watched for writes, the watch for writes ends, but protected pages stay protected.
///
/// Fails with EINVAL for memory that is neither anonymous nor shared.
pub fn register_for_missing(fd: BorrowedFd<'_>, range: AddressRange) -> Result<()> {
    register_for(fd, range, REGISTER_MODE_MISSING)
}

fn register_for(fd: BorrowedFd<'_>, range: AddressRange, mode: u64) -> Result<()> {
    // `struct uffdio_register`: start, length, mode, and the requests that the kernel supports for the range.
    request(fd, UFFDIO_REGISTER, &mut [range.start.get(), range.len().get(), mode, 0])
        .map_err(|errno| Error::new("watch memory", errno))
}

/// Ends the watch of a range, lifts the protection of the range and wakes the waiting threads.
pub fn unregister(fd: BorrowedFd<'_>, range: AddressRange) -> Result<()> {
    request(fd, UFFDIO_UNREGISTER, &mut [range.start.get(), range.len().get()])
        .map_err(|errno| Error::new("end watching memory", errno))
}

/// Wakes the threads that wait for pages in a range. A thread whose page has not changed faults again.
pub fn wake(fd: BorrowedFd<'_>, range: AddressRange) -> Result<()> {
    request(fd, UFFDIO_WAKE, &mut [range.start.get(), range.len().get()])
        .map_err(|errno| Error::new("wake the threads that wait for memory", errno))
}

/// Lifts the protection of a range and wakes the waiting threads.
pub fn lift(fd: BorrowedFd<'_>, range: AddressRange) -> Result<()> {
    // `struct uffdio_writeprotect`: start, length, mode.
    request(fd, UFFDIO_WRITEPROTECT, &mut [range.start.get(), range.len().get(), 0])
        .map_err(|errno| Error::new("lift the write protection", errno))
}

/// Fills missing pages of a watched range with `bytes`, from the address `to` on. Wakes the threads that wait for
/// these pages. Returns the number of filled bytes, and the error if a page was not filled.
///
/// - EEXIST: a page is already present.
/// - EAGAIN: the process waits until its message about a mapping change is read. Or the call was interrupted.
/// - ENOENT: the pages are not all inside one watched mapping.
/// - ESRCH: the address space no longer exists.
pub fn copy(fd: BorrowedFd<'_>, to: Address, bytes: &[u8]) -> (ByteCount, std::result::Result<(), Errno>) {
    // `struct uffdio_copy`: destination, source, length, mode, and the number of copied bytes or a negative errno.
    let mut copy = [to.get(), bytes.as_ptr() as u64, bytes.len() as u64, 0, 0];
    let outcome = request(fd, UFFDIO_COPY, &mut copy);
    (ByteCount(u64::try_from(copy[4].cast_signed()).unwrap_or(0)), outcome)
}

/// Fills one missing page with zeros, and wakes the threads that wait for this page. The errors are those of
/// [`copy`].
pub fn zero(fd: BorrowedFd<'_>, page: Address) -> std::result::Result<(), Errno> {
    // `struct uffdio_zeropage`: start, length, mode, and the number of filled bytes or a negative errno.
    request(fd, UFFDIO_ZEROPAGE, &mut [page.get(), PAGE_BYTES, 0, 0])
}

/// Makes a request whose structure consists of `words`. The kernel may change the words.
fn request<const WORDS: usize>(
    fd: BorrowedFd<'_>,
    number: libc::c_ulong,
    words: &mut [u64; WORDS],
) -> std::result::Result<(), Errno> {
    // The number of a request contains the size of its structure.
    assert!(
        number >> 16 & 0x3fff == size_of::<[u64; WORDS]>() as u64,
        "the structure has the size of the request"
    );
    // SAFETY: the structure has its size, as checked above, and is exclusively ours during the call. UFFDIO_COPY reads
    // the bytes of a slice that `copy` has borrowed. The kernel writes to the process of the descriptor, at addresses
    // that the kernel checks.
    Errno::check(unsafe { libc::ioctl(fd.as_raw_fd(), number, words.as_mut_ptr()) }).map(drop)
}

/// An epoll set, for waiting for messages of several descriptors. The set does not keep a descriptor open: closing
/// a descriptor removes it from the set, even while a thread waits.
#[derive(Debug)]
pub struct Inbox {
    epoll: OwnedFd,
}

impl Inbox {
    /// Creates an inbox. [`Self::wait`] returns false once the write end of the pipe `ending` is closed.
    pub fn new(ending: BorrowedFd<'_>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let inbox = Self { epoll: epoll.map_err(|errno| Error::new("create an epoll set", errno))? };
        inbox.put(ending, ENDING)?;
        Ok(inbox)
    }

    /// Adds a descriptor to the inbox.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.put(fd, MESSAGE)
    }

    fn put(&self, fd: BorrowedFd<'_>, what: u64) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(what), epoll::EventFlags::IN)
            .map_err(|errno| Error::new("wait for a userfaultfd", errno))
    }

    /// Waits for a message. Returns false once the write end of the pipe `ending` is closed.
    pub fn wait(&self) -> Result<bool> {
        let mut events = Vec::with_capacity(EVENTS_PER_WAIT);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) => return Ok(events.iter().all(|event| event.data.u64() != ENDING)),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::new("wait for a userfaultfd", errno)),
            }
        }
    }
}

/// Waits for a message of any descriptor, at most for `timeout`. Returns false once the write end of the pipe
/// `ending` is closed.
pub fn wait_any(fds: &[BorrowedFd<'_>], ending: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool> {
    let mut sources: Vec<PollFd<'_>> =
        [ending].iter().chain(fds).map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    loop {
        match poll(&mut sources, timeout.as_ref()) {
            Ok(_) => return Ok(sources[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::new("wait for a userfaultfd", errno)),
        }
    }
}

/// Reads the messages that have arrived. If no message has arrived, the buffer is empty after the call.
pub fn read(fd: BorrowedFd<'_>, messages: &mut Messages) -> Result<()> {
    messages.used = 0;
    // SAFETY: the raw messages consist of integers, for which all bytes are valid. The borrow is exclusive.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(messages.raw.as_mut_ptr().cast::<u8>(), size_of_val(&messages.raw))
    };
    match rustix::io::read(fd, bytes) {
        Ok(count) => messages.used = count / size_of::<RawMessage>(),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(Error::new("read from a userfaultfd", errno)),
    }
    Ok(())
}

impl Messages {
    /// Removes and returns the events of the last read.
    pub fn take(&mut self) -> impl Iterator<Item = Event> {
        let used = std::mem::take(&mut self.used);
        self.raw[..used].iter().filter_map(|raw| {
            let [first, second, third] = raw.words;
            let range = AddressRange::new(Address(first), Address(second));
            Some(match raw.event {
                EVENT_PAGEFAULT => Event::Fault(Address(second)),
                // SAFETY: the kernel made the descriptor for this message. No other code takes this message.
                EVENT_FORK => Event::Fork(unsafe { OwnedFd::from_raw_fd(first as u32 as i32) }),
                EVENT_REMAP => {
                    let from = AddressRange::new(Address(first), Address(first) + ByteCount(third));
                    Event::Remap { from, to: Address(second) }
                }
                EVENT_REMOVE => Event::Remove(range),
                EVENT_UNMAP => Event::Unmap(range),
                _ => return None,
            })
        })
    }
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.raw[..self.used].iter().map(|raw| raw.event)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use model::{PageCount, Pid};

    use super::*;
    use crate::process_memory;
    use crate::scratch::Scratch;

    /// Repeats `fill` while `fill` fails with EAGAIN, and returns the final result. The kernel returns EAGAIN if
    /// another test removes a page table of this process during the call.
    fn settled(mut fill: impl FnMut() -> std::result::Result<(), Errno>) -> std::result::Result<(), Errno> {
        loop {
            match fill() {
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    #[test]
    fn a_missing_page_is_delivered_to_the_waiting_thread_and_its_end_is_reported() {
        let Ok(fd) = create(0) else { return println!("unsupported: userfaultfd-missing") };
        if begin_for_missing(fd.as_fd()).is_err() {
            return println!("unsupported: userfaultfd-missing");
        }
        let mut scratch = Scratch::new(PageCount(4)).unwrap();
        let range = scratch.range();
        register_for_missing(fd.as_fd(), range).unwrap();
        let reader = std::thread::spawn(move || {
            let found = scratch.read(PageCount(2));
            // The write waits until the page is filled. The drop waits until the unmap event is read.
            scratch.write(PageCount(3), 1);
            drop(scratch);
            found
        });
        let mut messages = Messages::default();
        let mut next = || loop {
            read(fd.as_fd(), &mut messages).unwrap();
            if let Some(event) = messages.take().next() {
                return event;
            }
            std::thread::yield_now();
        };
        let page = Address(range.start.get() + 2 * PAGE_BYTES);
        let Event::Fault(address) = next() else { panic!("no fault") };
        assert_eq!(address.page_floor(), page);
        settled(|| copy(fd.as_fd(), page, &[7; 4096]).1).unwrap();
        assert_eq!(settled(|| copy(fd.as_fd(), page, &[8; 4096]).1), Err(Errno::EEXIST));
        let Event::Fault(address) = next() else { panic!("no fault") };
        settled(|| zero(fd.as_fd(), address.page_floor())).unwrap();
        let Event::Unmap(gone) = next() else { panic!("the unmapping was not reported") };
        assert!(range.start >= gone.start && range.end <= gone.end, "{gone}");
        assert_eq!(reader.join().unwrap(), 7);
        // The address of the dropped memory is not used: another test may have mapped and watched new memory there.
        let other = Scratch::new(PageCount(1)).unwrap();
        assert_eq!(copy(fd.as_fd(), other.range().start, &[9; 4096]).1, Err(Errno::ENOENT));
    }

    #[test]
    fn to_close_a_descriptor_ends_its_watch_while_somebody_waits_for_its_messages() {
        let (Ok(first), Ok(second)) = (create(USER_MODE_ONLY), create(USER_MODE_ONLY)) else {
            return println!("unsupported: userfaultfd-async");
        };
        let begun = |fd: &OwnedFd| begin(fd.as_fd(), Discards::Silent).is_ok();
        if !begun(&first) || !begun(&second) {
            return println!("unsupported: userfaultfd-async");
        }
        let scratch = Scratch::new(PageCount(4)).unwrap();
        register(first.as_fd(), scratch.range()).unwrap();
        let (ending, bell) = std::io::pipe().unwrap();
        let inbox = Inbox::new(ending.as_fd()).unwrap();
        inbox.add(first.as_fd()).unwrap();
        let waiter = std::thread::spawn(move || inbox.wait().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(register(second.as_fd(), scratch.range()).is_err(), "another descriptor watches this memory");
        drop(first);
        register(second.as_fd(), scratch.range()).unwrap();
        assert!(!waiter.is_finished());
        drop(bell);
        assert!(!waiter.join().unwrap());
    }

    #[test]
    fn a_write_from_outside_to_a_missing_page_fails_where_the_program_alone_may_wait() {
        let Ok(fd) = create(USER_MODE_ONLY) else { return println!("unsupported: userfaultfd-missing") };
        begin_for_filling(fd.as_fd()).unwrap();
        let scratch = Scratch::new(PageCount(1)).unwrap();
        let (own, range) = (Pid(std::process::id() as i32), scratch.range());
        register_for_missing(fd.as_fd(), range).unwrap();
        assert!(process_memory::write(own, range.start, &[1]).is_err());
        assert_eq!(copy(fd.as_fd(), range.start, &[7; 4096]), (ByteCount(PAGE_BYTES), Ok(())));
        process_memory::write(own, range.start + ByteCount(8), &[8]).unwrap();
        let mut found = [0; 9];
        process_memory::read(own, range.start, &mut found).unwrap();
        assert_eq!(found, [7, 7, 7, 7, 7, 7, 7, 7, 8]);
    }
}
