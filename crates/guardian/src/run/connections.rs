//! Idle TCP connections of a subject that can stay open when the subject dies.
//!
//! Owns: duplicates of the connections that a checkpoint has found idle. A duplicate is closed when data arrives, when
//! the next checkpoint does not find the connection idle, or when another incarnation begins.
//! Invariants: while the program lives, the duplicate of a connection with new data is closed within [`GRACE`] and one
//! turn, even if the program reads the data at once. Otherwise the peer would not see when the program closes the
//! connection. (Data that the program reads between the pause of the checkpoint and [`IdleConnections::renew`] is found
//! only by the next checkpoint.) While the program is dead, all duplicates are kept.
//! Does not: decide which connection a restore keeps; `resource` compares the counters of a connection with the
//! checkpoint.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sys::Error;

use crate::error::Result;

/// How long a connection is kept after data has arrived. Data that arrives at a program that has just died may be
/// detected before the death.
const GRACE: Duration = Duration::from_millis(10);
/// The conditions of a connection on which data or its end has arrived.
const ARRIVED: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::HUP).union(EventFlags::ERR);
/// Maximum number of events in one turn. Further events are handled in the next turn.
const EVENTS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct IdleConnections {
    /// The kept duplicates, by their descriptor numbers in this process.
    kept: HashMap<RawFd, Kept>,
    /// Reports each arrival of data.
    epoll: OwnedFd,
}

#[derive(Debug)]
struct Kept {
    socket: Arc<OwnedFd>,
    /// Whether the report that follows each registration has been received.
    is_registered: bool,
    /// Time at which the duplicate is closed, because data has arrived.
    until: Option<Instant>,
}

impl IdleConnections {
    /// Longest checkpoint interval with kept connections. With a longer interval, a checkpoint would detect a close by
    /// the program too late, and the peer would wait.
    pub(super) const INTERVAL_MAX: Duration = Duration::from_secs(1);

    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|errno| Error::new("make an epoll for connections", errno))?;
        Ok(Self { kept: HashMap::new(), epoll })
    }

    /// Returns a descriptor that is readable when data has arrived on a connection.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the time at which the next duplicate must be closed, if the program still lives.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kept.values().filter_map(|kept| kept.until).min()
    }

    /// Keeps exactly the connections that a checkpoint has found idle.
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
        // A report is lost if none of its conditions holds when it is received. Data may already be read then, but a
        // connection accepts output, except if the peer has not read for long.
        let flags = ARRIVED | EventFlags::OUT | EventFlags::ET;
        // A connection that cannot be watched is not kept.
        epoll::add(&self.epoll, &*socket, EventData::new_u64(number as u64), flags).ok()?;
        Some(Kept { socket, is_registered: false, until: None })
    }

    /// Removes the registration of a connection. The registration belongs to the open file description, which the
    /// program also holds. Closing the duplicate therefore does not remove the registration.
    fn close(&self, kept: Kept) {
        let _ = epoll::delete(&self.epoll, &*kept.socket);
    }

    /// Records arrived data, and closes due connections. Must be called only while the program lives.
    pub(super) fn turn(&mut self, now: Instant) {
        if self.kept.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&Timespec::default()));
        for event in &events {
            // The fields are copied, because a field of a packed structure cannot be borrowed.
            let (number, flags) = ({ event.data }.u64() as RawFd, { event.flags });
            if let Some(kept) = self.kept.get_mut(&number) {
                let has_arrived =
                    std::mem::replace(&mut kept.is_registered, true) || flags.intersects(ARRIVED);
                if has_arrived {
                    kept.until.get_or_insert(now + GRACE);
                }
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

    pub(super) fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.kept.values().map(|kept| Arc::clone(&kept.socket)).collect()
    }

    /// Closes all duplicates, because a new incarnation has connections of its own.
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
        // The program still holds the connection, and another checkpoint finds the data unread.
        connections.renew(idle);
        assert_eq!(connections.due(), Some(now + GRACE));
        connections.turn(now + GRACE);
        assert_eq!(connections.sockets().len(), 1);
        drop(own);
        // The peer receives a reset, because the question was not read.
        assert!(peer.read(&mut [0]).is_err(), "nothing holds it open");
    }

    #[test]
    fn data_that_the_program_reads_at_once_is_seen() {
        let (mut own, mut peer) = pair();
        let mut connections = IdleConnections::new().unwrap();
        connections.renew(vec![Arc::new(own.try_clone().unwrap().into())]);
        let now = sys::clock::Clock::default().now();
        connections.turn(now);
        assert_eq!(connections.due(), None);
        peer.write_all(b"question").unwrap();
        own.read_exact(&mut [0; 8]).unwrap();
        connections.turn(now);
        assert_eq!(connections.due(), Some(now + GRACE));
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
