//! The foreground process group of the terminal, while a restored subject has a process group of its own.
//!
//! Owns: when the subject gets the terminal, when it is taken back, and a stop of the subject by Ctrl-Z.
//! Invariants: only the job that has the terminal gives it away. It is taken only from the subject, or from a group
//! without living members. Nothing happens without a controlling terminal, in a pipeline, or for a subject in the
//! process group of this program. SIGTTOU is blocked (`Signals::take`).
//! Does not: know jobs of the subject; a shell in the subject gives the terminal to them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use model::{Pid, Signal};
use rustix::fs::{Mode, OFlags};
use supervise::SubjectStatus;
use sys::terminal::{self, Modes};
use sys::{session, signal};
use tracee::{procfs, tree};

use crate::ancestry;
use crate::error::Result;
use crate::signals::{self, CONT, TSTP, TTIN, TTOU};
use crate::subject::Subject;

const WINCH: Signal = Signal(28);

/// Descriptors below are the standard streams, also where one of them is closed.
const FIRST_DESCRIPTOR: i32 = 3;
/// How long a group without members stays in the foreground until it is taken for abandoned: a shell whose job has just
/// ended takes its terminal back sooner.
const ABANDONED: Duration = Duration::from_millis(10);

/// The terminal of the job that this program is.
#[derive(Debug)]
pub(crate) struct Foreground {
    own: Pid,
    /// It may have been given to a subject, and was not taken back.
    is_offered: bool,
    /// There is a terminal, and this job is no pipeline.
    is_job: bool,
    /// The group that gets the terminal while this job has it.
    given: Option<Pid>,
    /// The group of a restored tree that has not received SIGWINCH yet.
    restored: Option<Pid>,
    /// The modes before the subject changed them, if this job had the terminal then.
    modes: Option<Modes>,
}

impl Foreground {
    /// To be called before there is a subject.
    pub(crate) fn new() -> Self {
        let own = session::group_of(own_pid()).unwrap_or(Pid(0));
        let mut foreground = Self { own, ..Self::none() };
        foreground.note_modes();
        foreground
    }

    /// For a subject that has no terminal.
    pub(crate) const fn none() -> Self {
        Self { own: Pid(0), is_offered: false, is_job: false, given: None, restored: None, modes: None }
    }

    /// The terminal, for a tree that is about to be restored, if this job may give it.
    pub(crate) fn offer(&mut self) -> Option<OwnedFd> {
        self.is_offered = false;
        let terminal = self.terminal()?;
        self.is_job = !self.has_company();
        self.is_offered = self.is_job && self.regain(&terminal);
        self.is_offered.then_some(terminal)
    }

    /// The window may have another size than at the checkpoint, and messages of ours may stand in it: SIGWINCH has the
    /// restored program draw it again.
    pub(crate) fn draw_again(&mut self) {
        if let Some(group) = self.restored.take() {
            // A group that has ended meanwhile draws nothing.
            let _ = signal::send_to_group(group, WINCH);
        }
    }

    /// The tree was restored. This group of it has the terminal, or is to have it once this job has.
    pub(crate) fn accepted(&mut self, group: Option<Pid>) {
        self.restored = group;
        self.given = group.filter(|group| self.is_job && *group != self.own);
    }

    /// Whether the subject has the terminal, or is to have it once this job has.
    pub(crate) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// The subject has ended: its terminal is ours again. One that was killed may have left it in any mode; then it gets
    /// those from before, as under a shell.
    pub(crate) fn take_back(&mut self, status: Option<SubjectStatus>) {
        self.is_offered = false;
        if let Some(terminal) = self.terminal()
            && self.regain(&terminal)
            && matches!(status, Some(SubjectStatus::Killed(_)))
            && !self.has_company()
        {
            self.reset_modes(&terminal);
        }
        self.given = None;
    }

    /// The tree continues in the background: the terminal stays with the shell, in the earlier modes.
    pub(crate) fn left_to_the_shell(&self) {
        if let Some(terminal) = self.terminal()
            && self.current(&terminal) == Some(self.own)
        {
            self.reset_modes(&terminal);
        }
    }

