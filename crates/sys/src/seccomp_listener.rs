//! Seccomp notifications: installs filters that report system calls, receives the reported calls and answers them.
//!
//! A *listener* is the descriptor of a filter. When a thread makes a *reported* call, the kernel sends a
//! *notification* to the listener. The thread waits until the receiver of the notification sends an answer through
//! the listener.
//!
//! Owns: SECCOMP_FILTER_FLAG_NEW_LISTENER, and the SECCOMP_IOCTL_NOTIF_* requests with SECCOMP_IOCTL_NOTIF_ADDFD.
//! Invariants: the kernel does not begin a reported call before its notification is answered. A listener is
//! close-on-exec, and no program whose calls are reported has a listener.
//! Does not: decide which calls may continue. The memory behind a pointer argument can change between the answer
//! and the execution of the call. So a decision about the content would be unsafe.
//!
//! Man page: seccomp(2), seccomp_unotify(2)
//! Since: Linux 5.5 (SECCOMP_USER_NOTIF_FLAG_CONTINUE), 5.9 (ADDFD), 5.19 (WAIT_KILLABLE_RECV), 6.6 (SYNC_WAKE_UP)
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; files of an unwatched program are not rolled back

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use model::{Fd, Tid};

use crate::error::{Errno, Error, Result, done, owned};
use crate::watch_filter::{AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, X32_BIT};
pub use crate::watch_filter::{FilterProgram, Reported, filter_program, is_own, watch_program};

/// The operation SECCOMP_SET_MODE_FILTER of seccomp(2).
pub const SET_FILTER: u64 = 1;
/// Flags of a filter. The filter has a listener and does not change speculative execution. Once the notification of
/// a call was received, only the answer or SIGKILL ends the wait of the call.
pub const FLAGS: u64 = FLAG_NEW_LISTENER | FLAG_SPECULATION | FLAG_WAIT_KILLABLE;
/// Flags of an interruptible filter ([`flags_of`]), and of every filter on kernels before 5.19. A signal interrupts
/// the wait for the answer, and the call is reported again.
pub const FLAGS_INTERRUPTIBLE: u64 = FLAG_NEW_LISTENER | FLAG_SPECULATION;
const FLAG_SPECULATION: u64 = 1 << 2;
const FLAG_NEW_LISTENER: u64 = 1 << 3;
const FLAG_WAIT_KILLABLE: u64 = 1 << 5;

const GET_NOTIF_SIZES: u64 = 3;
const RECEIVE: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const ID_VALID: libc::c_ulong = 0x4008_2102;
const ADD_FD: libc::c_ulong = 0x4018_2103;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;
/// SECCOMP_ADDFD_FLAG_SETFD: the new descriptor gets a given number.
const AT_NUMBER: u32 = 1;
const CONTINUE: u32 = 1;

/// The id of a notification. Zero means no notification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct NotificationId(pub u64);

const _: () = assert!(size_of::<NotificationId>() == 8);

/// `struct seccomp_data`: the system call of a notification.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct CallData {
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

const _: () = assert!(size_of::<CallData>() == 64);
const _: () = assert!(offset_of!(CallData, arguments) == 16);

/// `struct seccomp_notif`: a reported call that waits for its answer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notification {
    id: NotificationId,
    tid: u32,
    flags: u32,
    data: CallData,
}

const _: () = assert!(size_of::<Notification>() == 80);
const _: () = assert!(offset_of!(Notification, data) == 16);

/// `struct seccomp_notif_resp`: the answer to a notification.
#[repr(C)]
struct Answer {
    id: NotificationId,
    value: i64,
    error: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Answer>() == 24);
const _: () = assert!(offset_of!(Answer, flags) == 20);

/// `struct seccomp_notif_addfd`: a request that gives a descriptor to the process of a reported call.
#[repr(C)]
struct AddedFd {
    id: NotificationId,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

const _: () = assert!(size_of::<AddedFd>() == 24);
const _: () = assert!(offset_of!(AddedFd, number_flags) == 20);

/// `struct seccomp_notif_sizes`: the sizes of the structures in the kernel.
#[repr(C)]
#[derive(Default)]
struct Sizes {
    notification: u16,
    answer: u16,
    data: u16,
}

const _: () = assert!(size_of::<Sizes>() == 6);
const _: () = assert!(offset_of!(Sizes, data) == 4);

/// `struct sock_fprog`: the program of a filter.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const crate::watch_filter::Instruction,
}

const _: () = assert!(size_of::<Program>() == 16);
const _: () = assert!(offset_of!(Program, instructions) == 8);

/// The system call table that the number of a call belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallTable {
    /// 64-bit calls of x86-64.
    X86_64,
    /// 64-bit calls with 32-bit pointers (x32).
    X32,
    /// 32-bit calls of i386.
    I386,
    /// A table that this module does not know.
    Other,
}

