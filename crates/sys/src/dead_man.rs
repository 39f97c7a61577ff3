//! A switch that ends a set of processes when this one dies before it has said that all is well.
//!
//! Owns: the process that watches, from its birth to its end; handles on those it would kill.
//! Invariants: from `arm` to `disarm`, the death of this process is the death of a set of two or more; the watcher makes
//! system calls only, never returns, and has been reaped when the switch is gone.
//! Does not: know of processes that those of the set make meanwhile, nor help if the watcher is killed as well.
//!
//! Man page: clone3(2), pidfd_open(2), pidfd_send_signal(2)
//! Since: Linux 5.3
//! Probe: `features::REGISTRY` entry "pidfd"
//! Fallback: none; older kernels are refused by `doctor`

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use model::Pid;

use crate::clone::{self, CloneArguments};
use crate::error::{Errno, Error, Result};
use crate::pidfd;

/// An armed switch; without `disarm` it kills the set when it is dropped.
#[derive(Debug)]
pub struct DeadManSwitch {
    set: Vec<OwnedFd>,
    watcher: Option<Pid>,
}

impl DeadManSwitch {
    /// Makes the watcher. Who is alone needs none: a process lives or dies as a whole, by what its tracer has asked
    /// of the kernel.
    ///
    /// # Errors
    ///
    /// Why there is no handle on a process of the set, or no watcher.
    pub fn arm(set: impl IntoIterator<Item = Pid>) -> Result<Self> {
        let handles = set.into_iter().map(pidfd::open);
        // Who has ended need not be killed.
        let alive = handles.filter(|handle| !matches!(handle, Err(error) if error.errno == Errno::ESRCH));
        let set = alive.collect::<Result<Vec<_>>>()?;
        if set.len() < 2 {
            return Ok(Self { set, watcher: None });
        }
        // A handle and not the end of a pipe, of which another child of ours might hold a duplicate.
        let own = pidfd::open(Pid(std::process::id() as i32))?;
        // Without an exit signal: a wait for any child does not find it.
        let arguments = CloneArguments::default();
        // SAFETY: without CLONE_VM the child gets a copy of this address space; it only makes system calls in
        // `watch` and never returns into code that could take a lock of a thread that is not there.
        let result =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
        match result {
            -1 => Err(Error::new("create a watcher", Errno::last())),
            0 => watch(own.as_fd(), &set),
            child => Ok(Self { set, watcher: Some(Pid(child as i32)) }),
        }
    }

    /// The set lives on, whatever becomes of this process.
    pub fn disarm(mut self) {
        self.set.clear();
    }
}

impl Drop for DeadManSwitch {
    fn drop(&mut self) {
        for process in &self.set {
            kill(process.as_fd());
        }
        let Some(watcher) = self.watcher else { return };
        // SAFETY: plain numbers; the watcher is a child of ours, so its number is its own until it is reaped below.
        unsafe { libc::kill(watcher.get(), libc::SIGKILL) };
        // No other thread waits for it.
        let _ = clone::reap(watcher);
    }
}

fn kill(process: BorrowedFd<'_>) {
    // SAFETY: plain numbers and no structure; a process that has ended is no concern of ours.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, 0_usize, 0) };
}

/// Waits for the end of `watched`, and kills the set.
fn watch(watched: BorrowedFd<'_>, set: &[OwnedFd]) -> ! {
    let everything = u64::MAX;
    let mut wait = libc::pollfd { fd: watched.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: system calls on numbers and on two local structures of the kernel's layout, in a process of our own
    // that never returns from here; it leaves the group and the terminal, whose signals are meant for others.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const everything, 0_usize, 8_usize);
        libc::syscall(libc::SYS_setsid);
        while libc::syscall(libc::SYS_poll, &raw mut wait, 1, -1) != 1 {}
        for process in set {
            kill(process.as_fd());
        }
        libc::syscall(libc::SYS_exit_group, 0);
    }
    unreachable!("exit_group does not return")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clone::{WantedPid, spawn_waiting};

    fn ends(pid: Pid) -> bool {
        let child = rustix::process::Pid::from_raw(pid.get());
        let (_, status) =
            rustix::process::waitpid(child, rustix::process::WaitOptions::empty()).unwrap().unwrap();
        status.terminating_signal() == Some(libc::SIGKILL)
    }

    fn is_waiting(pid: Pid) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("State:\tS") || status.contains("State:\tR")
    }

    fn three() -> [Pid; 3] {
        [(); 3].map(|()| spawn_waiting(WantedPid::Any).unwrap())
    }

    #[test]
    fn a_switch_that_is_disarmed_harms_nobody_and_leaves_nobody() {
        let pids = three();
        let switch = DeadManSwitch::arm(pids).unwrap();
        let watcher = switch.watcher.unwrap();
        switch.disarm();
        assert!(!std::path::Path::new(&format!("/proc/{watcher}")).exists());
        for pid in pids {
            assert!(is_waiting(pid));
            crate::signal::send(pid, model::Signal(9)).unwrap();
            assert!(ends(pid));
        }
    }

    #[test]
    fn a_switch_that_is_dropped_kills_all() {
        let pids = three();
        drop(DeadManSwitch::arm(pids).unwrap());
        assert!(pids.into_iter().all(ends));
        let alone = spawn_waiting(WantedPid::Any).unwrap();
        let switch = DeadManSwitch::arm([alone]).unwrap();
        assert_eq!(switch.watcher, None);
        drop(switch);
        assert!(ends(alone));
    }
}
