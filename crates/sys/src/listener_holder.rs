//! The listener holder: a child process that lets the calls of a subject continue if the guardian dies.
//!
//! The *subject* is a watched program. A seccomp filter reports some system calls of the subject, and each
//! reported call waits for an answer. The *listener* is the descriptor of the filter. The *guardian* is the
//! process that receives the reported calls from the listener, and answers them. A *held call* was received,
//! and stays unanswered while the guardian receives other calls. The holder has a duplicate of the listener.
//!
//! Owns: the holder; the memory into which notifications are received; the table of held calls.
//! Invariants: if the guardian dies, the holder lets every reported call of the subject continue, including
//! the calls that the guardian has received but not answered. Before the first call continues, the holder
//! appends a line to a file. The holder got this file together with the listener. If the subject ends while the
//! guardian is alive, the holder appends an end mark to this file. The holder makes only
//! system calls, allocates nothing and never returns.
//! Does not: decide about calls, or help a subject if guardian and holder are both killed.
//!
//! Man page: clone3(2), seccomp_unotify(2), pidfd_open(2), close_range(2)
//! Since: Linux 5.9 (close_range)
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; the files of an unwatched program are not restored together with the program

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
pub use process::{BROKEN_LINE, BUFFERS_MAX, END_MARK_BYTES, HELD_CALLS_MAX, end_of};

/// Number of bytes that are reserved in the file for the line of the holder. With this reserve, the line can
/// be appended on a full file system.
const RESERVED_BYTES: i64 = 4096;
/// Maximum time in milliseconds that the drop of [`ListenerHolder`] waits for the exit of the holder. After
/// the exit, the holder is reaped.
const EXIT_LIMIT_MS: i32 = 200;

/// Offset of the table of held calls in the shared mapping. The buffers are in front of the table.
const CALLS_AT: usize = BUFFERS_MAX * size_of::<Notification>();
const SHARED_BYTES: usize = CALLS_AT + HELD_CALLS_MAX * size_of::<AtomicU64>();

const _: () = assert!(CALLS_AT.is_multiple_of(align_of::<AtomicU64>()));

/// Memory that this process shares with the holder.
#[derive(Debug)]
struct Shared {
    buffers: NonNull<UnsafeCell<Notification>>,
    taken: [AtomicBool; BUFFERS_MAX],
}

// SAFETY: only the one `NotificationBuffer` that has taken a buffer accesses this buffer. The holder reads
// the buffers only after all threads of this process have ended.
unsafe impl Send for Shared {}
// SAFETY: the condition for `Send` holds for shared references as well, and `taken` is atomic.
unsafe impl Sync for Shared {}

/// A buffer for one received notification. The holder can answer this notification until the next
/// notification overwrites the buffer.
#[derive(Debug)]
pub struct NotificationBuffer {
    shared: Arc<Shared>,
    index: usize,
}

/// The table of held calls. All clones refer to the same table.
#[derive(Clone, Debug)]
pub struct HeldCalls {
    shared: Arc<Shared>,
}

/// A row of the table. The holder can answer the call of the row until the row is dropped.
#[derive(Debug)]
pub struct HeldCall {
    shared: Arc<Shared>,
    index: usize,
}

impl HeldCalls {
    /// Adds a call to the table. Call this function before the buffer of the call receives another
    /// notification. Returns `None` if the table is full ([`HELD_CALLS_MAX`] calls).
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

/// The handle with which the guardian controls the holder.
#[derive(Debug)]
pub struct ListenerHolder {
    pid: Pid,
    handle: OwnedFd,
    socket: OwnedFd,
    shared: Arc<Shared>,
}

impl ListenerHolder {
    /// Creates the holder.
    ///
    /// The holder is a child without an exit signal, in a session of its own. The holder closes all inherited
    /// descriptors except a pidfd of this process and one end of a socket pair. The holder opens
    /// `/proc/PID/stat` of this process. With CAP_SYS_RESOURCE, the OOM killer never selects the holder.
    ///
    /// Call this function early, because the holder keeps a copy of the memory that this process has at the
    /// call.
    ///
    /// # Errors
    ///
    /// Fails if the memory, the socket pair, a pidfd or the process cannot be created.
    pub fn start() -> Result<Self> {
        let shared = Arc::new(Shared::map()?);
        let (socket, remote) = socket::pair(libc::SOCK_SEQPACKET)?;
        let own = pidfd::open(Pid(std::process::id() as i32))?;
        // The holder has no exit signal, so that a wait for any child does not return the holder.
        let arguments = CloneArguments::default();
        let buffers = shared.buffers;
        let unanswered = Unanswered { buffers: buffers.cast().as_ptr(), calls: shared.calls().as_ptr() };
        // SAFETY: without CLONE_VM, the child gets a copy of this address space. The child makes only system
        // calls in `run`, and never returns to code that could wait for a lock of a missing thread.
        let result =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
        let pid = match result {
            -1 => return Err(Error::new("create the holder of listeners", Errno::last())),
            0 => process::run(own.as_raw_fd(), remote.as_raw_fd(), unanswered),
            child => Pid(child as i32),
        };
        // Children that are forked after this call do not inherit the mapping. If the call fails, these
        // children inherit the mapping but do not use it.
        // SAFETY: the range is a mapping of this process. The advice does not change its content.
        unsafe { libc::madvise(buffers.as_ptr().cast(), SHARED_BYTES, libc::MADV_DONTFORK) };
        Ok(Self { pid, handle: pidfd::open(pid)?, socket, shared })
    }