/// The result of [`Listener::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// A call was received and waits for its answer.
    Call,
    /// No call was received: the reported call no longer waits, or a signal interrupted the receiver.
    Nothing,
}

/// The result of [`Listener::wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// A notification can be received.
    Ready,
    /// No task uses the filter, and no task will use the filter again.
    Gone,
    /// No notification came before the time limit, or a signal interrupted the wait.
    TimedOut,
}

impl Notification {
    /// Returns the id that an answer must name.
    #[must_use]
    pub fn id(&self) -> NotificationId {
        self.id
    }

    /// Returns the thread that makes the call, in the pid namespace of the receiver. The tid is 0 if the thread is
    /// not visible in this namespace.
    #[must_use]
    pub fn tid(&self) -> Tid {
        Tid(self.tid as i32)
    }

    /// Returns the number of the call in its table.
    #[must_use]
    pub fn call(&self) -> i64 {
        let number = self.data.number;
        i64::from(if self.table() == CallTable::X32 { number & !(X32_BIT as i32) } else { number })
    }

    /// Returns the table of the call.
    #[must_use]
    pub fn table(&self) -> CallTable {
        match self.data.architecture {
            AUDIT_ARCH_X86_64 if self.data.number as u32 & X32_BIT != 0 => CallTable::X32,
            AUDIT_ARCH_X86_64 => CallTable::X86_64,
            AUDIT_ARCH_I386 => CallTable::I386,
            _ => CallTable::Other,
        }
    }

    /// Returns the arguments of the call. The upper halves of 32-bit arguments have no meaning.
    #[must_use]
    pub fn arguments(&self) -> [u64; 6] {
        self.data.arguments
    }
}

/// The descriptor that receives and answers the notifications of a filter.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
}

impl Listener {
    /// Creates a listener from the descriptor that the installation of a filter returned.
    ///
    /// # Errors
    ///
    /// ENOSYS if a structure of the kernel and the same structure in this module differ in size.
    pub fn new(descriptor: OwnedFd) -> Result<Self> {
        check_sizes()?;
        Ok(Self { descriptor })
    }

    /// Makes the kernel wake the receiver on the processor of the thread that makes the call. The answer wakes this
    /// thread on the processor of the receiver. The mode reduces the time of a notification from 66 µs to 5 µs.
    /// Returns false if the kernel does not support the mode (before Linux 6.6).
    #[must_use]
    pub fn use_sync_wake_up(&self) -> bool {
        // SAFETY: plain numbers; the argument of this request is a value.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) == 0 }
    }

    /// Waits until a notification can be received, or until no task uses the filter. Without a limit, the wait
    /// never times out.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Waited> {
        let mut wait = libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = limit.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: the kernel reads and writes one pollfd at the address given.
        match unsafe { libc::poll(&raw mut wait, 1, milliseconds) } {
            -1 if Errno::last().0 == libc::EINTR => Ok(Waited::TimedOut),
            -1 => Err(Error::new("wait for a call of the subject", Errno::last())),
            0 => Ok(Waited::TimedOut),
            _ if wait.revents & libc::POLLIN != 0 => Ok(Waited::Ready),
            _ if is_gone(wait.revents) => Ok(Waited::Gone),
            _ => Ok(Waited::TimedOut),
        }
    }

    /// Receives the next call, and blocks until a call is reported. On kernels before 6.11, this function blocks
    /// forever if no task uses the filter. Therefore, call [`Self::wait`] first.
    ///
    /// The listener holder is a separate process ([`crate::listener_holder`]). If `into` is a buffer of the holder,
    /// the holder can answer the call after the death of this process.
    pub fn receive(&self, into: &mut Notification) -> Result<Receipt> {
        // The kernel refuses a buffer that is not zeroed.
        *into = Notification::default();
        // SAFETY: the request number encodes a structure of 80 bytes, which is the size of the live structure.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), RECEIVE, &raw mut *into) };
        if result == 0 {
            return Ok(Receipt::Call);
        }
        match Errno::last() {
            Errno(libc::EINTR | libc::ENOENT) => Ok(Receipt::Nothing),
            errno => Err(Error::new("receive a call of the subject", errno)),
        }
    }

    /// Lets a call continue. Returns false if no thread waits for the answer: the thread was killed, or a signal
    /// interrupted the wait.
    pub fn answer_continue(&self, id: NotificationId) -> Result<bool> {
        self.answer(&Answer { id, value: 0, error: 0, flags: CONTINUE })
    }

    /// Makes a call fail with `errno`, without executing the call. Returns false like [`Self::answer_continue`].
    pub fn answer_errno(&self, id: NotificationId, errno: Errno) -> Result<bool> {
        self.answer(&Answer { id, value: 0, error: -errno.0, flags: 0 })
    }

    /// Makes a call return `value`, without executing the call. Returns false like [`Self::answer_continue`].
    pub fn answer_value(&self, id: NotificationId, value: i64) -> Result<bool> {
        self.answer(&Answer { id, value, error: 0, flags: 0 })
    }

    /// Replaces a descriptor of the process that makes the call: `at` becomes a duplicate of `source`. The
    /// replacement is atomic, as with dup2(2). The call still waits for its answer afterwards.
    ///
    /// # Errors
    ///
    /// ENOENT if the call no longer waits, EBADF if `at` is above the descriptor limit of the process, EINVAL
    /// before Linux 5.9.
    pub fn replace_descriptor(
        &self,
        id: NotificationId,
        source: BorrowedFd<'_>,
        at: Fd,
        closes_on_exec: bool,
    ) -> Result<()> {
        let added = AddedFd {
            id,
            flags: AT_NUMBER,
            source: source.as_raw_fd() as u32,
            number: at.get() as u32,
            number_flags: if closes_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        self.request(ADD_FD, &raw const added)
            .map_err(|errno| Error::new("replace a descriptor of a waiting call", errno))
    }

    fn answer(&self, answer: &Answer) -> Result<bool> {
        match self.request(SEND, &raw const *answer) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(Error::new("answer a call of the subject", errno)),
        }
    }

    /// Makes a request about a call, and repeats the request as long as the request fails with EINTR. EINTR means
    /// that a signal to this thread interrupted the wait for the kernel's lock of the filter. Without the
    /// repetition, the call could wait for its answer forever.
    fn request<T>(&self, number: libc::c_ulong, structure: *const T) -> std::result::Result<(), Errno> {
        loop {
            // SAFETY: the kernel reads as many bytes as the request number encodes, which is the size of `T`. The
            // callers pass live structures.
            let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), number, structure) };
            match Errno::last() {
                _ if result >= 0 => return Ok(()),
                Errno(libc::EINTR) => {}
                errno => return Err(errno),
            }
        }
    }

    /// Reports whether a call still waits for its answer. While the call waits, its thread exists, and no other
    /// thread can have the same tid. A receiver that has read data of this thread by the tid must make this check
    /// afterwards. If the call still waits, the data belongs to the thread of the call.
    #[must_use]
    pub fn is_valid(&self, id: NotificationId) -> bool {
        self.request(ID_VALID, &raw const id).is_ok()
    }
}

