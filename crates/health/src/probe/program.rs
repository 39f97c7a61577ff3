//! A program that is run as a probe.
//!
//! Owns: the child process, its process group, and its end.
//! Invariants: the group is killed when the program has ended, at the timeout, and when the value is dropped; then the
//! child is reaped. The group is named only while the child is not reaped, so that its number belongs to it.
//! Does not: read what the program writes; its standard streams are /dev/null.

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

/// From SIGKILL to the end of a process, at most: exceeded only by a process that is blocked in the kernel.
pub(super) const KILL_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a drop waits for a killed process to end. It takes less than a millisecond on an idle machine.
const DROP_TIME_MAX: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const KILL: Signal = Signal(9);

/// A program that runs.
#[derive(Debug)]
pub(super) struct Program {
    pid: Pid,
    handle: OwnedFd,
    /// Until when a killed program has to end.
    killed_until: Option<Instant>,
    is_reaped: bool,
}

/// How it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Exited(i32),
    Killed(Signal),
    /// The child was reaped by other code of this process, and the kernel does not keep the status.
    Lost,
    TimedOut,
}

impl Program {
    /// Starts it in a process group of its own, in the working directory and with the environment of this process, the
    /// variables of a service manager apart. Signals that this process blocks are not blocked there.
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

    /// Its number, until it is reaped.
    pub(super) fn pid(&self) -> Option<Pid> {
        (!self.is_reaped).then_some(self.pid)
    }

    pub(super) fn handle(&self) -> Handle<'_> {
        (self.handle.as_fd(), Interest::Readable)
    }

    /// When it is to be advanced without an event, once it was killed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.killed_until
    }

    /// Goes on without waiting. A program whose time is over is killed.
    pub(super) fn advance(&mut self, now: Instant, is_late: bool) -> Option<End> {
        match self.end() {
            Some(_) if self.killed_until.is_some() => return Some(End::TimedOut),
            Some(end) => return Some(end),
            None => {}
        }
        match self.killed_until {
            // It is reaped when this value is dropped, if it has ended by then.
            Some(until) if now >= until => return Some(End::TimedOut),
            None if is_late => {
                self.kill_group();
                self.killed_until = Some(now + KILL_TIME_MAX);
                // It may have ended by now, which saves a turn.
                return self.end().map(|_| End::TimedOut);
            }
            _ => {}
        }
        None
    }

    /// How it has ended, if it has; then the rest of its group is killed, and it is reaped.
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
        // Without a process in it there is nothing to kill.
        let _empty = sys::signal::send_to_group(self.pid, KILL);
    }
}

/// A wait status, as of wait(2).
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
