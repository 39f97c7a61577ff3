//! Gives the terminal to a restored subject, and takes the terminal back.
//!
//! A terminal has one process group in the foreground, and this group has the terminal. A job is a process group that a
//! shell has started; this job is the process group of this program. The restored subject has another process group.
//!
//! Owns: the choice of the foreground process group, and stopping this job after Ctrl-Z has stopped the subject.
//! Invariants: this job gives the terminal away only while this job is in the foreground. This job takes the terminal
//! back only from the subject, or from a group without living members. Nothing happens without a controlling terminal,
//! in a pipeline, or for a subject in the process group of this program. SIGTTOU is blocked (`Signals::take`), so this
//! program may change the terminal from the background.
//! Does not: manage jobs of the subject; a shell in the subject gives the terminal to its own jobs.

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
use crate::signals::{CONT, PendingStop, TSTP, TTIN, TTOU};
use crate::subject::Subject;

const WINCH: Signal = Signal(28);

/// Lowest number for a descriptor of the terminal. Lower numbers are reserved for the standard streams, even if a
/// standard stream is closed.
const FIRST_DESCRIPTOR: i32 = 3;
/// A foreground group counts as abandoned if it has no members for this time. A shell takes the terminal back sooner
/// after the end of its job.
const ABANDONED: Duration = Duration::from_millis(10);

/// The controlling terminal, and the state of this job.
#[derive(Debug)]
pub(crate) struct Foreground {
    own: Pid,
    /// Whether the terminal may have been given to a subject, and was not taken back yet.
    is_offered: bool,
    /// Whether there is a terminal, and this job contains no other program of a pipeline.
    is_job: bool,
    /// A process group of the subject. This group has the terminal, or gets the terminal when this job has it.
    given: Option<Pid>,
    /// The process group of a restored tree that has not received SIGWINCH yet.
    restored: Option<Pid>,
    /// The terminal modes before the subject could change them. `None` if this job did not have the terminal at that
    /// time.
    modes: Option<Modes>,
}

impl Foreground {
    /// Records the process group and the terminal modes of this job. Must be called before there is a subject.
    pub(crate) fn new() -> Self {
        let own = session::group_of(own_pid()).unwrap_or(Pid(0));
        let mut foreground = Self { own, ..Self::none() };
        foreground.note_modes();
        foreground
    }

    /// Returns the value for a subject that has no terminal.
    pub(crate) const fn none() -> Self {
        Self { own: Pid(0), is_offered: false, is_job: false, given: None, restored: None, modes: None }
    }

    /// Returns the terminal for a tree that is about to be restored, if this job may give the terminal away.
    pub(crate) fn offer(&mut self) -> Option<OwnedFd> {
        self.is_offered = false;
        let terminal = self.terminal()?;
        self.is_job = !self.has_company();
        self.is_offered = self.is_job && self.regain(&terminal);
        self.is_offered.then_some(terminal)
    }

    /// Sends SIGWINCH, so that the restored program redraws its window. The window size may have changed since the
    /// checkpoint, and messages of this program may be on the screen.
    pub(crate) fn draw_again(&mut self) {
        if let Some(group) = self.restored.take() {
            // A group that has ended meanwhile has nothing to redraw.
            let _ = signal::send_to_group(group, WINCH);
        }
    }

    /// Records that the tree was restored. `group` has the terminal, or gets the terminal when this job has it.
    pub(crate) fn accepted(&mut self, group: Option<Pid>) {
        self.restored = group;
        self.given = group.filter(|group| self.is_job && *group != self.own);
    }

    /// Reports whether the subject has the terminal, or gets the terminal when this job has it.
    pub(crate) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Takes the terminal back after the subject has ended. A killed subject may have left the terminal in any mode, so
    /// the earlier modes are set again, as a shell does.
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

    /// Sets the recorded terminal modes again, because the tree continues in the background without the terminal.
    pub(crate) fn left_to_the_shell(&self) {
        if let Some(terminal) = self.terminal()
            && self.current(&terminal) == Some(self.own)
        {
            self.reset_modes(&terminal);
        }
    }