/// Reports whether the poll(2) events of a listener mean that no task uses its filter. POLLERR does not mean this.
/// The kernel returns POLLERR if the polling thread got a signal while another task held the kernel's lock of the
/// filter (`seccomp_notify_poll`, Linux 6.18).
pub(crate) fn is_gone(events: i16) -> bool {
    events & (libc::POLLHUP | libc::POLLNVAL) != 0
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn check_sizes() -> Result<()> {
    let mut sizes = Sizes::default();
    // SAFETY: the kernel writes three u16 at the address given.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, GET_NOTIF_SIZES, 0, &raw mut sizes) };
    done("ask for the sizes of seccomp notifications", result)?;
    let found = [sizes.notification, sizes.answer, sizes.data].map(usize::from);
    if found == [size_of::<Notification>(), size_of::<Answer>(), size_of::<CallData>()] {
        Ok(())
    } else {
        Err(Error::new("use seccomp notifications of an unknown size", Errno::ENOSYS))
    }
}

/// Returns two sets of flags for installing a filter. The second set is for kernels that refuse the first set with
/// EINVAL.
///
/// With an interruptible filter, a signal or a stop by a tracer interrupts a call that waits for its answer. If the
/// signal has a handler without SA_RESTART, the interrupted call fails with EINTR, as connect(2) does. In all other
/// cases, the kernel repeats the interrupted call, and the call is reported again. With a filter that is not
/// interruptible, a call waits only for the answer or for SIGKILL.
#[must_use]
pub fn flags_of(program: &FilterProgram) -> [u64; 2] {
    [if program.is_interruptible() { FLAGS_INTERRUPTIBLE } else { FLAGS }, FLAGS_INTERRUPTIBLE]
}

/// Installs a filter in the calling thread. Threads that the calling thread creates afterwards inherit the filter.
/// The returned listener is close-on-exec.
///
/// The function does not set no_new_privs, so that the set-user-ID bits of executed programs still work. For a
/// thread without no_new_privs, the kernel requires CAP_SYS_ADMIN.
///
/// # Errors
///
/// EACCES without CAP_SYS_ADMIN, EBUSY if the thread already has a filter with a listener.
pub fn install(program: &FilterProgram) -> Result<OwnedFd> {
    let (instructions, all_flags) = (program.instructions(), flags_of(program));
    let program = Program { length: instructions.len() as u16, instructions: instructions.as_ptr() };
    let mut result = -1;
    for flags in all_flags {
        // SAFETY: the kernel reads the program, whose length is the length of the live slice.
        result = unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, flags, &raw const program) };
        if result >= 0 || Errno::last() != Errno::EINVAL {
            break;
        }
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    unsafe { owned(result) }.map_err(|errno| Error::new("install a seccomp filter with a listener", errno))
}
