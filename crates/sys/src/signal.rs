//! Sends signals, and sets the signal mask of the calling thread and the signal actions of this process.
//!
//! Owns: tgkill(2), rt_sigqueueinfo(2), rt_tgsigqueueinfo(2), kill(2), rt_sigprocmask(2), rt_sigaction(2).
//! Invariants: a thread is named by its pid and its tid, so that no signal reaches another process that reuses the
//! tid.
//! Does not: handle signals; a thread that waits for signals blocks these signals and reads a signalfd.
//!
//! Man page: tgkill(2), rt_sigqueueinfo(2), rt_sigprocmask(2)
//! Since: Linux 2.6.31
//! Probe: none needed
//! Fallback: none needed

use model::{Pid, Signal, Tid};

use crate::error::{Errno, Error, Result};
use crate::ptrace::SiginfoBytes;

/// Sends a signal to one thread.
pub fn send_to_thread(pid: Pid, tid: Tid, signal: Signal) -> Result<()> {
    // SAFETY: tgkill takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, pid.get(), tid.get(), signal.get()) };
    if result == 0 { Ok(()) } else { Err(Error::thread("send a signal", tid, Errno::last())) }
}

/// Sends a signal to a process.
pub fn send(pid: Pid, signal: Signal) -> Result<()> {
    // SAFETY: kill takes plain numbers.
    let result = unsafe { libc::kill(pid.get(), signal.get()) };
    if result == 0 { Ok(()) } else { Err(Error::process("send a signal", pid, Errno::last())) }
}

/// Sends a signal to all processes of a process group. Fails with EINVAL for group 1, because kill(2) with -1 means
/// every process.
pub fn send_to_group(group: Pid, signal: Signal) -> Result<()> {
    if group.get() <= 1 {
        return Err(Error::process("send a signal to the group", group, Errno(libc::EINVAL)));
    }
    // SAFETY: kill takes plain numbers.
    let result = unsafe { libc::kill(-group.get(), signal.get()) };
    let failed = || Error::process("send a signal to the group", group, Errno::last());
    if result == 0 { Ok(()) } else { Err(failed()) }
}

/// Queues a signal with its `siginfo_t` to a process.
pub fn queue(pid: Pid, signal: Signal, information: &SiginfoBytes) -> Result<()> {
    // SAFETY: the kernel reads 128 bytes of the borrowed array.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, pid.get(), signal.get(), information.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(Error::process("queue a signal", pid, Errno::last())) }
}

/// Blocks the signals of a set in the calling thread; threads that this thread creates later inherit the mask.
/// Returns the set that was blocked before. Bit 0 stands for signal 1.
pub fn block(signals: u64) -> Result<u64> {
    change_mask(libc::SIG_BLOCK, signals)
}

/// Unblocks the signals of a set in the calling thread. Returns the set that was blocked before. Bit 0 stands for
/// signal 1.
pub fn unblock(signals: u64) -> Result<u64> {
    change_mask(libc::SIG_UNBLOCK, signals)
}

/// Returns the blocked signals that are pending for the calling thread or its process. Bit 0 stands for signal 1.
pub fn pending() -> Result<u64> {
    let mut signals = 0_u64;
    // SAFETY: the kernel writes eight bytes to `signals`, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut signals, size_of::<u64>()) };
    if result == 0 { Ok(signals) } else { Err(Error::new("list pending signals", Errno::last())) }
}

/// A signal that [`take`] has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The signal.
    pub signal: Signal,
    /// The origin of the signal (`si_code`). Above zero, the kernel sent the signal.
    pub code: i32,
    /// The process that sent the signal, unless the kernel sent it.
    pub sender: Option<Pid>,
}

/// Receives the next pending signal of a set of blocked signals. Returns `None` if no signal of the set is pending. Bit
/// 0 stands for signal 1.
pub fn take(signals: u64) -> Result<Option<Received>> {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut information = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY: the kernel reads eight bytes from `signals` and a timespec from `at_once`, and writes a siginfo_t to
        // `information`. The three variables outlive the call.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const signals,
                information.as_mut_ptr(),
                &raw const at_once,
                size_of::<u64>(),
            )
        };
        if taken > 0 {
            // SAFETY: all bytes are initialized, and any bytes are a valid siginfo_t.
            let information = unsafe { information.assume_init() };
            let code = information.si_code;
            // SAFETY: with a code of a process (kill, tgkill, sigqueue), the kernel has set the pid.
            let sender = (code <= 0).then(|| Pid(unsafe { information.si_pid() }));
            return Ok(Some(Received { signal: Signal(taken as i32), code, sender }));
        }
        match Errno::last() {
            Errno::EAGAIN => return Ok(None),
            Errno(libc::EINTR) => {}
            errno => return Err(Error::new("receive a signal", errno)),
        }
    }
}

/// Sets up a command so that its program starts with the signal mask `blocked`. The signals of `defaults` get their
/// default actions. Bit 0 of each set stands for signal 1.
pub fn start_with(
    command: &mut std::process::Command,
    blocked: u64,
    defaults: u64,
) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    let prepare = move || {
        let signals =
            (1..=u64::BITS as i32).map(Signal).filter(|signal| defaults >> (signal.get() - 1) & 1 == 1);
        for signal in signals {
            set_default(signal).map_err(|error| std::io::Error::from_raw_os_error(error.errno.0))?;
        }
        change_mask(libc::SIG_SETMASK, blocked)
            .map(drop)
            .map_err(|error| std::io::Error::from_raw_os_error(error.errno.0))
    };
    // SAFETY: between fork and exec, the closure makes system calls only. The closure takes no lock, and allocates
    // nothing unless a call fails.
    unsafe { command.pre_exec(prepare) }
}

fn change_mask(how: i32, signals: u64) -> Result<u64> {
    let mut before = 0_u64;
    // SAFETY: the kernel reads eight bytes from `signals` and writes eight bytes to `before`. Both variables
    // outlive the call.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals, &raw mut before, size_of::<u64>())
    };
    if result == 0 { Ok(before) } else { Err(Error::new("change the signal mask", Errno::last())) }
}

/// Gives a signal its default action in this process.
pub fn set_default(signal: Signal) -> Result<()> {
    // SAFETY: the default action runs no code of this process.
    let result = unsafe { libc::signal(signal.get(), libc::SIG_DFL) };
    if result == libc::SIG_ERR { Err(Error::new("reset a signal action", Errno::last())) } else { Ok(()) }
}

/// Sets whether the kernel sends SIGCHLD for stops of children and tracees. For their ends, the kernel always sends
/// SIGCHLD.
///
/// The action of SIGCHLD becomes a handler that does nothing. The default action would discard a pending SIGCHLD,
/// even if a signalfd is about to read the signal.
pub fn report_child_stops(is_reported: bool) -> Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | if is_reported { 0 } else { libc::SA_NOCLDSTOP };
    // SAFETY: the action outlives the call, and its handler does nothing.
    let result = unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(Error::new("set the action of SIGCHLD", Errno::last())) }
}

/// Makes this process ignore a signal.
pub fn set_ignored(signal: Signal) -> Result<()> {
    // SAFETY: ignoring a signal runs no code of this process.
    let result = unsafe { libc::signal(signal.get(), libc::SIG_IGN) };
    if result == libc::SIG_ERR { Err(Error::new("ignore a signal", Errno::last())) } else { Ok(()) }
}
