//! A program that is run as a probe.
//!
//! Owns: the child process, its process group, and its exit status.
//! Invariants: the process group is killed when the program has exited, at the timeout, and on drop. Then the child is
//! reaped. Signals are sent to the group only before the child is reaped, so that the group number is not reused.
//! Does not: read the output of the program; the standard streams are /dev/null.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use model::{Pid, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sys::Errno;

use crate::interest::{Handle, Interest};
use crate::notify::ServiceManager;

/// Maximum time from SIGKILL to the exit of the program. Only a process that is blocked in the kernel needs longer.
pub(super) const KILL_TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum time for which a drop waits until a killed process has exited. On an idle machine, the exit takes less than
/// a millisecond.
const DROP_TIME_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const KILL: Signal = Signal(9);

/// A running program.
#[derive(Debug)]
pub(super) struct Program {
    pid: Pid,
    handle: OwnedFd,
    /// The time at which the wait for a killed program ends.
    pub(super) killed_until: Option<Instant>,
    is_reaped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Exited(i32),
    Killed(Signal),
    /// Other code of this process has reaped the child, and the kernel has not kept the exit status.
    Lost,
    TimedOut,
}

impl Program {
    /// Starts the program in a new process group. The program inherits the working directory and the environment of
    /// this process, but not the variables of a service manager. Signals that this process blocks are unblocked in the
    /// program.
    pub(super) fn start(command: &[String]) -> Result<Self, Errno> {
        let [program, arguments @ ..] = command else { return Err(Errno::EINVAL) };
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        for name in ServiceManager::VARIABLES {
            command.env_remove(name);
        }
        let mut child = command.spawn().map_err(Errno::from)?;
        let pid = Pid(child.id() as i32);
        match sys::pidfd::open(pid) {
            Ok(handle) => Ok(Self { pid, handle, killed_until: None, is_reaped: false }),
            Err(error) => {
                let _ended_already = child.kill();
                let _reaped_elsewhere = child.wait();
                Err(error.errno)
            }
        }
    }

    /// Returns the pid of the program until it is reaped.
    pub(super) fn pid(&self) -> Option<Pid> {
        (!self.is_reaped).then_some(self.pid)
    }

    pub(super) fn handle(&self) -> Handle<'_> {
        (self.handle.as_fd(), Interest::Readable)
    }

    /// Checks the program without blocking. If `is_late`, kills a program that is still running.
    pub(super) fn advance(&mut self, now: Instant, is_late: bool) -> Option<End> {
        match self.end() {
            Some(_) if self.killed_until.is_some() => return Some(End::TimedOut),
            Some(end) => return Some(end),
            None => {}
        }
        match self.killed_until {
            // The drop of this value reaps the program if it has ended by then.
            Some(until) if now >= until => return Some(End::TimedOut),
            None if is_late => {
                self.kill_group();
                self.killed_until = Some(now + KILL_TIME_MAX);
                // If the program has already ended, this check saves one call.
                return self.end().map(|_| End::TimedOut);
            }
            _ => {}
        }
        None
    }

    /// Returns how the program has ended; `None` while it runs. After the end, kills the other processes of the group
    /// and reaps the program.
    fn end(&mut self) -> Option<End> {
        let id = || WaitId::PidFd(self.handle.as_fd());
        let seen = waitid(id(), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT);
        match seen {
            Ok(None) => None,
            Ok(Some(status)) => {
                self.kill_group();
                let _status_is_known = waitid(id(), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
                self.is_reaped = true;
                let exited = status.exit_status().map(End::Exited);
                exited.or_else(|| Some(End::Killed(Signal(status.terminating_signal()?)))).or(Some(End::Lost))
            }
            Err(_) => {
                self.is_reaped = true;
                Some(sys::pidfd::exit_code(self.handle.as_fd()).map_or(End::Lost, decoded))
            }
        }
    }

    fn kill_group(&self) {
        // An error means that the group has no process left.
        let _empty = sys::signal::send_to_group(self.pid, KILL);
    }
}

fn decoded(status: i32) -> End {
    match status & 0x7f {
        0 => End::Exited(status >> 8 & 0xff),
        signal => End::Killed(Signal(signal)),
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_reaped || self.end().is_some() {
            return;
        }
        self.kill_group();
        let _interrupted = poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&DROP_TIME_MAX));
        let _not_ended = self.end();
    }
}
