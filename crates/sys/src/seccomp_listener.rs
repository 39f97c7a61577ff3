//! The notifications of a seccomp filter, and installing the filter in a program that is about to be executed.
//!
//! Owns: SECCOMP_FILTER_FLAG_NEW_LISTENER, the SECCOMP_IOCTL_NOTIF_* requests, SECCOMP_IOCTL_NOTIF_ADDFD among them.
//! Invariants: nothing of a call is done before its notification is answered; a listener is close-on-exec and is in no
//! program that is watched.
//! Does not: decide about calls. What the arguments point to can change between the answer and the call.
//!
//! Man page: seccomp(2), seccomp_unotify(2)
//! Since: Linux 5.5 (the answer that a call continues), 5.9 (ADDFD), 5.19 (WAIT_KILLABLE_RECV), 6.6 (SYNC_WAKE_UP)
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; files do not go back with a program that is not watched

use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use model::{Fd, Tid};

use crate::error::{Errno, Error, Result};
use crate::watch_filter::{AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, X32_BIT};
pub use crate::watch_filter::{FilterProgram, Reported, filter_program, is_own, watch_program};

/// SECCOMP_SET_MODE_FILTER.
pub const SET_FILTER: u64 = 1;
/// Flags of the filter: a listener; a call whose notification was received waits for the answer and for SIGKILL alone;
/// the filter changes nothing about speculative execution.
pub const FLAGS: u64 = FLAG_NEW_LISTENER | FLAG_SPECULATION | FLAG_WAIT_KILLABLE;
/// The same for kernels before 5.19: a signal breaks the wait off, and the call is reported once more.
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
/// SECCOMP_ADDFD_FLAG_SETFD.
const AT_NUMBER: u32 = 1;
const CONTINUE: u32 = 1;

/// Which notification is answered. Zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct NotificationId(pub u64);

const _: () = assert!(size_of::<NotificationId>() == 8);

/// `struct seccomp_data`.
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

/// `struct seccomp_notif`: a call that waits for its answer.
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

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Answer {
    id: NotificationId,
    value: i64,
    error: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Answer>() == 24);
const _: () = assert!(offset_of!(Answer, flags) == 20);

/// `struct seccomp_notif_addfd`.
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

/// `struct seccomp_notif_sizes`.
#[repr(C)]
#[derive(Default)]
struct Sizes {
    notification: u16,
    answer: u16,
    data: u16,
}

const _: () = assert!(size_of::<Sizes>() == 6);
const _: () = assert!(offset_of!(Sizes, data) == 4);

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const crate::watch_filter::Instruction,
}

const _: () = assert!(size_of::<Program>() == 16);
const _: () = assert!(offset_of!(Program, instructions) == 8);

/// Which table of numbers a call is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallTable {
    /// 64-bit calls.
    X86_64,
    /// 64-bit calls with 32-bit pointers.
    X32,
    /// 32-bit calls.
    I386,
    /// Unknown.
    Other,
}

/// What `Listener::receive` found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    /// A call waits for its answer.
    Call,
    /// None: the call is gone, or a signal came.
    Nothing,
}

/// What a listener waits with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// A notification can be received.
    Ready,
    /// No task uses the filter, and none will again.
    Gone,
    /// Nothing came in time.
    TimedOut,
}

impl Notification {
    /// By what it is answered.
    #[must_use]
    pub fn id(&self) -> NotificationId {
        self.id
    }

    /// The thread that makes the call, in the pid namespace of the receiver; 0 if it is not visible there.
    #[must_use]
    pub fn tid(&self) -> Tid {
        Tid(self.tid as i32)
    }

    /// The number of the call in its table.
    #[must_use]
    pub fn call(&self) -> i64 {
        let number = self.data.number;
        i64::from(if self.table() == CallTable::X32 { number & !(X32_BIT as i32) } else { number })
    }

    /// Its table.
    #[must_use]
    pub fn table(&self) -> CallTable {
        match self.data.architecture {
            AUDIT_ARCH_X86_64 if self.data.number as u32 & X32_BIT != 0 => CallTable::X32,
            AUDIT_ARCH_X86_64 => CallTable::X86_64,
            AUDIT_ARCH_I386 => CallTable::I386,
            _ => CallTable::Other,
        }
    }

    /// The arguments of the call; the upper halves of 32-bit ones mean nothing.
    #[must_use]
    pub fn arguments(&self) -> [u64; 6] {
        self.data.arguments
    }
}

/// The receiving end of a filter.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
}

impl Listener {
    /// Takes a descriptor that a filter's installation has given.
    ///
    /// # Errors
    ///
    /// ENOSYS if the kernel's structures have other sizes than those known here.
    pub fn new(descriptor: OwnedFd) -> Result<Self> {
        check_sizes()?;
        Ok(Self { descriptor })
    }

    /// Has the kernel wake the receiver and the caller on the processor of the other: 5 instead of 66 us a
    /// notification. Whether it did; kernels before 6.6 cannot.
    #[must_use]
    pub fn use_sync_wake_up(&self) -> bool {
        // SAFETY: plain numbers; the argument of this request is a value.
        unsafe { libc::ioctl(self.descriptor.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) == 0 }
    }

