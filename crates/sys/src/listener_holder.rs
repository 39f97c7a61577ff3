//! The process that keeps a subject going when the receiver of its notifications dies.
//!
//! Owns: that process; the memory that notifications are received into; the table of calls that are answered later.
//! Invariants: while a listener is held, the death of this process lets every notified call of the subject continue,
//! also one that was received and not answered; before the first of them continues, the file given with the listener
//! has a line that says so. The holder makes system calls only, allocates nothing and never returns.
//! Does not: judge calls; help if it is killed as well.
//!
//! Man page: clone3(2), seccomp_unotify(2), pidfd_open(2), close_range(2)
//! Since: Linux 5.9 (close_range)
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; files do not go back with a program that is not watched

mod process;

use std::cell::UnsafeCell;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::Pid;

use crate::clone::CloneArguments;
use crate::error::{Errno, Error, Result};
use crate::fd_passing::send_descriptors;
use crate::seccomp_listener::{Notification, NotificationId};
use crate::{pidfd, socket};

use process::Unanswered;
pub use process::{BROKEN_LINE, BUFFERS_MAX, HELD_CALLS_MAX};

/// Bytes that the line is sure of on a full file system.
const RESERVED_BYTES: i64 = 4096;
/// How long an exit of the holder is waited for, so that it leaves no zombie.
const EXIT_LIMIT_MS: i32 = 200;

/// Where the table of held calls begins, behind the buffers.
const CALLS_AT: usize = BUFFERS_MAX * size_of::<Notification>();
const SHARED_BYTES: usize = CALLS_AT + HELD_CALLS_MAX * size_of::<AtomicU64>();

const _: () = assert!(CALLS_AT.is_multiple_of(align_of::<AtomicU64>()));

/// Memory that this process and the holder both have.
#[derive(Debug)]
struct Shared {
    buffers: NonNull<UnsafeCell<Notification>>,
    taken: [AtomicBool; BUFFERS_MAX],
}

// SAFETY: a buffer is reached through the one `NotificationBuffer` that has taken it; the holder reads buffers only
// when no thread of this process is left.
unsafe impl Send for Shared {}
// SAFETY: as above; `taken` is atomic.
unsafe impl Sync for Shared {}

/// Where one notification is received, and known to the holder until the next.
#[derive(Debug)]
pub struct NotificationBuffer {
    shared: Arc<Shared>,
    index: usize,
}

/// The table of calls that were received and are answered later. Clones are of one table.
#[derive(Clone, Debug)]
pub struct HeldCalls {
    shared: Arc<Shared>,
}

/// A row of the table: until it is dropped, the holder knows the call.
#[derive(Debug)]
pub struct HeldCall {
    shared: Arc<Shared>,
    index: usize,
}

