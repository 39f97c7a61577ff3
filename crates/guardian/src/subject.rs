//! The root processes of a subject, observed from outside: whether they live, and how they ended.
//!
//! The subject of a group of components has several trees, and dies when one
//! of its roots dies.
//!
//! Owns: the pidfd of each root process, and reading the exit status without reaping the process.
//! Invariants: a dead child stays a zombie, and keeps its pid, until `reap` or `release`.
//! Does not: stop or trace the process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use model::{Pid, ProcessKey, Signal};
use rustix::process::{WaitId, WaitIdOptions};
use supervise::SubjectStatus;
use sys::clock::Deadline;
use sys::{Error, pidfd};
use tracee::{Roots, procfs, tree};

use crate::error::Result;
use crate::signals::CONT;

/// Time limit for the parent of an adopted subject to reap the root. Some init programs reap only every one or two
/// seconds.
const PARENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Poll interval of the wait for the end of a subject after a hangup.
const HANGUP_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Poll interval of the wait for this parent.
const PARENT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The roots of a subject. There is at least one.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    roots: Vec<Arc<Root>>,
}

impl From<Root> for Subject {
    fn from(root: Root) -> Self {
        Self { roots: vec![Arc::new(root)] }
    }
}

impl Subject {
    /// Opens the roots that a restore has created.
    pub(crate) fn children(roots: &Roots) -> Result<Self> {
        let roots = roots.iter().map(|root| Root::child(root).map(Arc::new)).collect::<Result<_>>()?;
        Ok(Self { roots })
    }

    pub(crate) fn with(&self, root: Root) -> Self {
        let mut roots = self.roots.clone();
        roots.push(Arc::new(root));
        Self { roots }
    }

    /// Returns the subject without a root. Returns `None` if it is the only one.
    pub(crate) fn without(&self, pid: Pid) -> Option<Self> {
        let roots: Vec<_> = self.roots.iter().filter(|root| root.key.pid != pid).cloned().collect();
        (!roots.is_empty()).then_some(Self { roots })
    }

    pub(crate) fn root(&self, pid: Pid) -> Option<&Root> {
        self.roots.iter().find(|root| root.key.pid == pid).map(Arc::as_ref)
    }

    fn first(&self) -> &Root {
        &self.roots[0]
    }

    /// Returns the pid of the first root, which names the subject in messages.
    pub(crate) fn pid(&self) -> Pid {
        self.first().key.pid
    }

    pub(crate) fn key(&self) -> ProcessKey {
        self.first().key
    }

    pub(crate) fn keys(&self) -> Vec<ProcessKey> {
        self.roots.iter().map(|root| root.key).collect()
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::new(self.pid(), self.roots[1..].iter().map(|root| root.key.pid))
    }

