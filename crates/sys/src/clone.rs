//! Processes with a chosen number.
//!
//! Owns: clone3(2) with `set_tid`, the few instructions a new process runs before it is traced.
//! Invariants: the child runs system calls only (the parent may have threads), and ends with its parent.
//! Does not: build anything in the child; that is done from outside.
//!
//! Man page: clone3(2)
//! Since: Linux 5.5 (`set_tid`)
//! Probe: `features::REGISTRY` entry "set-tid"
//! Fallback: none; a restore needs the pids of the checkpoint

use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;

use model::Pid;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Errno, Error, Result};

/// Arguments of clone3(2), as the kernel lays them out since 5.7.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneArguments {
    /// CLONE_* flags without the exit signal.
    pub flags: u64,
    /// Where to store a pidfd.
    pub pidfd: u64,
    /// Where the child stores its number.
    pub child_tid: u64,
    /// Where the parent stores the child's number.
    pub parent_tid: u64,
    /// The signal that tells the parent of the child's end.
    pub exit_signal: u64,
    /// Lowest address of the child's stack.
    pub stack: u64,
    /// Length of that stack.
    pub stack_size: u64,
    /// Thread-local storage pointer.
    pub tls: u64,
    /// Address of an array of wanted numbers, innermost namespace first.
    pub set_tid: u64,
    /// Length of that array.
    pub set_tid_size: u64,
    /// Descriptor of the wanted cgroup.
    pub cgroup: u64,
}

const _: () = assert!(size_of::<CloneArguments>() == 88);
const _: () = assert!(offset_of!(CloneArguments, set_tid) == 64);

impl CloneArguments {
    /// The structure's bytes, to be written into another process.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let words = [
            self.flags,
            self.pidfd,
            self.child_tid,
            self.parent_tid,
            self.exit_signal,
            self.stack,
            self.stack_size,
            self.tls,
            self.set_tid,
            self.set_tid_size,
            self.cgroup,
        ];
        let mut bytes = [0; size_of::<Self>()];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Which number a new process gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedPid {
    /// Exactly this one.
    Exactly(Pid),
    /// Whatever the kernel gives.
    Any,
}

/// Creates a process that does nothing but wait to be seized; its signal actions are the defaults, and it ends with
/// this one. Both holds when this returns.
pub fn spawn_waiting(wanted: WantedPid) -> Result<Pid> {
    let number = if let WantedPid::Exactly(pid) = wanted { pid.get() } else { 0 };
    let mut arguments = CloneArguments { exit_signal: libc::SIGCHLD as u64, ..CloneArguments::default() };
    if number != 0 {
        arguments.set_tid = (&raw const number) as u64;
        arguments.set_tid_size = 1;
    }
    let failed = |errno: rustix::io::Errno| Error::new("make a pipe to a new process", errno);
    // A tracer that seizes the child at once would stop it before it has done anything.
    let (ready, tell_ready) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    // SAFETY: without CLONE_VM the child gets a copy of this address space; it only makes system calls in
    // `wait_for_seizure` and never returns into code that could take a lock of a thread that is not there.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
    match result {
        -1 => Err(Error::process("create a process with the number", Pid(number), Errno::last())),
        0 => wait_for_seizure(ready.as_raw_fd(), tell_ready.as_raw_fd()),
        child => {
            drop(tell_ready);
            // Nothing to read means that it has ended, which its tracer will find.
            rustix::io::retry_on_intr(|| rustix::io::read(&ready, &mut [0_u8; 1])).map_err(failed)?;
            Ok(Pid(child as i32))
        }
    }
}

/// Ends a child of this process that was just created, and takes its end.
pub fn end(pid: Pid) {
    // While its end has not been taken, no other process has its number; a child that is gone cannot be waited for.
    if crate::ptrace::peek(pid.leader()).is_ok() {
        let _ = crate::signal::send(pid, model::Signal(libc::SIGKILL));
        let _ = reap(pid);
    }
}

/// Waits for the end of a child, whatever signal tells of it; its wait status.
pub(crate) fn reap(pid: Pid) -> Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one int at the address given.
        match unsafe { libc::waitpid(pid.get(), &raw mut status, libc::__WALL) } {
            -1 if Errno::last().0 == libc::EINTR => {}
            -1 => return Err(Error::process("wait for", pid, Errno::last())),
            _ => return Ok(status),
        }
    }
}

fn wait_for_seizure(ready: i32, tell_ready: i32) -> ! {
    const SIGNAL_MAX: i32 = 64;
    let default_action = [0_u64; 4];
    // SAFETY: plain system calls on numbers and on one zeroed buffer of the kernel's sigaction size, in a
    // process of our own that never returns from here.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        for signal in 1..=SIGNAL_MAX {
            libc::syscall(libc::SYS_rt_sigaction, signal, default_action.as_ptr(), 0_usize, 8_usize);
        }
        // With the only reader dead before its death could have been told, this ends the child.
        libc::syscall(libc::SYS_close, ready);
        if libc::syscall(libc::SYS_write, tell_ready, default_action.as_ptr(), 1_usize) != 1 {
            libc::syscall(libc::SYS_exit_group, 1);
        }
        loop {
            libc::syscall(libc::SYS_pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_process_has_its_defaults_before_anybody_can_seize_it() {
        const ROUNDS: usize = 50;
        // Rust's runtime ignores SIGPIPE, so a child that has done nothing yet ignores it as well.
        for _ in 0..ROUNDS {
            let pid = spawn_waiting(WantedPid::Any).unwrap();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            crate::signal::send(pid, model::Signal(9)).unwrap();
            let child = rustix::process::Pid::from_raw(pid.get());
            rustix::process::waitpid(child, rustix::process::WaitOptions::empty()).unwrap();
            let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
            assert_eq!(u64::from_str_radix(ignored, 16).unwrap(), 0);
        }
    }
}
