//! Processes, identified by pid and start time, and read from /proc.
//!
//! Owns: `ProcessId`, the tree below a process, and the check of the mark of test processes.
//! Invariants: before a signal is sent, the start time is compared after the pidfd was opened. A reused pid is
//! therefore never signalled.

use std::fmt;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use model::{Pid, StartTime};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, waitpid};

/// A process, identified by its pid and its start time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessId {
    pid: Pid,
    started: StartTime,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)
    }
}

/// The fields of `/proc/PID/stat` that the harness needs.
struct Stat {
    state: char,
    parent: Pid,
    started: StartTime,
}

impl ProcessId {
    /// Returns the identity of the process that currently has this pid.
    ///
    /// # Errors
    /// An error if the process does not exist.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Ok(Self { pid, started: read_stat(pid)?.started })
    }

    /// Returns the pid.
    #[must_use]
    pub fn pid(self) -> Pid {
        self.pid
    }

    /// Reports whether the process exists and is not a zombie.
    #[must_use]
    pub fn is_alive(self) -> bool {
        self.stat().is_some_and(|stat| stat.state != 'Z' && stat.state != 'X')
    }

    /// Reports whether the process has died and was not reaped yet.
    #[must_use]
    pub fn is_zombie(self) -> bool {
        self.stat().is_some_and(|stat| stat.state == 'Z')
    }

    /// Reports whether the process is stopped by SIGSTOP or another stop signal.
    #[must_use]
    pub fn is_stopped(self) -> bool {
        self.stat().is_some_and(|stat| stat.state == 'T')
    }

    /// Returns the parent; `None` if the process no longer exists.
    #[must_use]
    pub fn parent(self) -> Option<Pid> {
        self.stat().map(|stat| stat.parent)
    }

    /// Sends a signal to this process, and never to another process with the same pid.
    ///
    /// # Errors
    /// `NotFound` if the process no longer exists; otherwise the error of the kernel.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        let handle = self.open()?;
        Ok(pidfd_send_signal(&handle, signal)?)
    }

    /// Waits until the process has ended; a zombie has ended. Returns false if the limit is reached first.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait_end(self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        let handle = match self.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            other => other?,
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout =
                rustix::event::Timespec { tv_sec: seconds(left), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reaps the process if it is a dead child of this program. Returns how the process ended.
    pub(crate) fn reap(self) -> Option<String> {
        let pid = rustix::process::Pid::from_raw(self.pid.get())?;
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
        Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit status: {code}"),
            (None, Some(signal)) => format!("signal: {signal}"),
            (None, None) => format!("{status:?}"),
        })
    }

    fn stat(self) -> Option<Stat> {
        read_stat(self.pid).ok().filter(|stat| stat.started == self.started)
    }

    fn open(self) -> io::Result<OwnedFd> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the process is gone");
        let raw = rustix::process::Pid::from_raw(self.pid.get()).ok_or_else(gone)?;
        let handle = pidfd_open(raw, PidfdFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::SRCH => gone(),
            other => other.into(),
        })?;
        self.stat().map(|_same| handle).ok_or_else(gone)
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn read_stat(pid: Pid) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    let text = String::from_utf8_lossy(&text);
    parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "strange stat"))
}

/// Parses a stat line. The name in parentheses may contain parentheses, so the fields begin after the last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    let parent = Pid(fields.get(1)?.parse().ok()?);
    let started = StartTime(fields.get(19)?.parse().ok()?);
    Some(Stat { state, parent, started })
}

/// Returns the pid of the harness itself.
pub(crate) fn own_pid() -> Pid {
    Pid(getpid().as_raw_nonzero().get())
}

/// Returns all visible processes of this machine.
pub(crate) fn all() -> Vec<ProcessId> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| ProcessId::of(Pid(pid)).ok()).collect()
}

/// Returns the living descendants of a process, parents before their children. The process itself is not included.
#[must_use]
pub fn descendants(root: ProcessId) -> Vec<ProcessId> {
    let everybody: Vec<(ProcessId, Pid)> =
        all().into_iter().filter_map(|process| Some((process, process.parent()?))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(everybody.iter().filter(|(_, of)| *of == parent.pid).map(|(process, _)| *process));
        next += 1;
    }
    found.split_off(1)
}

/// Reports whether the initial environment of a process contains this entry. A zombie has no environment.
pub(crate) fn has_environment(process: ProcessId, entry: &str) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|one| one == entry.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_no_trap() {
        let line = "12 (a) (b) S 7 1 1 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 98765 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.started), ('S', Pid(7), StartTime(98765)));
    }

    #[test]
    fn a_process_that_ended_is_not_found() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = ProcessId::of(Pid(i32::try_from(child.id()).unwrap())).unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
        assert!(process.wait_end(Duration::from_secs(1)).unwrap());
        assert_eq!(process.signal(Signal::KILL).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
