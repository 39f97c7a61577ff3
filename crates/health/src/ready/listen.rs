//! Readiness by the first listen(2).
//!
//! Owns: the search for a listening socket among the descriptors of a tree.
//! Invariants: looks at a bounded number of descriptors a call, and goes on with the next.
//! Does not: see sockets of another network namespace than ours.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use model::{Fd, Inode, Pid};
use sys::Result;
use sys::sock_diag::SockDiag;
use tracee::{procfs, tree};

use super::met::Ready;

/// Between two searches: the kernel reports no event for a listen(2) of another process.
pub const LISTEN_POLL: Duration = Duration::from_millis(50);
/// Descriptors that one call looks at, at most: about 2 ms.
const DESCRIPTORS_PER_CALL: usize = 1024;

/// Waits until a process of a tree listens on a TCP, MPTCP or Unix socket.
#[derive(Debug)]
pub struct ListenReady {
    root: Pid,
    diag: SockDiag,
    search: Option<Search>,
    due: Option<Instant>,
}

/// A search that is going on.
#[derive(Debug)]
struct Search {
    /// The sockets that listen.
    listening: HashSet<Inode>,
    /// Processes to be looked at, the next one last.
    processes: Vec<Pid>,
    /// Descriptors of one process to be looked at, the next one last.
    descriptors: Vec<(Pid, Fd)>,
}

impl ListenReady {
    /// Looks at the tree of this root.
    ///
    /// # Errors
    ///
    /// That the kernel's directory of sockets cannot be opened.
    pub fn new(root: Pid, now: Instant) -> Result<Self> {
        Ok(Self { root, diag: SockDiag::open()?, search: None, due: Some(now) })
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
        let mut search = match self.search.take() {
            Some(search) => search,
            None => self.begin()?,
        };
        match search.advance() {
            Some(true) => {
                self.due = None;
                return Ok(Some(Ready));
            }
            Some(false) => {}
            None => (self.search, self.due) = (Some(search), Some(now)),
        }
        Ok(None)
    }

    fn begin(&self) -> Result<Search> {
        let mut processes = tree::descendants(self.root)?;
        processes.reverse();
        Ok(Search { listening: self.diag.listening()?, processes, descriptors: Vec::new() })
    }
}

impl Search {
    /// Whether a socket was found, once all is looked at.
    fn advance(&mut self) -> Option<bool> {
        if self.listening.is_empty() {
            return Some(false);
        }
        for _ in 0..DESCRIPTORS_PER_CALL {
            let Some((pid, fd)) = self.descriptors.pop() else {
                let Some(pid) = self.processes.pop() else { return Some(false) };
                // A process that has ended meanwhile has no descriptors.
                let found = procfs::descriptors(pid).unwrap_or_default();
                self.descriptors.extend(found.into_iter().rev().map(|fd| (pid, fd)));
                continue;
            };
            if socket_of(pid, fd).is_some_and(|inode| self.listening.contains(&inode)) {
                return Some(true);
            }
        }
        None
    }
}

/// The inode of a socket behind a descriptor.
fn socket_of(pid: Pid, fd: Fd) -> Option<Inode> {
    let link = procfs::link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok().map(Inode)
}
