//! Readiness through the first listen(2) of a process tree.
//!
//! Owns: the search for a listening socket among the descriptors of the processes.
//! Invariants: a call inspects a limited number of descriptors. The next call continues at the same position.
//! Does not: find sockets of another network namespace.

use std::collections::HashSet;
use std::fs::{self, ReadDir};
use std::path::Path;
use std::time::{Duration, Instant};

use model::{Inode, Pid};
use sys::Result;
use sys::sock_diag::SockDiag;
use tracee::tree;

use super::met::Ready;

/// Interval between two searches. The kernel reports no event when another process calls listen(2).
pub const LISTEN_POLL: Duration = Duration::from_millis(50);
/// Maximum number of successive polls that skip the inspection of descriptors. A poll skips the inspection if the set
/// of listening sockets has not changed. A listener that was received from another process is found after one second.
const SKIPPED_MAX: u32 = 19;
/// Maximum number of descriptors that one call inspects: about 2 ms.
const DESCRIPTORS_PER_CALL: usize = 1024;

/// A state machine that waits until a process of a tree listens on a TCP, MPTCP or Unix socket.
#[derive(Debug)]
pub struct ListenReady {
    root: Pid,
    diag: SockDiag,
    search: Option<Search>,
    last: Searched,
    due: Option<Instant>,
}

/// The last complete search, which found no listener of the tree.
#[derive(Debug, Default)]
struct Searched {
    listening: HashSet<Inode>,
    /// Number of polls without an inspection since the last search.
    skipped: u32,
}

#[derive(Debug)]
struct Search {
    listening: HashSet<Inode>,
    /// Processes that are not inspected yet, in reverse order.
    processes: Vec<Pid>,
    /// Descriptors of the current process that are not inspected yet.
    descriptors: Option<ReadDir>,
}

impl ListenReady {
    /// Creates the search in the tree of this root process.
    ///
    /// # Errors
    ///
    /// The errno of the socket(2) call for the sock_diag(7) socket.
    pub fn new(root: Pid, now: Instant) -> Result<Self> {
        Ok(Self { root, diag: SockDiag::open()?, search: None, last: Searched::default(), due: Some(now) })
    }

    /// Returns the time of the next call of [`ListenReady::advance`]; `None` after a listening socket was found.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Continues the search. Reports readiness if a listening socket is found.
    ///
    /// # Errors
    ///
    /// An error if the sockets cannot be listed, or if the root process no longer exists. The caller may retry at the
    /// due time.
    pub fn advance(&mut self, now: Instant) -> Result<Option<Ready>> {
        if self.due.is_none_or(|due| now < due) {
            return Ok(None);
        }
        self.due = Some(now + LISTEN_POLL);
        let search = match self.search.take() {
            Some(search) => Some(search),
            None => self.begin()?,
        };
        let Some(mut search) = search else { return Ok(None) };
        match search.advance() {
            Some(true) => {
                self.due = None;
                return Ok(Some(Ready));
            }
            Some(false) => self.last = Searched { listening: search.listening, skipped: 0 },
            None => (self.search, self.due) = (Some(search), Some(now)),
        }
        Ok(None)
    }

    /// Begins a search. Returns `None` if the inspection is skipped because the listening sockets have not changed.
    fn begin(&mut self) -> Result<Option<Search>> {
        let mut processes = tree::descendants(self.root)?;
        let listening = self.diag.listening()?;
        if listening == self.last.listening && self.last.skipped < SKIPPED_MAX {
            self.last.skipped += 1;
            return Ok(None);
        }
        processes.reverse();
        Ok(Some(Search { listening, processes, descriptors: None }))
    }
}

impl Search {
    /// Inspects the next descriptors. Returns whether a listener was found; `None` if descriptors are left to inspect.
    fn advance(&mut self) -> Option<bool> {
        for _ in 0..DESCRIPTORS_PER_CALL {
            let Some(entry) = self.descriptors.as_mut().and_then(Iterator::next) else {
                let Some(pid) = self.processes.pop() else { return Some(false) };
                // A process that has ended since the listing has no descriptors.
                self.descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok();
                continue;
            };
            let link = entry.ok().and_then(|entry| fs::read_link(entry.path()).ok());
            if link.and_then(|link| socket_in(&link)).is_some_and(|inode| self.listening.contains(&inode)) {
                return Some(true);
            }
        }
        None
    }
}

/// Returns the inode in a link of `/proc/PID/fd` if the link refers to a socket.
fn socket_in(link: &Path) -> Option<Inode> {
    let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok().map(Inode)
}
