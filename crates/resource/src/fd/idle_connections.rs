//! Connections to the outside that nothing has passed through between two pauses.
//!
//! Owns: the counters of the last two pauses.
//! Invariants: a socket that was handed over is the caller's: it is closed when the caller drops it.
//! Does not: know whether the program still runs.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use super::tcp_progress::Progress;

/// Connections of a subject that are kept at most: each takes a descriptor of this process.
const IDLE_MAX: usize = 1024;
/// Kept sockets have numbers from here on, so that those which every part of this process may use stay free.
const NUMBER_MIN: i32 = 1024;

/// By the number of the socket.
#[derive(Debug, Default)]
pub(super) struct IdleConnections {
    before: HashMap<u64, Seen>,
    now: HashMap<u64, Seen>,
    /// Idle ones of `now` that the caller still has.
    known: Vec<Arc<OwnedFd>>,
    /// Others, by the number of the socket.
    new: Vec<(u64, OwnedFd)>,
}

#[derive(Debug)]
struct Seen {
    progress: Progress,
    kept: Weak<OwnedFd>,
}

impl IdleConnections {
    pub(super) fn begin_pause(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.known.clear();
        self.new.clear();
    }

    /// Inside the pause: how far the program has come with a connection.
    pub(super) fn note(&mut self, progress: Progress, socket: BorrowedFd<'_>) {
        let mut kept = Weak::new();
        let before = self.before.remove(&progress.cookie).filter(|before| before.progress == progress);
        if let Some(before) = before
            && self.known.len() + self.new.len() < IDLE_MAX
        {
            match before.kept.upgrade() {
                Some(socket) => {
                    kept = before.kept;
                    self.known.push(socket);
                }
                // One that cannot be duplicated ends with the program, as all did before.
                None => self.new.extend(socket.try_clone_to_owned().ok().map(|copy| (progress.cookie, copy))),
            }
        }
        self.now.insert(progress.cookie, Seen { progress, kept });
    }

    /// After the pause, while the limit on descriptors is raised: those that are idle.
    pub(super) fn take(&mut self) -> Vec<Arc<OwnedFd>> {
        let mut idle = std::mem::take(&mut self.known);
        for (cookie, socket) in self.new.drain(..) {
            let lifted = rustix::io::fcntl_dupfd_cloexec(&socket, NUMBER_MIN).map(Arc::new);
            if let (Ok(lifted), Some(seen)) = (lifted, self.now.get_mut(&cookie)) {
                seen.kept = Arc::downgrade(&lifted);
                idle.push(lifted);
            }
        }
        idle
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
        let mut connections = IdleConnections::default();
        let mut pause = || {
            connections.begin_pause();
            connections.note(Progress::of(own.as_fd()).unwrap(), own.as_fd());
            connections.take()
        };
        assert!(pause().is_empty(), "seen for the first time");
        let Some(first) = pause().pop() else {
            return println!("unsupported: a limit on descriptors above {NUMBER_MIN}");
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
}