    /// Stops this job after the terminal has stopped the subject. Continues the subject when this job is continued.
    /// Must be called after SIGCHLD, while no thread of this process traces the subject. Returns true if this job was
    /// stopped and continued.
    pub(crate) fn follow_stop(&mut self, subject: &Subject) -> Result<bool> {
        if self.given.is_none() {
            return Ok(false);
        }
        let Some(signal) = subject.stopped() else { return Ok(false) };
        let Ok(group) = session::group_of(subject.pid()) else { return Ok(false) };
        let Some(terminal) = self.terminal().filter(|_| group != self.own) else { return Ok(false) };
        let is_orphaned = self.is_orphaned();
        let others: Vec<_> = members(self.own).into_iter().filter(|member| *member != own_pid()).collect();
        let had_terminal = self.current(&terminal).filter(|before| self.is_of_subject(*before));
        // A shell may continue this job now. Its SIGCONT calls the pending stop off. bash sends no SIGCONT if it has not
        // seen this job stop, so the stop follows the check of the foreground immediately.
        let stop = PendingStop::new()?;
        if had_terminal.is_none()
            && (signal == TTIN || signal == TTOU)
            && self.current(&terminal) == Some(self.own)
        {
            // The subject used the terminal in the background and was stopped. After that, the shell has put this job
            // into the foreground.
            self.give(&terminal, group);
            return resume(group).map(|()| false);
        }
        if is_orphaned {
            // No shell would continue this job. The kernel ignores SIGTSTP in an orphaned group.
            return if signal == TSTP { resume(group).map(|()| false) } else { Ok(false) };
        }
        if had_terminal.is_some() {
            self.regain(&terminal);
        }
        drop(terminal);
        send_to_all(&others, TSTP);
        stop.take_effect()?;
        // If the stop was called off, the others may have been stopped after the SIGCONT for the whole job.
        send_to_all(&others, CONT);
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

    /// Opens the controlling terminal. The caller closes the terminal after each use, because an open descriptor would
    /// delay the hangup.
    fn terminal(&self) -> Option<OwnedFd> {
        // A group outside our PID namespace has no id here. If our group is outside, we could not give the terminal
        // back to our group.
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

    /// Sets the recorded terminal modes, if the current modes are different.
    fn reset_modes(&self, terminal: &OwnedFd) {
        if let Some(modes) = &self.modes
            && terminal::modes(terminal.as_fd()).is_ok_and(|now| now != *modes)
        {
            // A terminal that has hung up has no modes to restore.
            let _ = terminal::set_modes(terminal.as_fd(), modes);
        }
    }

    fn give(&mut self, terminal: &OwnedFd, group: Pid) {
        if terminal::set_foreground(terminal.as_fd(), group).is_ok() {
            (self.given, self.is_offered) = (Some(group), true);
        }
    }

    /// Moves our group to the foreground, if the current foreground group belongs to the subject or is abandoned.
    /// Returns whether our group is now in the foreground.
    fn regain(&self, terminal: &OwnedFd) -> bool {
        let Some(current) = self.current(terminal) else { return false };
        current == self.own
            || (self.is_of_subject(current) || self.is_abandoned(terminal, current))
                && terminal::set_foreground(terminal.as_fd(), self.own).is_ok()
    }

    /// Reports whether a group belongs to the subject: the group was given the terminal, or contains a descendant of
    /// this process.
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

    /// Reports whether our group contains unrelated processes, for example other programs of a pipeline. Descendants
    /// and ancestors of this process are related to this process.
    fn has_company(&self) -> bool {
        let own = own_pid();
        let mut known = tree::descendants(own).unwrap_or_default();
        known.extend(ancestry::line(own));
        members(self.own).iter().any(|member| !known.contains(member))
    }

    /// Reports whether our group is orphaned: no member has a parent in another group of the session, see setpgid(2).
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

/// Continues a stopped group. A group whose members have ended is not an error.
fn resume(group: Pid) -> Result<()> {
    match signal::send_to_group(group, CONT) {
        Err(error) if error.errno != sys::Errno::ESRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// Sends a signal to several processes. A process that has ended needs no signal.
fn send_to_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = signal::send(*pid, signal);
    }
}

/// Returns the living processes of a group.
fn members(group: Pid) -> Vec<Pid> {
    let pids = procfs::processes().unwrap_or_default().into_iter();
    pids.filter(|pid| session::group_of(*pid).is_ok_and(|found| found == group))
        .filter(|pid| procfs::stat(*pid).is_ok_and(|stat| !stat.is_zombie()))
        .collect()
}
