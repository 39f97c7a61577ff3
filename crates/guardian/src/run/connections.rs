//! Connections of a subject that can outlive it.
//!
//! Owns: idle connections, from the checkpoint that has found them until data arrives, the next checkpoint finds
//! others, or another incarnation begins.
//! Invariants: while the program lives, a connection on which data has arrived is closed here within [`GRACE`] and one
//! turn, because the peer must see when the program closes it. While the program is dead, all connections are kept.
//! Does not: decide which connection a restore keeps; `resource` compares its counters with those of the checkpoint.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sys::Error;

use crate::error::Result;

/// How long a connection is kept on which something has arrived: what arrives at a program that has just died is noticed
/// before its death.
const GRACE: Duration = Duration::from_millis(10);
/// Events that are taken at once; others come with the next turn.
const EVENTS_MAX: usize = 64;

/// Idle connections of one subject.
#[derive(Debug)]
pub(super) struct IdleConnections {
    /// By their numbers in this process.
    kept: HashMap<RawFd, Kept>,
    /// Reports what arrives on them, once each.
    epoll: OwnedFd,
}

#[derive(Debug)]
struct Kept {
    socket: Arc<OwnedFd>,
    /// When it is closed, since something has arrived.
    until: Option<Instant>,
}

impl IdleConnections {
    /// With a longer interval, checkpoints notice a close by the program too late, and the peer waits for it.
    pub(super) const INTERVAL_MAX: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|errno| Error::new("make an epoll for connections", errno))?;
        Ok(Self { kept: HashMap::new(), epoll })
    }

    /// Readable when something has arrived on one of them.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The deadline for closing the next one, if the program still lives.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kept.values().filter_map(|kept| kept.until).min()
    }

    /// A checkpoint has found these, and no others.
    pub(super) fn renew(&mut self, idle: Vec<Arc<OwnedFd>>) {
        let mut before = std::mem::take(&mut self.kept);
        for socket in idle {
            let number = socket.as_raw_fd();
            let known = before.remove(&number).filter(|kept| Arc::ptr_eq(&kept.socket, &socket));
            let kept = known.or_else(|| self.watch(number, socket));
            self.kept.extend(kept.map(|kept| (number, kept)));
        }
        before.into_values().for_each(|kept| self.close(kept));
    }

    fn watch(&self, number: RawFd, socket: Arc<OwnedFd>) -> Option<Kept> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        // One that cannot be watched is not kept.
        epoll::add(&self.epoll, &*socket, EventData::new_u64(number as u64), flags).ok()?;
        Some(Kept { socket, until: None })
    }

    /// The registration belongs to the open file description, which the program has as well.
    fn close(&self, kept: Kept) {
        let _ = epoll::delete(&self.epoll, &*kept.socket);
    }

    /// While the program lives: records arrivals, and closes connections that are due.
    pub(super) fn turn(&mut self, now: Instant) {
        if self.kept.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default()));
        for event in &events {
            // Fields of a packed structure are not borrowed.
            let number = { event.data }.u64() as RawFd;
            if let Some(kept) = self.kept.get_mut(&number) {
                kept.until = Some(now + GRACE);
            }
        }
        let is_due = |kept: &Kept| kept.until.is_some_and(|until| until <= now);
        let due: Vec<RawFd> =
            self.kept.iter().filter(|(_, kept)| is_due(kept)).map(|(number, _)| *number).collect();
        for number in due {
            if let Some(kept) = self.kept.remove(&number) {
                self.close(kept);
            }
        }
    }

    /// For a restore.
    pub(super) fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.kept.values().map(|kept| Arc::clone(&kept.socket)).collect()
    }

    /// A new incarnation has connections of its own; the others end.
    pub(super) fn end(&mut self) {
        self.renew(Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (listener.accept().unwrap().0, peer)
    }

    #[test]
    fn a_connection_is_closed_soon_after_something_has_arrived() {
        let (own, mut peer) = pair();
        let (other, _far) = pair();
        let mut connections = IdleConnections::new().unwrap();
        let copy = |socket: &TcpStream| Arc::new(OwnedFd::from(socket.try_clone().unwrap()));
        let idle = vec![copy(&own), copy(&other)];
        connections.renew(idle.clone());
        let now = sys::clock::Clock::default().now();
        connections.turn(now);
        assert_eq!((connections.sockets().len(), connections.due()), (2, None));
        peer.write_all(b"question").unwrap();
        while connections.due().is_none() {
            connections.turn(now);
        }
        // The program still has it, and another checkpoint finds it unread.
        connections.renew(idle);
        assert_eq!(connections.due(), Some(now + GRACE));
        connections.turn(now + GRACE);
        assert_eq!(connections.sockets().len(), 1);
        drop(own);
        // A reset, since the question was not read.
        assert!(peer.read(&mut [0]).is_err(), "nothing holds it open");
    }

    #[test]
    fn those_that_a_checkpoint_does_not_find_end() {
        let (own, mut peer) = pair();
        let mut connections = IdleConnections::new().unwrap();
        connections.renew(vec![Arc::new(own.into())]);
        connections.end();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert!(connections.sockets().is_empty());
    }
}
