//! Readiness by the first listen(2).
//!
//! Owns: the search for a listening socket among the descriptors of a tree.
//! Invariants: inspects a bounded number of descriptors in a call, and continues there in the next.
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

/// Between two searches: the kernel reports no event for a listen(2) of another process.
pub const LISTEN_POLL: Duration = Duration::from_millis(50);
/// Polls in a row that inspect no descriptor, at most, since the sockets that listen are those of the last search: a
/// listener that a process has got from another one is found after a second.
const SKIPPED_MAX: u32 = 19;
/// Descriptors that one call inspects, at most: about 2 ms.
const DESCRIPTORS_PER_CALL: usize = 1024;

/// Waits until a process of a tree listens on a TCP, MPTCP or Unix socket.
#[derive(Debug)]
pub struct ListenReady {
    root: Pid,
    diag: SockDiag,
    search: Option<Search>,
    last: Searched,
    due: Option<Instant>,
}

/// The last search, which has found nothing.
#[derive(Debug, Default)]
struct Searched {
    listening: HashSet<Inode>,
    /// Polls since then.
    skipped: u32,
}

/// A search that is going on.
#[derive(Debug)]
struct Search {
    /// The sockets that listen.
    listening: HashSet<Inode>,
    /// Processes to be inspected, the next one last.
    processes: Vec<Pid>,
    /// Descriptors of one process that are to be inspected.
    descriptors: Option<ReadDir>,
}

impl ListenReady {
    /// Searches the tree of this root.
    ///
    /// # Errors
    ///
    /// That the kernel's directory of sockets cannot be opened.
    pub fn new(root: Pid, now: Instant) -> Result<Self> {
        Ok(Self { root, diag: SockDiag::open()?, search: None, last: Searched::default(), due: Some(now) })
    }

    /// When it is to be advanced; `None` once a socket was found.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Searches on.
    ///
    /// # Errors
    ///
    /// That the sockets cannot be listed, or that there is no root any more. It is tried again at the due time.
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

    /// A search, unless the last one was for the same sockets.
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
    /// Whether a socket was found, once all is inspected.
    fn advance(&mut self) -> Option<bool> {
        for _ in 0..DESCRIPTORS_PER_CALL {
            let Some(entry) = self.descriptors.as_mut().and_then(Iterator::next) else {
                let Some(pid) = self.processes.pop() else { return Some(false) };
                // A process that has ended meanwhile has no descriptors.
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

/// The inode in a link of `/proc/PID/fd` to a socket.
fn socket_in(link: &Path) -> Option<Inode> {
    let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok().map(Inode)
}
