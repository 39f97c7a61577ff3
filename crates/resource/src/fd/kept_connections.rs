//! Connections to the outside that may outlive their program: those that nothing has passed through between two pauses,
//! and those that are captured whole.
//!
//! Owns: the counters of the last two pauses.
//! Invariants: a socket that was handed over is the caller's: it is closed when the caller drops it.
//! Does not: know whether the program still runs.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use super::tcp_progress::Progress;

/// Connections of a subject that are kept at most: each takes a descriptor of this process.
const KEPT_MAX: usize = 1024;
/// Kept sockets have numbers from here on, so that those which every part of this process may use stay free.
pub(super) const KEPT_NUMBER_MIN: i32 = 1024;

/// Which connections are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// One that is idle.
    Idle,
    /// Any.
    Any,
}

/// By the number of the socket.
#[derive(Debug, Default)]
pub(super) struct KeptConnections {
    before: HashMap<u64, Seen>,
    now: HashMap<u64, Seen>,
    /// Those of `now` that the caller still has.
    known: Vec<Arc<OwnedFd>>,
    /// Others, by the number of the socket.
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

    /// Inside the pause: how far the program has come with a connection.
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
                // One that cannot be duplicated ends with the program, as all did before.
                None => self.new.extend(socket.try_clone_to_owned().ok().map(|copy| (progress.cookie, copy))),
            }
        }
        self.now.insert(progress.cookie, Seen { progress, kept });
    }

    /// After the pause, while the limit on descriptors is raised: those that are kept.
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
    fn a_connection_is_idle_between_two_pauses_in_which_nothing_passed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        let mut connections = KeptConnections::default();
        let mut pause = || {
            connections.begin_pause();
            connections.note(Progress::of(own.as_fd()).unwrap(), own.as_fd(), Keep::Idle);
            connections.take()
        };
        assert!(pause().is_empty(), "seen for the first time");
        let Some(first) = pause().pop() else {
            return println!("unsupported: a limit on descriptors above {KEPT_NUMBER_MIN}");
        };
        let again = pause();
        assert!(Arc::ptr_eq(&again[0], &first), "one duplicate, as long as it is kept");
        drop((first, again));
        assert_eq!(pause().len(), 1, "duplicated anew");
        (&own).write_all(b"answer").unwrap();
        assert!(pause().is_empty());
        peer.write_all(b"question").unwrap();
        assert_eq!(pause().len(), 1, "what arrives changes nothing until it is read");
    }

    #[test]
    fn one_that_is_captured_whole_is_kept_from_the_first_pause_on() {
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
