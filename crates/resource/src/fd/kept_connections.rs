//! Outside connections (to processes outside the subject) that may stay open after the death of the subject. This
//! process keeps duplicates of idle connections, and of connections whose whole state is captured.
//!
//! Owns: the progress counters of the last two pauses. A connection is idle if its counters are equal in both pauses.
//! Invariants: a socket that was returned to the caller belongs to the caller, and is closed when the caller drops
//! the socket.
//! Does not: track whether the program is still running.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use super::tcp_progress::Progress;

/// Maximum number of kept connections of a subject. Each kept connection uses a descriptor of this process.
const KEPT_MAX: usize = 1024;
/// Minimum fd of a kept socket, so that lower fds stay free for other descriptors of this process.
pub(super) const KEPT_NUMBER_MIN: i32 = 1024;

/// The condition under which a connection is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// The connection is kept only if it is idle.
    Idle,
    /// The connection is always kept.
    Any,
}

/// The connections seen in the last two pauses, by socket cookie.
#[derive(Debug, Default)]
pub(super) struct KeptConnections {
    before: HashMap<u64, Seen>,
    now: HashMap<u64, Seen>,
    /// Sockets in `now` that the caller has not dropped.
    known: Vec<Arc<OwnedFd>>,
    /// Duplicates created in this pause, by socket cookie.
    new: Vec<(u64, OwnedFd)>,
}

#[derive(Debug)]
struct Seen {
    progress: Progress,
    kept: Weak<OwnedFd>,
}

impl KeptConnections {
    pub(super) fn begin_pause(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.known.clear();
        self.new.clear();
    }

    /// Records the progress of a connection, and duplicates its socket if the connection is kept. Called inside the
    /// pause.
    pub(super) fn note(&mut self, progress: Progress, socket: BorrowedFd<'_>, which: Keep) {
        let mut kept = Weak::new();
        let before = self.before.remove(&progress.cookie);
        let is_idle = before.as_ref().is_some_and(|before| before.progress == progress);
        if (is_idle || which == Keep::Any) && self.known.len() + self.new.len() < KEPT_MAX {
            let known = before.and_then(|before| Some((before.kept.upgrade()?, before.kept)));
            match known {
                Some((socket, weak)) => {
                    kept = weak;
                    self.known.push(socket);
                }
                // If a socket cannot be duplicated, the connection ends with the program.
                None => self.new.extend(socket.try_clone_to_owned().ok().map(|copy| (progress.cookie, copy))),
            }
        }
        self.now.insert(progress.cookie, Seen { progress, kept });
    }

    /// Returns the kept sockets. Called after the pause, while the limit on descriptors is raised.
    pub(super) fn take(&mut self) -> Vec<Arc<OwnedFd>> {
        let mut all = std::mem::take(&mut self.known);
        for (cookie, socket) in self.new.drain(..) {
            let lifted = rustix::io::fcntl_dupfd_cloexec(&socket, KEPT_NUMBER_MIN).map(Arc::new);
            if let (Ok(lifted), Some(seen)) = (lifted, self.now.get_mut(&cookie)) {
                seen.kept = Arc::downgrade(&lifted);
                all.push(lifted);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_connection_without_progress_between_two_pauses_is_idle() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        let mut connections = KeptConnections::default();
        let mut pause = || {
            connections.begin_pause();
            connections.note(Progress::of(own.as_fd()).unwrap(), own.as_fd(), Keep::Idle);
            connections.take()
        };
        assert!(pause().is_empty(), "first pause");
        let Some(first) = pause().pop() else {
            return println!("unsupported: a limit on descriptors above {KEPT_NUMBER_MIN}");
        };
        let again = pause();
        assert!(Arc::ptr_eq(&again[0], &first), "the duplicate is reused while it is kept");
        drop((first, again));
        assert_eq!(pause().len(), 1, "duplicated again");
        (&own).write_all(b"answer").unwrap();
        assert!(pause().is_empty());
        peer.write_all(b"question").unwrap();
        assert_eq!(pause().len(), 1, "arriving data is no progress until it is read");
    }

    #[test]
    fn a_completely_captured_connection_is_kept_from_the_first_pause_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        let mut connections = KeptConnections::default();
        let mut pause = || {
            connections.begin_pause();
            connections.note(Progress::of(own.as_fd()).unwrap(), own.as_fd(), Keep::Any);
            connections.take()
        };
        let Some(first) = pause().pop() else {
            return println!("unsupported: a limit on descriptors above {KEPT_NUMBER_MIN}");
        };
        (&own).write_all(b"answer").unwrap();
        assert!(Arc::ptr_eq(&pause()[0], &first), "the same duplicate");
    }
}