    /// Returns the pid of the holder.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reports whether the holder is alive. The holder ends before this process only if the holder is killed.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !ends_within(self.handle.as_fd(), 0)
    }

    /// Takes a buffer for one receiving thread. Returns `None` if all buffers are taken.
    #[must_use]
    pub fn buffer(&self) -> Option<NotificationBuffer> {
        let is_free = |taken: &AtomicBool| !taken.swap(true, Ordering::AcqRel);
        let index = self.shared.taken.iter().position(is_free)?;
        Some(NotificationBuffer { shared: Arc::clone(&self.shared), index })
    }

    /// Returns the table of held calls.
    #[must_use]
    pub fn held_calls(&self) -> HeldCalls {
        HeldCalls { shared: Arc::clone(&self.shared) }
    }

    /// Sends duplicates of a listener and of the file `broken` to the holder. The holder keeps both
    /// duplicates until no task uses the filter of the listener.
    ///
    /// `broken` must be open for writing. If the last task ends while this process is alive, the holder appends an end
    /// mark ([`end_of`]) to `broken`. If this process dies while a task uses the filter, the holder
    /// appends [`BROKEN_LINE`] to `broken`. If the holder cannot find out whether this process or the last
    /// task ended first, the holder appends the line, too.
    ///
    /// This process may have another descriptor that watches the subject, for example a fanotify group. At an
    /// exit of this process, the kernel releases this descriptor. With procfs, the holder detects the exit
    /// before the release. So the holder appends the line if the last task ends after the release.
    ///
    /// # Errors
    ///
    /// EPIPE or ECONNRESET if the holder is dead.
    pub fn hold(&self, listener: BorrowedFd<'_>, broken: BorrowedFd<'_>) -> Result<()> {
        reserve(broken);
        send_descriptors(self.socket.as_fd(), &[listener.as_raw_fd(), broken.as_raw_fd()])
    }

    /// Returns the socket to the holder. A child of this process can send its listener and a file through
    /// this socket, as `hold` does.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reserves blocks of the file, so that the holder can append the line on a full file system.
pub(crate) fn reserve(broken: BorrowedFd<'_>) {
    // SAFETY: the call takes plain numbers. If the file system cannot reserve blocks, the line is written
    // only if there is space.
    unsafe { libc::fallocate(broken.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) };
}

impl Drop for ListenerHolder {
    fn drop(&mut self) {
        // The message without descriptors dismisses the holder. If no task uses a held listener's filter, the
        // holder exits and does not append the line. Otherwise the holder stays, and lets the calls of the
        // subject continue after the end of this process.
        let asked = send_descriptors(self.socket.as_fd(), &[]);
        if asked.is_err() || ends_within(self.handle.as_fd(), EXIT_LIMIT_MS) {
            // SAFETY: the call takes plain numbers and does not wait. The holder is a child of this process,
            // so its pid is not reused before the holder is reaped here.
            unsafe { libc::waitpid(self.pid.get(), ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        }
    }
}

/// Reports whether a process ends within a time limit. `process` is a pidfd.
fn ends_within(process: BorrowedFd<'_>, milliseconds: i32) -> bool {
    let mut wait = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes one live pollfd.
    unsafe { libc::poll(&raw mut wait, 1, milliseconds) == 1 }
}

impl Shared {
    fn map() -> Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: mmap makes a new mapping at an address of the kernel's choice, and changes no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), SHARED_BYTES, protection, flags, -1, 0) };
        let failed = || Error::new("map memory for notifications", Errno::last());
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        let buffers = NonNull::new(start.cast()).ok_or_else(failed)?;
        Ok(Self { buffers, taken: [const { AtomicBool::new(false) }; BUFFERS_MAX] })
    }

    fn calls(&self) -> &[AtomicU64] {
        // SAFETY: from CALLS_AT on, the mapping has HELD_CALLS_MAX numbers, which are zero at first. The
        // numbers are aligned, as asserted above, and live as long as this value. Both processes access the
        // numbers only as atomics.
        unsafe {
            let start = self.buffers.as_ptr().cast::<u8>().add(CALLS_AT).cast();
            std::slice::from_raw_parts(start, HELD_CALLS_MAX)
        }
    }

    fn at(&self, index: usize) -> *mut Notification {
        debug_assert!(index < BUFFERS_MAX, "an index is one of `taken`");
        // SAFETY: the mapping has space for BUFFERS_MAX notifications, and the index is less than
        // BUFFERS_MAX.
        UnsafeCell::raw_get(unsafe { self.buffers.as_ptr().add(index) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped the range. Every buffer and every row holds a reference count of this
        // value, so no buffer and no row exists any more.
        unsafe { libc::munmap(self.buffers.as_ptr().cast(), SHARED_BYTES) };
    }
}

impl Deref for NotificationBuffer {
    type Target = Notification;

    fn deref(&self) -> &Notification {
        // SAFETY: the buffer is mapped as long as `shared` lives. The buffer contains zeroes or a
        // notification. No other `NotificationBuffer` has the same index.
        unsafe { &*self.shared.at(self.index) }
    }
}

impl DerefMut for NotificationBuffer {
    fn deref_mut(&mut self) -> &mut Notification {
        // SAFETY: the conditions of `deref` hold, and the borrow of this value is exclusive.
        unsafe { &mut *self.shared.at(self.index) }
    }
}

impl Drop for NotificationBuffer {
    fn drop(&mut self) {
        self.shared.taken[self.index].store(false, Ordering::Release);
    }
}