impl HeldCalls {
    /// Notes a call, before the buffer that it was received into is used again. `None` if [`HELD_CALLS_MAX`] are noted.
    #[must_use]
    pub fn note(&self, id: NotificationId) -> Option<HeldCall> {
        let calls = self.shared.calls();
        let is_free = |call: &AtomicU64| {
            call.load(Ordering::Relaxed) == 0
                && call.compare_exchange(0, id.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let index = calls.iter().position(is_free)?;
        Some(HeldCall { shared: Arc::clone(&self.shared), index })
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        self.shared.calls()[self.index].store(0, Ordering::Relaxed);
    }
}

/// The holder, as its guardian sees it.
#[derive(Debug)]
pub struct ListenerHolder {
    pid: Pid,
    handle: OwnedFd,
    socket: OwnedFd,
    shared: Arc<Shared>,
}

impl ListenerHolder {
    /// Makes the process. It is a child without exit signal, in its own session, with no descriptor of this process, and
    /// the last that the kernel ends for want of memory, as far as the privileges reach. Early: it keeps a copy of the
    /// memory that this process has now.
    ///
    /// # Errors
    ///
    /// Why there is no memory, no pair of sockets or no process.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Shared::map()?);
        let (socket, remote) = socket::pair(libc::SOCK_SEQPACKET)?;
        let own = pidfd::open(Pid(std::process::id() as i32))?;
        // Without an exit signal: a wait for children in general does not take it for one.
        let arguments = CloneArguments::default();
        let buffers = shared.buffers;
        let unanswered = Unanswered { buffers: buffers.cast().as_ptr(), calls: shared.calls().as_ptr() };
        // SAFETY: without CLONE_VM the child gets a copy of this address space; it only makes system calls in `run`
        // and never returns into code that could take a lock of a thread that is not there.
        let result =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
        let pid = match result {
            -1 => return Err(Error::new("create the holder of listeners", Errno::last())),
            0 => process::run(own.as_raw_fd(), remote.as_raw_fd(), unanswered),
            child => Pid(child as i32),
        };
        // Processes that are forked later do not have the memory. A kernel that refuses leaves it to them, unused.
        // SAFETY: advice about a mapping of ours that leaves its content as it is.
        unsafe { libc::madvise(buffers.as_ptr().cast(), SHARED_BYTES, libc::MADV_DONTFORK) };
        Ok(Self { pid, handle: pidfd::open(pid)?, socket, shared })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether the process lives: it ends before this one only if it is killed.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !ends_within(self.handle.as_fd(), 0)
    }

    /// A buffer to receive notifications into, for one thread of the receiver; `None` if all are taken.
    #[must_use]
    pub fn buffer(&self) -> Option<NotificationBuffer> {
        let is_free = |taken: &AtomicBool| !taken.swap(true, Ordering::AcqRel);
        let index = self.shared.taken.iter().position(is_free)?;
        Some(NotificationBuffer { shared: Arc::clone(&self.shared), index })
    }

    /// The table of calls that are answered later.
    #[must_use]
    pub fn held_calls(&self) -> HeldCalls {
        HeldCalls { shared: Arc::clone(&self.shared) }
    }

    /// Has the process hold a listener until no task uses its filter, and append [`BROKEN_LINE`] to a file if this
    /// process dies before, or both at a time that cannot be told apart. The file must be open for writing.
    ///
    /// What else must stop watching with this process, such as fanotify groups, is to be opened after `start`: its
    /// descriptors are closed in the order of their numbers.
    ///
    /// # Errors
    ///
    /// EPIPE or ECONNRESET if the holder is dead.
    pub fn hold(&self, listener: BorrowedFd<'_>, broken: BorrowedFd<'_>) -> Result<()> {
        reserve(broken);
        send_descriptors(self.socket.as_fd(), &[listener.as_raw_fd(), broken.as_raw_fd()])
    }

    /// Where a child of this process sends its listener with the file, as `hold` does.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reserves blocks for the line, so that a full file system does not keep it from being written.
pub(crate) fn reserve(broken: BorrowedFd<'_>) {
    // SAFETY: plain numbers. A file system without reservations takes the line as far as it has room.
    unsafe { libc::fallocate(broken.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) };
}

impl Drop for ListenerHolder {
    fn drop(&mut self) {
        // Without a live listener it ends, and marks nothing; with one it stays, and lets the subject's calls
        // continue after this process.
        let asked = send_descriptors(self.socket.as_fd(), &[]);
        if asked.is_err() || ends_within(self.handle.as_fd(), EXIT_LIMIT_MS) {
            // SAFETY: plain numbers; it does not wait. The holder is a child of ours, so its number is its own until
            // it is reaped here.
            unsafe { libc::waitpid(self.pid.get(), ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        }
    }
}

/// Whether a process ends in time.
fn ends_within(process: BorrowedFd<'_>, milliseconds: i32) -> bool {
    let mut wait = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes one pollfd at the address given.
    unsafe { libc::poll(&raw mut wait, 1, milliseconds) == 1 }
}

impl Shared {
    fn map() -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), SHARED_BYTES, protection, flags, -1, 0) };
        let failed = || Error::new("map memory for notifications", Errno::last());
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        let buffers = NonNull::new(start.cast()).ok_or_else(failed)?;
        Ok(Self { buffers, taken: [const { AtomicBool::new(false) }; BUFFERS_MAX] })
    }

    fn calls(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has HELD_CALLS_MAX numbers from CALLS_AT on, zero at first, aligned as asserted above, and
        // lives as long as this value. Both processes only ever reach them as atomics.
        unsafe {
            let start = self.buffers.as_ptr().cast::<u8>().add(CALLS_AT).cast();
            std::slice::from_raw_parts(start, HELD_CALLS_MAX)
        }
    }

    fn at(&self, index: usize) -> *mut Notification {
        debug_assert!(index < BUFFERS_MAX, "an index is one of `taken`");
        // SAFETY: the mapping has room for BUFFERS_MAX notifications, which the index is below.
        UnsafeCell::raw_get(unsafe { self.buffers.as_ptr().add(index) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`; every buffer and every row has a share in this value, so none
        // is left.
        unsafe { libc::munmap(self.buffers.as_ptr().cast(), SHARED_BYTES) };
    }
}

impl Deref for NotificationBuffer {
    type Target = Notification;

    fn deref(&self) -> &Notification {
        // SAFETY: the buffer is mapped as long as `shared` lives, zeroes or a notification, and this value is the only
        // one of its index.
        unsafe { &*self.shared.at(self.index) }
    }
}

impl DerefMut for NotificationBuffer {
    fn deref_mut(&mut self) -> &mut Notification {
        // SAFETY: as for `deref`; the borrow of this value is exclusive.
        unsafe { &mut *self.shared.at(self.index) }
    }
}

impl Drop for NotificationBuffer {
    fn drop(&mut self) {
        self.shared.taken[self.index].store(false, Ordering::Release);
    }
}
