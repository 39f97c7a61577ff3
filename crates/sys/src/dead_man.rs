//! A dead man's switch: kills a set of processes if this process dies before the switch is disarmed.
//!
//! Owns: the watcher (a process) from its creation to its end, and pidfds of the processes that the watcher would
//! kill.
//! Invariants: between `arm` and `disarm`, the death of this process kills every process of a set of two or more
//! processes. The watcher makes only system calls and never returns. When the switch is dropped, the watcher is
//! reaped.
//! Does not: kill processes that the set creates later, or work if the watcher is killed, too.
//!
//! Man page: clone3(2), pidfd_open(2), pidfd_send_signal(2)
//! Since: Linux 5.3
//! Probe: `features::REGISTRY` entry "pidfd"
//! Fallback: none; `undying doctor` refuses older kernels

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use model::Pid;

use crate::clone::{self, CloneArguments};
use crate::error::{Errno, Error, Result};
use crate::pidfd;

/// An armed switch. Dropping the switch without `disarm` kills the set.
#[derive(Debug)]
pub struct DeadManSwitch {
    set: Vec<OwnedFd>,
    watcher: Option<Pid>,
}

impl DeadManSwitch {
    /// Creates the watcher. A single process needs no watcher: the ptrace options of its tracer decide whether the
    /// whole process dies with the tracer.
    ///
    /// # Errors
    ///
    /// Fails if a pidfd of a process cannot be opened, or if the watcher cannot be created.
    pub fn arm(set: impl IntoIterator<Item = Pid>) -> Result<Self> {
        let handles = set.into_iter().map(pidfd::open);
        // Processes that have already ended are omitted.
        let alive = handles.filter(|handle| !matches!(handle, Err(error) if error.errno == Errno::ESRCH));
        let set = alive.collect::<Result<Vec<_>>>()?;
        if set.len() < 2 {
            return Ok(Self { set, watcher: None });
        }
        // The watcher polls a pidfd. It cannot poll the end of a pipe, because another child may hold a duplicate
        // of the other end.
        let own = pidfd::open(Pid(std::process::id() as i32))?;
        // SAFETY: `watch` makes only system calls.
        let watcher = unsafe { clone::create(&CloneArguments::default(), || watch(own.as_fd(), &set)) };
        let watcher = watcher.map_err(|errno| Error::new("create a watcher", errno))?;
        Ok(Self { set, watcher: Some(watcher) })
    }

    /// Disarms the switch. The death of this process then no longer affects the set.
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
        // SAFETY: plain numbers. The watcher is a child of this process, so its pid is not reused before `reap`
        // below.
        unsafe { libc::kill(watcher.get(), libc::SIGKILL) };
        // No other thread waits for the watcher.
        let _ = clone::reap(watcher);
    }
}

fn kill(process: BorrowedFd<'_>) {
    // SAFETY: plain numbers and no structure. If the process has ended, the call has no effect.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, 0_usize, 0) };
}

/// Waits until `watched` ends, and kills the set.
fn watch(watched: BorrowedFd<'_>, set: &[OwnedFd]) -> ! {
    let everything = u64::MAX;
    let mut wait = libc::pollfd { fd: watched.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the system calls take numbers and two local structures in the layout of the kernel. The calls run in
    // a child of this program, and the child never returns from this function. The child leaves the process group
    // and the terminal, because their signals are meant for other processes.
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
