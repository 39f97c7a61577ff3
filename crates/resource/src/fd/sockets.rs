//! State that all sockets of a subject share, during one checkpoint and between checkpoints.
//!
//! Each socket is captured by its own capture object. The captures need common facts: the options of a new socket, and
//! the ends of all connections of the subject. If the subject has both ends, a connection is *inside*, and otherwise
//! *outside*. Reading all options of a socket takes many system calls, so the options are cached by the inode number of
//! the socket.
//!
//! Owns: the sock_diag(7) connection, the options of new sockets, the ends of the connections seen in one pause, and
//! cached options of connections.
//! Invariants: cached options are at most `AGE_MAX` old when a checkpoint is prepared. The age is limited, because
//! the kernel can give the inode number of a closed socket to a new socket. The ends of connections are valid for one
//! pause.
//! Does not: decide which sockets may use cached options; the descriptor kind of the socket does.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Inode, Pid};
use sys::clock::Clock;
use sys::packet_drop::{Ends, PacketDrop};
use sys::packet_hold::{PacketHold, PacketNumber, SocketMark};
use sys::sock_diag::SockDiag;
use sys::tcp_repair::LiveReader;

use super::kept_connections::{Keep, KeptConnections};
use super::socket_family::Family;
use super::socket_options::{Fresh, Options};
use super::tcp_progress::Progress;
use super::tcp_stream::Streams;
use crate::error::Result;

/// Maximum age of cached options.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The shared state of the sockets of one subject. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Sockets(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    clock: Clock,
    diag: RefCell<Option<Rc<SockDiag>>>,
    fresh: RefCell<HashMap<Family, Aged<Fresh>>>,
    options: RefCell<HashMap<Inode, Aged<Options>>>,
    connections: RefCell<Connections>,
    kept: RefCell<KeptConnections>,
    /// Holds back the packets that the sockets send. A packet is held back until a checkpoint contains the state in
    /// which the packet was sent. `None` if packets are not held back.
    hold: RefCell<Option<Arc<PacketHold>>>,
    /// Number of sockets that can answer peers and whose output `hold` does not hold back, seen in this pause.
    unheld: Cell<usize>,
    /// The last packet that was in the queue of `hold` when the pause began.
    held_through: Cell<Option<PacketNumber>>,
    may_repair: Cell<Option<bool>>,
    whole: RefCell<Whole>,
    /// Whether all outside connections are kept, because the subject does not run after the pause.
    keeps_all: Cell<bool>,
}

/// The connections of the subject in one pause.
#[derive(Debug, Default)]
struct Connections {
    /// Local and peer address of each connection that was seen.
    ends: HashSet<Ends>,
    /// Outside connections whose packets must be dropped before the subject is killed.
    to_drop: Vec<Ends>,
}

/// The connections whose whole state is captured.
#[derive(Debug, Default)]
struct Whole {
    /// The known bytes in their queues, by socket cookie.
    streams: HashMap<u64, (Streams, InThisPause)>,
    reader: LiveReader,
}

/// Reports whether the connection was captured in this pause.
type InThisPause = bool;

#[derive(Debug)]
struct Aged<T> {
    value: Rc<T>,
    read: Instant,
    is_used: bool,
}

impl<T> Aged<T> {
    fn new(value: T, read: Instant) -> Self {
        Self { value: Rc::new(value), read, is_used: true }
    }
}

impl Sockets {
    /// Begins the preparation of all sockets for a checkpoint. Drops cached options that were not used since the
    /// previous call of this method.
    pub fn begin_preparing(&self) {
        self.0.options.borrow_mut().retain(|_, known| std::mem::take(&mut known.is_used));
    }

