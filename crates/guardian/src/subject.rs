//! The root process of a subject, observed from outside: whether the process lives, and how it ended.
//!
//! A subject is a protected process tree.
//!
//! Owns: the pidfd of the root process, and reading the exit status without reaping the process.
//! Invariants: a dead child stays a zombie, and keeps its pid, until `reap` or `release`.
//! Does not: stop or trace the process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use model::{Pid, ProcessKey, Signal};
use rustix::process::{WaitId, WaitIdOptions};
use supervise::SubjectStatus;
use sys::clock::Deadline;
use sys::{Error, pidfd};
use tracee::{procfs, tree};

use crate::error::Result;
use crate::signals::CONT;

/// Time limit for the parent of an adopted subject to reap the root. Some init programs reap only every one or two
/// seconds.
const PARENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Poll interval of the wait for the end of a subject after a hangup.
const HANGUP_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Poll interval of the wait for this parent.
const PARENT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A handle of the root process.
#[derive(Debug)]
pub(crate) struct Subject {
    key: ProcessKey,
    handle: OwnedFd,
    is_child: bool,
}

impl Subject {
    /// Opens an unreaped child of this process.
    pub(crate) fn child(pid: Pid) -> Result<Self> {
        Self::open(pid, true)
    }

    /// Opens a process that is not a child of this process.
    pub(crate) fn stranger(pid: Pid) -> Result<Self> {
        Self::open(pid, false)
    }

    fn open(pid: Pid, is_child: bool) -> Result<Self> {
        let handle = pidfd::open(pid)?;
        // The key is read after the pidfd was opened. The key and the pidfd name the same process, unless the process
        // is reaped in between.
        Ok(Self { key: procfs::key(pid)?, handle, is_child })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.key.pid
    }

    pub(crate) fn key(&self) -> ProcessKey {
        self.key
    }

    /// Returns the pidfd, which becomes readable when the process has ended.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Returns how the process ended, or `None` while the process lives. Does not reap a child.
    pub(crate) fn ended(&self) -> Result<Option<SubjectStatus>> {
        if !self.is_over()? {
            return Ok(None);
        }
        if self.is_child {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            // If another thread of this process has reaped the child, the pidfd may still provide the exit status.
            if let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(self.handle()), options) {
                return Ok(Some(status_of(&status)));
            }
        }
        if let Ok(stat) = procfs::stat(self.key.pid)
            && stat.key() == self.key
            && stat.is_zombie()
        {
            return Ok(Some(SubjectStatus::from_wait(stat.exit_code)));
        }
        let status = pidfd::exit_code(self.handle()).map(SubjectStatus::from_wait);
        Ok(Some(status.unwrap_or(SubjectStatus::Unknown)))
    }

    /// Returns the signal that has stopped the process, if the process is stopped. Must be called only while no thread
    /// of this program traces the process: waitid(2) also reports stops to a tracer.
    pub(crate) fn stopped(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.handle()), options).ok()??;
        let stat = procfs::stat(self.key.pid).ok().filter(|stat| stat.key() == self.key)?;
        // The state `t` is a stop by a tracer.
        if stat.state == 'T' { status.stopping_signal().map(Signal) } else { None }
    }

    /// Reports whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_over().unwrap_or(false)
    }

    /// Sends a signal to the process. A process that has ended is not an error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match sys::signal::send(self.key.pid, signal) {
            Err(error) if error.errno != sys::Errno::ESRCH => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Sends a signal that asks the process to end. Also continues the stopped processes of the tree, because a stopped
    /// process receives no signal except SIGKILL and SIGCONT.
    pub(crate) fn ask_to_end(&self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let tree = tree::descendants(self.key.pid).unwrap_or_else(|_| vec![self.key.pid]);
        for pid in tree.into_iter().filter(|pid| is_stopped(*pid)) {
            // A process that has ended meanwhile needs no signal.
            let _ = sys::signal::send(pid, CONT);
        }
        Ok(())
    }

    /// Does the same as [`Self::ask_to_end`] after some time, unless the process has ended by then. Does not wait.
    pub(crate) fn ask_to_end_after(&self, time: Duration, signal: Signal) -> Result<()> {
        let handle = self
            .handle
            .try_clone()
            .map_err(|error| Error::process("keep a handle of", self.key.pid, error))?;
        let later = Self { key: self.key, handle, is_child: false };
        crate::signals::in_background("undying-hangup", move || {
            let deadline = Deadline::after(time);
            while !later.has_ended() {
                if deadline.has_passed() {
                    // A process that has ended meanwhile needs no signal.
                    let _ = later.ask_to_end(signal);
                    return;
                }
                std::thread::sleep(HANGUP_POLL_INTERVAL);
            }
        })?;
        Ok(())
    }

    /// Reaps a dead child. Does nothing for any other process, because only its parent can reap it.
    pub(crate) fn reap(&self) {
        if self.is_child {
            // If the child was reaped before, its pid is already free.
            let _ = rustix::process::waitid(WaitId::PidFd(self.handle()), WaitIdOptions::EXITED);
        }
    }

    /// Frees the pid of the dead process: reaps a child, or waits until the parent has reaped the process.
    pub(crate) fn release(&self) -> Result<()> {
        self.reap();
        if self.is_child {
            return Ok(());
        }
        let deadline = Deadline::after(PARENT_TIMEOUT);
        while procfs::key(self.key.pid).is_ok_and(|key| key == self.key) {
            if deadline.has_passed() {
                return Err(engine::EngineError::PidTaken(self.key.pid).into());
            }
            std::thread::sleep(PARENT_POLL_INTERVAL);
        }
        Ok(())
    }

    fn is_over(&self) -> Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut waiting = [PollFd::new(&self.handle, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut waiting, Some(&Timespec::default())))
            .map_err(|errno| Error::process("poll the pidfd of", self.key.pid, errno))?;
        Ok(ready > 0)
    }
}

/// Reports whether a process is stopped. The state of a stopped process is `t` while a checkpoint of it is taken.
fn is_stopped(pid: Pid) -> bool {
    procfs::stat(pid).is_ok_and(|stat| matches!(stat.state, 'T' | 't'))
}

fn status_of(status: &rustix::process::WaitIdStatus) -> SubjectStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => SubjectStatus::Exited(code),
        (None, Some(signal)) => SubjectStatus::Killed(Signal(signal)),
        (None, None) => SubjectStatus::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn wait_for_end(subject: &Subject) -> SubjectStatus {
        loop {
            if let Some(status) = subject.ended().unwrap() {
                return status;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "the subject under test reaps it")]
    fn the_end_of_a_child_is_known_before_it_is_reaped() {
        let child = Command::new("sh").args(["-c", "exit 7"]).stdin(Stdio::null()).spawn().unwrap();
        let subject = Subject::child(Pid(child.id() as i32)).unwrap();
        assert_eq!(wait_for_end(&subject), SubjectStatus::Exited(7));
        assert!(procfs::stat(subject.pid()).unwrap().is_zombie());
        assert_eq!(wait_for_end(&subject), SubjectStatus::Exited(7));
        subject.release().unwrap();
        assert!(procfs::stat(subject.pid()).is_err());
    }
}