    /// Stops this job when the terminal has stopped the subject, and continues the subject with it. To be called after
    /// SIGCHLD, while no thread of this process traces the subject. True if this job was stopped meanwhile.
    pub(crate) fn follow_stop(&mut self, subject: &Subject) -> Result<bool> {
        if self.given.is_none() {
            return Ok(false);
        }
        let Some(signal) = subject.stopped() else { return Ok(false) };
        let Ok(group) = session::group_of(subject.pid()) else { return Ok(false) };
        let Some(terminal) = self.terminal().filter(|_| group != self.own) else { return Ok(false) };
        let before = self.current(&terminal);
        if before == Some(self.own) && (signal == TTIN || signal == TTOU) {
            // It used the terminal in the background, and the shell has since put this job into the foreground.
            self.give(&terminal, group);
            return resume(group).map(|()| false);
        }
        if self.is_orphaned() {
            // No shell would continue this job. The kernel ignores SIGTSTP in such a group.
            return if signal == TSTP { resume(group).map(|()| false) } else { Ok(false) };
        }
        let had_terminal = before.filter(|before| self.is_of_subject(*before));
        if had_terminal.is_some() {
            self.regain(&terminal);
        }
        drop(terminal);
        // Ours is blocked, and discarded by SIGCONT; others of this job are stopped by it.
        signal::send_to_own_group(TSTP)?;
        signals::stop_ourselves()?;
        self.note_modes();
        if let Some(terminal) = self.terminal()
            && self.current(&terminal) == Some(self.own)
        {
            self.give(&terminal, had_terminal.unwrap_or(group));
        }
        resume(group)?;
        had_terminal.filter(|other| *other != group).map_or(Ok(()), resume)?;
        Ok(true)
    }

    /// Our controlling terminal. It is opened for each use: a descriptor that stays open would delay its hangup.
    fn terminal(&self) -> Option<OwnedFd> {
        // A group outside our PID namespace cannot be named to take the terminal back.
        if self.own.get() <= 0 {
            return None;
        }
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        rustix::io::fcntl_dupfd_cloexec(opened, FIRST_DESCRIPTOR).ok()
    }

    fn current(&self, terminal: &OwnedFd) -> Option<Pid> {
        terminal::foreground(terminal.as_fd()).ok().flatten()
    }

    fn note_modes(&mut self) {
        if let Some(terminal) = self.terminal()
            && self.current(&terminal) == Some(self.own)
        {
            self.modes = terminal::modes(terminal.as_fd()).ok();
        }
    }

    /// Sets the modes from before the subject, if they are others now.
    fn reset_modes(&self, terminal: &OwnedFd) {
        if let Some(modes) = &self.modes
            && terminal::modes(terminal.as_fd()).is_ok_and(|now| now != *modes)
        {
            // A terminal that hung up has no modes to give back.
            let _ = terminal::set_modes(terminal.as_fd(), modes);
        }
    }

    fn give(&mut self, terminal: &OwnedFd, group: Pid) {
        if terminal::set_foreground(terminal.as_fd(), group).is_ok() {
            (self.given, self.is_offered) = (Some(group), true);
        }
    }

    /// Makes our group the foreground one, if the subject's is or one without members. Gives whether it is now.
    fn regain(&self, terminal: &OwnedFd) -> bool {
        let Some(current) = self.current(terminal) else { return false };
        current == self.own
            || (self.is_of_subject(current) || self.is_abandoned(terminal, current))
                && terminal::set_foreground(terminal.as_fd(), self.own).is_ok()
    }

    /// Whether a group is the one with the terminal, or has a descendant of this process.
    fn is_of_subject(&self, group: Pid) -> bool {
        let is_in_it = |pid: &Pid| session::group_of(*pid).is_ok_and(|found| found == group);
        group != self.own
            && (self.given == Some(group)
                || tree::descendants(own_pid()).is_ok_and(|pids| pids.iter().any(is_in_it)))
    }

    fn is_abandoned(&self, terminal: &OwnedFd, group: Pid) -> bool {
        let is_empty = || members(group).is_empty();
        is_empty() && {
            std::thread::sleep(ABANDONED);
            self.current(terminal) == Some(group) && is_empty()
        }
    }

    /// Whether processes around us are in our group that do not wait for us, as the others of a pipeline are.
    fn has_company(&self) -> bool {
        let own = own_pid();
        let mut known = tree::descendants(own).unwrap_or_default();
        known.extend(ancestry::line(own));
        members(self.own).iter().any(|member| !known.contains(member))
    }

    /// Whether no member of our group has a parent in another group of the session: setpgid(2).
    fn is_orphaned(&self) -> bool {
        let Ok(session) = session::of(own_pid()) else { return true };
        let cares = |parent: Pid| {
            session::of(parent).is_ok_and(|found| found == session)
                && session::group_of(parent).is_ok_and(|group| group != self.own)
        };
        let parents = members(self.own).into_iter().filter_map(|pid| procfs::stat(pid).ok());
        !parents.filter(|stat| stat.ppid.get() > 0).any(|stat| cares(stat.ppid))
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        if self.is_offered {
            self.take_back(None);
        }
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id() as i32)
}

/// Continues a stopped group. One whose members have ended needs nothing.
fn resume(group: Pid) -> Result<()> {
    match signal::send_to_group(group, CONT) {
        Err(error) if error.errno != sys::Errno::ESRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// The living processes of a group.
fn members(group: Pid) -> Vec<Pid> {
    let pids = procfs::processes().unwrap_or_default().into_iter();
    pids.filter(|pid| session::group_of(*pid).is_ok_and(|found| found == group))
        .filter(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_zombie()))
        .collect()
}