    /// Begins a pause. Called when the subject is stopped, before any call of `FdCapture::inside`.
    pub fn begin_pause(&self) {
        self.0.connections.take();
        self.0.kept.borrow_mut().begin_pause();
        self.0.unheld.set(0);
        self.0.whole.borrow_mut().streams.retain(|_, (_, is_used)| std::mem::take(is_used));
        // The sockets are read after this call. Their state in this pause therefore includes all packets that are
        // already in the queue.
        let hold = self.0.hold.borrow();
        self.0.held_through.set(hold.as_ref().and_then(|hold| hold.queued().ok().flatten()));
    }

    /// Switches the holding of packets on. From the next pause on, the packets of the subject's TCP sockets are held
    /// back, and outside connections are captured with their whole state.
    pub fn hold_output(&self, hold: Arc<PacketHold>) {
        *self.0.hold.borrow_mut() = Some(hold);
    }

    /// Sets whether the next pause keeps all outside connections, and not only idle connections. Must be `true` only if
    /// the subject does not run after the pause.
    pub fn keep_all(&self, keeps_all: bool) {
        self.0.keeps_all.set(keeps_all);
    }

    /// Reports whether this pause keeps all outside connections.
    pub(crate) fn keeps_all(&self) -> bool {
        self.0.keeps_all.get()
    }

    /// Notes connections whose packets [`Self::drop_packets`] will drop.
    pub(super) fn drop_later(&self, connections: impl IntoIterator<Item = Ends>) {
        self.0.connections.borrow_mut().to_drop.extend(connections);
    }

    /// Begins to drop the packets of all noted connections, with few requests. They are dropped until a restored socket
    /// starts, also in another process.
    pub(super) fn drop_packets(&self) -> Result<()> {
        let connections = std::mem::take(&mut self.0.connections.borrow_mut().to_drop);
        if !connections.is_empty() {
            PacketDrop::lasting()?.add(&connections)?;
        }
        Ok(())
    }

    /// Returns the mark (SO_MARK) of sockets whose packets are held back. Returns `None` if packets are not held
    /// back.
    pub(crate) fn mark(&self) -> Option<SocketMark> {
        self.0.hold.borrow().as_ref().map(|hold| hold.mark())
    }

    /// Calls `read` with the bytes in the queues of a connection that earlier checkpoints have read. A connection that was
    /// not captured in the previous pause has no known bytes. Called inside the pause.
    pub(super) fn with_streams<T>(
        &self,
        cookie: u64,
        read: impl FnOnce(&mut Streams, &mut LiveReader) -> T,
    ) -> T {
        let Whole { streams, reader } = &mut *self.0.whole.borrow_mut();
        let (known, is_used) = streams.entry(cookie).or_default();
        *is_used = true;
        read(known, reader)
    }

    /// Counts a socket that can answer peers and whose output is not held back. Called inside the pause.
    pub(crate) fn note_unheld(&self) {
        self.0.unheld.update(|count| count + 1);
    }

    /// Returns the last packet that was in the queue of held packets when the last pause began.
    #[must_use]
    pub fn held_through(&self) -> Option<PacketNumber> {
        self.0.held_through.get()
    }

    /// Records the progress of an outside connection, and keeps a duplicate of its socket if the connection is idle.
    /// With [`Keep::Any`], keeps the duplicate in every case. Called inside the pause.
    pub(crate) fn note_progress(&self, progress: Progress, socket: BorrowedFd<'_>, which: Keep) {
        self.0.kept.borrow_mut().note(progress, socket, which);
    }

    /// Returns the sockets of the kept outside connections. Called after a pause, while the limit on descriptors is
    /// raised. A connection is kept if its whole state was captured. It is also kept if it is idle: the program has
    /// neither read nor written since the previous pause. If the program closes a kept connection, the peer does not
    /// receive the end of the connection, because the duplicate is still open.
    #[must_use]
    pub fn take_connections(&self) -> Vec<Arc<OwnedFd>> {
        if let Some(hold) = &*self.0.hold.borrow() {
            hold.note_unheld(self.0.unheld.get());
        }
        self.0.kept.borrow_mut().take()
    }

