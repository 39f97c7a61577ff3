//! The root process of a subject, observed from outside: whether it lives, and how it died.
//!
//! Owns: its pidfd, and reading its end without reaping it.
//! Invariants: a dead child stays a zombie, and keeps its pid, until `release`.
//! Does not: stop or trace it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use model::{Pid, ProcessKey, Signal};
use rustix::process::{WaitId, WaitIdOptions};
use supervise::SubjectStatus;
use sys::clock::Deadline;
use sys::{Error, pidfd};
use tracee::procfs;

use crate::error::Result;

/// How long the parent of an adopted subject may take to reap it. Some init programs look every second or two.
const PARENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Poll interval meanwhile.
const PARENT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A handle on the root process.
#[derive(Debug)]
pub(crate) struct Subject {
    key: ProcessKey,
    handle: OwnedFd,
    is_child: bool,
}

impl Subject {
    /// A child of this process that is not reaped yet.
    pub(crate) fn child(pid: Pid) -> Result<Self> {
        Self::open(pid, true)
    }

    /// Any other process.
    pub(crate) fn stranger(pid: Pid) -> Result<Self> {
        Self::open(pid, false)
    }

    fn open(pid: Pid, is_child: bool) -> Result<Self> {
        let handle = pidfd::open(pid)?;
        // Read after the handle was opened: an unreaped child or an open handle's process has this number still.
        Ok(Self { key: procfs::key(pid)?, handle, is_child })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.key.pid
    }

    pub(crate) fn key(&self) -> ProcessKey {
        self.key
    }

    /// Becomes readable when the process has ended.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// How it ended, or `None` while it lives. This does not reap a child.
    pub(crate) fn ended(&self) -> Result<Option<SubjectStatus>> {
        if !self.is_over()? {
            return Ok(None);
        }
        if self.is_child {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            // If another thread of this process has reaped it, the handle may still have its status.
            if let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(self.handle()), options) {
                return Ok(Some(told(&status)));
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

    /// The signal that has stopped it, if one has. Only while no thread of ours traces it: waitid(2) reports stops for a
    /// tracer as well.
    pub(crate) fn stopped(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.handle()), options).ok()??;
        let stat = procfs::stat(self.key.pid).ok().filter(|stat| stat.key() == self.key)?;
        // 't' is a stop for a tracer.
        if stat.state == 'T' { status.stopping_signal().map(Signal) } else { None }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_over().unwrap_or(false)
    }

    /// Sends it a signal; a process that has ended is no error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match sys::signal::send(self.key.pid, signal) {
            Err(error) if error.errno != sys::Errno::ESRCH => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Takes the status of a dead child. The number of any other process is its parent's to free.
    pub(crate) fn let_go(&self) {
        if self.is_child {
            // If it was reaped before, its pid is free as well.
            let _ = rustix::process::waitid(WaitId::PidFd(self.handle()), WaitIdOptions::EXITED);
        }
    }

    /// Frees the number of a dead subject: takes a child's status, or waits until its parent has done so.
    pub(crate) fn release(&self) -> Result<()> {
        self.let_go();
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
            .map_err(|errno| Error::process("look after", self.key.pid, errno))?;
        Ok(ready > 0)
    }
}

fn told(status: &rustix::process::WaitIdStatus) -> SubjectStatus {
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