    /// Waits until there is something to receive or no process left to receive it from. Without a limit, as long as
    /// it takes.
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

    /// Receives the next call, and waits for it if there is none. When no task is left, kernels before 6.11 wait for
    /// ever: call `wait` before.
    ///
    /// A buffer of the listener holder keeps the call answerable after the death of this process.
    pub fn receive(&self, into: &mut Notification) -> Result<Receipt> {
        // The kernel refuses a buffer that is not zero.
        *into = Notification::default();
        // SAFETY: the request number says that the structure has 80 bytes, which is that of the live one.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), RECEIVE, &raw mut *into) };
        if result == 0 {
            return Ok(Receipt::Call);
        }
        match Errno::last() {
            Errno(libc::EINTR | libc::ENOENT) => Ok(Receipt::Nothing),
            errno => Err(Error::new("receive a call of the subject", errno)),
        }
    }

    /// Lets a call happen. False if no thread waits for the answer: the thread was killed, or a signal broke the wait
    /// off.
    pub fn answer_continue(&self, id: NotificationId) -> Result<bool> {
        self.answer(&Answer { id, value: 0, error: 0, flags: CONTINUE })
    }

    /// Has a call fail without happening. False as above.
    pub fn answer_errno(&self, id: NotificationId, errno: Errno) -> Result<bool> {
        self.answer(&Answer { id, value: 0, error: -errno.0, flags: 0 })
    }

    /// Has a call succeed with this result without happening. False as above.
    pub fn answer_value(&self, id: NotificationId, value: i64) -> Result<bool> {
        self.answer(&Answer { id, value, error: 0, flags: 0 })
    }

    /// Puts a duplicate of a descriptor over one of the caller, which stays open until then. The caller still waits for
    /// its answer afterwards.
    ///
    /// # Errors
    ///
    /// ENOENT if the call is gone, EBADF if the number is above the caller's limit, EINVAL before Linux 5.9.
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

    /// Makes a request about a call, again for as long as a signal to this thread keeps it from taking the kernel's lock
    /// of the filter: a call whose answer is given up would wait for ever.
    fn request<T>(&self, number: libc::c_ulong, structure: *const T) -> std::result::Result<(), Errno> {
        loop {
            // SAFETY: the kernel reads as many bytes as the number of the request says, which is the size of `T`; the
            // callers pass structures that live.
            let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), number, structure) };
            match Errno::last() {
                _ if result >= 0 => return Ok(()),
                Errno(libc::EINTR) => {}
                errno => return Err(errno),
            }
        }
    }

    /// Whether the call still waits: what was read of its thread by the thread's number since the receipt is of this
    /// thread and of no later one with the same number.
    #[must_use]
    pub fn is_valid(&self, id: NotificationId) -> bool {
        self.request(ID_VALID, &raw const id).is_ok()
    }
}

/// Whether what poll(2) says of a listener means that no task uses its filter. POLLERR means a signal to the thread that
/// asks, while another task has the kernel's lock of the filter (`seccomp_notify_poll`, Linux 6.18).
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
    if result < 0 {
        return Err(Error::new("ask for the sizes of seccomp notifications", Errno::last()));
    }
    let found = [sizes.notification, sizes.answer, sizes.data].map(usize::from);
    if found == [size_of::<Notification>(), size_of::<Answer>(), size_of::<CallData>()] {
        Ok(())
    } else {
        Err(Error::new("use seccomp notifications of an unknown size", Errno::ENOSYS))
    }
}

/// The flags that a filter is installed with, and those for a kernel that refuses them with EINVAL.
///
/// A call of an interruptible filter that waits for its answer is broken off by a signal and by the stop of a tracer, as
/// connect(2) is. It is then repeated and reported once more, unless the signal has a handler without SA_RESTART: the
/// call fails with EINTR. A call of any other filter waits for the answer and for SIGKILL alone.
#[must_use]
pub fn flags_of(program: &FilterProgram) -> [u64; 2] {
    [if program.is_interruptible() { FLAGS_INTERRUPTIBLE } else { FLAGS }, FLAGS_INTERRUPTIBLE]
}

/// Installs a filter in the calling thread, and in those that it creates later. Needs CAP_SYS_ADMIN: without
/// no_new_privs, the program that is executed keeps what set-user-ID bits give. The listener is close-on-exec.
///
/// # Errors
///
/// EACCES without the privilege, EBUSY if the thread has a filter with a listener already.
pub fn install(program: &FilterProgram) -> Result<OwnedFd> {
    let (instructions, all_flags) = (program.instructions(), flags_of(program));
    let program = Program { length: instructions.len() as u16, instructions: instructions.as_ptr() };
    let mut result = -1;
    for flags in all_flags {
        // SAFETY: the kernel reads the program, whose length is that of the live slice behind it.
        result = unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, flags, &raw const program) };
        if result >= 0 || Errno::last() != Errno::EINVAL {
            break;
        }
    }
    if result < 0 {
        return Err(Error::new("install a seccomp filter with a listener", Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}