    /// Returns the sock_diag(7) connection. The first call opens the connection.
    pub(crate) fn diag(&self) -> Result<Rc<SockDiag>> {
        let mut diag = self.0.diag.borrow_mut();
        if diag.is_none() {
            *diag = Some(Rc::new(SockDiag::open()?));
        }
        Ok(diag.as_ref().map(Rc::clone).expect("it was opened above"))
    }

    /// Returns the options of a new socket of a family.
    pub(crate) fn fresh(&self, family: Family) -> Result<Rc<Fresh>> {
        let mut all = self.0.fresh.borrow_mut();
        let now = self.0.clock.now();
        if let Some(known) = all.get(&family).filter(|known| now - known.read < AGE_MAX) {
            return Ok(Rc::clone(&known.value));
        }
        let new = Aged::new(Fresh::of(family)?, now);
        let value = Rc::clone(&new.value);
        all.insert(family, new);
        Ok(value)
    }

    /// Returns the options of a socket, which were read at most [`AGE_MAX`] ago.
    pub(crate) fn recent_options(
        &self,
        inode: Inode,
        socket: impl AsFd,
        family: Family,
    ) -> Result<Rc<Options>> {
        let mut all = self.0.options.borrow_mut();
        let now = self.0.clock.now();
        if let Some(known) = all.get_mut(&inode).filter(|known| now - known.read < AGE_MAX) {
            known.is_used = true;
            return Ok(Rc::clone(&known.value));
        }
        let new = Aged::new(Options::read(socket, &*self.fresh(family)?)?, now);
        let value = Rc::clone(&new.value);
        all.insert(inode, new);
        Ok(value)
    }

    /// Records that the subject has this end of a connection. Called inside the pause.
    pub(crate) fn note_end(&self, local: SocketAddr, peer: SocketAddr) {
        self.0.connections.borrow_mut().ends.insert((local, peer));
    }

    /// Reports whether the subject has the other end of a connection. Must be called after [`Self::note_end`] was
    /// called for all ends.
    pub(crate) fn has_other_end(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        self.0.connections.borrow().ends.contains(&(peer, local))
    }

    /// Reports whether this process has CAP_NET_ADMIN. Reads the capabilities only at the first call.
    pub(crate) fn may_repair(&self) -> bool {
        let may = self.0.may_repair.get().unwrap_or_else(may_repair);
        self.0.may_repair.set(Some(may));
        may
    }
}

/// Reports whether this process has CAP_NET_ADMIN.
pub(super) fn may_repair() -> bool {
    const CAP_NET_ADMIN: u64 = 1 << 12;
    let us = Pid(std::process::id() as i32);
    tracee::procfs::status(us).is_ok_and(|status| status.cap_effective & CAP_NET_ADMIN != 0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::test_support::describe;
    use super::*;

    #[test]
    fn recent_options_are_cached_for_a_second_and_dropped_when_unused() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let family = Family::of(&socket).unwrap();
        let inode = describe(0, &socket).inode();
        let clock = Clock::by_hand();
        let sockets = Sockets(Rc::new(Shared { clock: clock.clone(), ..Shared::default() }));
        let ask = || sockets.recent_options(inode, &socket, family).unwrap();
        let first = ask();
        rustix::net::sockopt::set_tcp_keepcnt(&socket, 3).unwrap();
        sockets.begin_preparing();
        assert!(Rc::ptr_eq(&first, &ask()));
        clock.advance(AGE_MAX);
        let second = ask();
        assert_ne!(first, second);
        sockets.begin_preparing();
        sockets.begin_preparing();
        assert!(sockets.0.options.borrow().is_empty());
    }

    #[test]
    fn the_other_end_is_found_in_the_same_pause_only() {
        let (one, other) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        let sockets = Sockets::default();
        sockets.note_end(one, other);
        assert!(sockets.has_other_end(other, one));
        assert!(!sockets.has_other_end(one, other));
        sockets.begin_pause();
        assert!(!sockets.has_other_end(other, one));
    }
}
