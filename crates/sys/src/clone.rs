//! Creates processes with chosen pids.
//!
//! Owns: clone3(2) with `set_tid`, and the few instructions that a new process executes before it is traced.
//! Invariants: the child makes only system calls. The reason: another thread of the parent may hold a lock at the
//! clone, and no thread of the child would release the copy of this lock. The child ends when its parent ends.
//! Does not: set up the state of the child; a tracer does.
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

/// Arguments of clone3(2), in the layout of the kernel since Linux 5.7.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneArguments {
    /// CLONE_* flags without the exit signal.
    pub flags: u64,
    /// Address where the kernel stores a pidfd of the child.
    pub pidfd: u64,
    /// Address in the memory of the child where the kernel stores the tid of the child.
    pub child_tid: u64,
    /// Address in the memory of the parent where the kernel stores the tid of the child.
    pub parent_tid: u64,
    /// Signal that the parent receives when the child ends.
    pub exit_signal: u64,
    /// Lowest address of the child's stack.
    pub stack: u64,
    /// Length of the child's stack in bytes.
    pub stack_size: u64,
    /// Thread-local storage pointer.
    pub tls: u64,
    /// Address of an array of wanted pids, from the innermost to the outermost pid namespace.
    pub set_tid: u64,
    /// Number of elements in the `set_tid` array.
    pub set_tid_size: u64,
    /// Descriptor of the wanted cgroup.
    pub cgroup: u64,
}

const _: () = assert!(size_of::<CloneArguments>() == 88);
const _: () = assert!(offset_of!(CloneArguments, set_tid) == 64);

impl CloneArguments {
    /// Returns the bytes of the structure, for writing into another process.
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

/// Creates a process that executes `run` in a copy of this address space, and exits. With the default arguments, a wait for
/// any child does not return the process, because it has no exit signal.
///
/// # Safety
///
/// `run` makes only system calls, and allocates nothing: another thread of this process may hold a lock at the call. The
/// addresses in `arguments` are valid, and `arguments` does not contain CLONE_VM.
pub(crate) unsafe fn create(
    arguments: &CloneArguments,
    run: impl FnOnce(),
) -> std::result::Result<Pid, Errno> {
    // SAFETY: the kernel reads the structure, and uses its addresses as the caller has promised. The child does
    // not return from this function.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const *arguments, size_of::<CloneArguments>()) } {
        -1 => Err(Errno::last()),
        0 => {
            run();
            // SAFETY: the call ends only the new process.
            unsafe { libc::_exit(0) }
        }
        child => Ok(Pid(child as i32)),
    }
}

/// The choice of the pid for a new process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WantedPid {
    /// Exactly this pid.
    Exactly(Pid),
    /// Any pid that the kernel chooses.
    Any,
}

/// Creates a child process that only waits for a tracer to attach (PTRACE_SEIZE). When the function returns, all
/// signal actions of the child are the defaults. The child ends when this process ends.
pub fn spawn_waiting(wanted: WantedPid) -> Result<Pid> {
    let number = if let WantedPid::Exactly(pid) = wanted { pid.get() } else { 0 };
    let mut arguments = CloneArguments { exit_signal: libc::SIGCHLD as u64, ..CloneArguments::default() };
    if number != 0 {
        arguments.set_tid = (&raw const number) as u64;
        arguments.set_tid_size = 1;
    }
    let failed = |errno: rustix::io::Errno| Error::new("make a pipe to a new process", errno);
    // Without this pipe, a tracer could attach and stop the child before the child has made its settings.
    let (ready, report_ready) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    let run = || wait_for_seizure(ready.as_raw_fd(), report_ready.as_raw_fd());
    // SAFETY: `wait_for_seizure` makes only system calls. The pid lives during the call.
    let child = unsafe { create(&arguments, run) }
        .map_err(|errno| Error::process("create a process with the number", Pid(number), errno))?;
    drop(report_ready);
    // At the end of file, the child has ended. The tracer of the child will detect the end of the child.
    rustix::io::retry_on_intr(|| rustix::io::read(&ready, &mut [0_u8; 1])).map_err(failed)?;
    Ok(child)
}

/// Kills and reaps a newly created child of this process.
pub fn end(pid: Pid) {
    // `peek` fails if the child was already reaped. The pid of a child is not reused before the child is reaped.
    if crate::ptrace::peek(pid.leader()).is_ok() {
        let _ = crate::signal::send(pid, model::Signal(libc::SIGKILL));
        let _ = reap(pid);
    }
}

/// Waits until a child ends, and returns its wait status. The child can have any exit signal.
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

fn wait_for_seizure(ready: i32, report_ready: i32) -> ! {
    const SIGNAL_MAX: i32 = 64;
    let default_action = [0_u64; 4];
    // SAFETY: the system calls take numbers and one zeroed buffer. The buffer has the size of the kernel's
    // sigaction structure. The calls run in a child of this program, and the child never returns from this
    // function.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        for signal in 1..=SIGNAL_MAX {
            libc::syscall(libc::SYS_rt_sigaction, signal, default_action.as_ptr(), 0_usize, 8_usize);
        }
        // If the parent died before PR_SET_PDEATHSIG, the pipe has no reader any more. In this case, the write
        // fails or raises SIGPIPE, and the child ends.
        libc::syscall(libc::SYS_close, ready);
        if libc::syscall(libc::SYS_write, report_ready, default_action.as_ptr(), 1_usize) != 1 {
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
        // Rust's runtime ignores SIGPIPE. A new child inherits this action until the child sets the defaults.
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