    /// Returns the pid and the pidfd of each root. A pidfd becomes readable when its process has ended.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (Pid, BorrowedFd<'_>)> {
        self.roots.iter().map(|root| (root.key.pid, root.handle.as_fd()))
    }

    /// Returns the roots that have ended, and how they have ended. Reaps nothing. A root that a signal has killed comes
    /// first: its death is often the reason why other roots have exited.
    pub(crate) fn ended(&self) -> Result<Vec<(Pid, SubjectStatus)>> {
        let mut ended = Vec::new();
        for root in &self.roots {
            ended.extend(root.ended()?.map(|status| (root.key.pid, status)));
        }
        ended.sort_by_key(|(_, status)| status.signal().is_none());
        Ok(ended)
    }

    /// Returns how the first root has ended, or `None` while a root lives. Reaps nothing.
    pub(crate) fn over(&self) -> Result<Option<SubjectStatus>> {
        if self.roots.iter().all(|root| root.has_ended()) { self.first().ended() } else { Ok(None) }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.roots.iter().any(|root| root.has_ended())
    }

    /// Returns the pid of a root that has ended. While all roots live, returns the pid of the first root.
    pub(crate) fn dead_pid(&self) -> Pid {
        self.roots.iter().find(|root| root.has_ended()).map_or(self.pid(), |root| root.key.pid)
    }

    /// Returns the signal that has stopped the first root. See [`Root::stopped`].
    pub(crate) fn stopped(&self) -> Option<Signal> {
        self.first().stopped()
    }

    /// Sends a signal to all roots. A process that has ended is not an error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.roots.iter().try_for_each(|root| root.signal(signal))
    }

    /// Asks all roots to end. See [`Root::ask_to_end`].
    pub(crate) fn ask_to_end(&self, signal: Signal) -> Result<()> {
        self.roots.iter().try_for_each(|root| root.ask_to_end(signal))
    }

    /// Asks all roots to end after some time. See [`Root::ask_to_end_after`].
    pub(crate) fn ask_to_end_after(&self, time: Duration, signal: Signal) -> Result<()> {
        self.roots.iter().try_for_each(|root| root.ask_to_end_after(time, signal))
    }

    /// Reaps the roots that have ended, if they are children.
    pub(crate) fn reap(&self) {
        self.roots.iter().filter(|root| root.has_ended()).for_each(|root| root.reap());
    }

    /// Frees the pids of the roots that have ended. See [`Root::release`].
    pub(crate) fn release(&self) -> Result<()> {
        self.roots.iter().filter(|root| root.has_ended()).try_for_each(|root| root.release())
    }
}

/// A handle of one root process.
#[derive(Debug)]
pub(crate) struct Root {
    key: ProcessKey,
    handle: OwnedFd,
    is_child: bool,
}

impl Root {
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

    fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Returns how the process ended, or `None` while the process lives. Does not reap a child.
    fn ended(&self) -> Result<Option<SubjectStatus>> {
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
    fn stopped(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.handle()), options).ok()??;
        let stat = procfs::stat(self.key.pid).ok().filter(|stat| stat.key() == self.key)?;
        // The state `t` is a stop by a tracer.
        if stat.state == 'T' { status.stopping_signal().map(Signal) } else { None }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.is_over().unwrap_or(false)
    }

    /// Sends a signal to the process. A process that has ended is not an error.
    fn signal(&self, signal: Signal) -> Result<()> {
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
    fn ask_to_end_after(&self, time: Duration, signal: Signal) -> Result<()> {
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

    fn wait_for_end(subject: &Root) -> SubjectStatus {
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
        let subject = Root::child(Pid(child.id() as i32)).unwrap();
        assert_eq!(wait_for_end(&subject), SubjectStatus::Exited(7));
        assert!(procfs::stat(subject.pid()).unwrap().is_zombie());
        assert_eq!(wait_for_end(&subject), SubjectStatus::Exited(7));
        subject.release().unwrap();
        assert!(procfs::stat(subject.pid()).is_err());
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "the subject under test reaps them")]
    fn a_subject_with_several_roots_dies_with_the_first_death_and_is_over_with_the_last() {
        let start = |script: &str| {
            let child = Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap();
            Root::child(Pid(child.id() as i32)).unwrap()
        };
        let (living, dead) = (start("exec sleep 100"), start("exit 7"));
        let (living, dying) = (living.pid(), dead.pid());
        drop(dead);
        let subject = Subject::children(&Roots::new(living, [dying])).unwrap();
        while !subject.has_ended() {
            std::thread::yield_now();
        }
        assert_eq!(subject.ended().unwrap(), [(dying, SubjectStatus::Exited(7))]);
        assert_eq!((subject.dead_pid(), subject.over().unwrap()), (dying, None));
        subject.release().unwrap();
        assert!(procfs::stat(dying).is_err() && procfs::stat(living).is_ok());
        let rest = subject.without(dying).unwrap();
        assert!(rest.ended().unwrap().is_empty() && rest.without(living).is_none());
        rest.signal(Signal(9)).unwrap();
        while rest.over().unwrap().is_none() {
            std::thread::yield_now();
        }
        rest.release().unwrap();
    }
}
