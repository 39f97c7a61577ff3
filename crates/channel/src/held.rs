//! Listening sockets that outlive their program.
//!
//! Owns: the duplicate of one listener with what a later incarnation has to match to get it back.
//! Invariants: the duplicate is of the same open file description that the program has.
//! Does not: decide when it is released; `state` does.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use model::{Fd, Pid, Tid};
use rustix::fs::OFlags;
use sys::socket_option::{self, SocketOption};
use sys::{pidfd, socket};
use tracee::procfs;

use crate::address::Address;
use crate::place::{BoundPath, Identity, Place};

/// Connections that wait for a dead program: as many as net.core.somaxconn allows. Programs often ask for far less, since
/// they expect to accept at once.
const BACKLOG_OF_DEAD: i32 = i32::MAX;

const DOMAIN: SocketOption = option(libc::SOL_SOCKET, libc::SO_DOMAIN, "SO_DOMAIN");
const TYPE: SocketOption = option(libc::SOL_SOCKET, libc::SO_TYPE, "SO_TYPE");
const PROTOCOL: SocketOption = option(libc::SOL_SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL");
const V6_ONLY: SocketOption = option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY");
const INTERFACE: SocketOption = option(libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, "SO_BINDTOIFINDEX");
/// SO_NETNS_COOKIE, since Linux 5.14.
const NAMESPACE: SocketOption = option(libc::SOL_SOCKET, 71, "SO_NETNS_COOKIE");
const LISTENS: SocketOption = option(libc::SOL_SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN");

const fn option(level: i32, number: i32, name: &'static str) -> SocketOption {
    SocketOption { level, number, name }
}

/// The properties that two sockets must share so that one can replace the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    domain: i32,
    kind: i32,
    protocol: i32,
    is_v6_only: bool,
    interface: i32,
    /// The network namespace; zero if the kernel does not report it.
    namespace: u64,
}

impl Kind {
    /// The kind of a stream or seqpacket socket of TCP (MPTCP too) or of a Unix socket; `None` for others.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let get = |option| socket_option::get_int(socket, option).ok();
        let (domain, kind) = (get(DOMAIN)?, get(TYPE)?);
        let is_v6_only = domain == libc::AF_INET6 && get(V6_ONLY)? != 0;
        let is_known = matches!(
            (domain, kind),
            (libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX, libc::SOCK_STREAM)
                | (libc::AF_UNIX, libc::SOCK_SEQPACKET)
        );
        let interface = get(INTERFACE).unwrap_or(0);
        let mut cookie = [0; 8];
        let has_cookie = socket_option::get(socket, NAMESPACE, &mut cookie).is_ok();
        let namespace = if has_cookie { u64::from_ne_bytes(cookie) } else { 0 };
        let kind = Self { domain, kind, protocol: get(PROTOCOL)?, is_v6_only, interface, namespace };
        is_known.then_some(kind)
    }

    pub(crate) fn is_v6_only(self) -> bool {
        self.is_v6_only
    }

    pub(crate) fn is_tcp(self) -> bool {
        self.domain != libc::AF_UNIX
    }

    /// For `status`.
    pub(crate) fn name(self) -> &'static str {
        match (self.domain, self.kind) {
            (libc::AF_INET, _) => "tcp",
            (libc::AF_INET6, _) => "tcp6",
            (_, libc::SOCK_SEQPACKET) => "unix-seqpacket",
            _ => "unix",
        }
    }
}

/// A socket of a thread that waits for the answer to its call.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) socket: OwnedFd,
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
    pub(crate) slot: Slot,
}

impl Taken {
    /// A duplicate of a socket of a thread. `None` if its kind is not held.
    pub(crate) fn of_thread(thread: Tid, fd: Fd) -> Option<Self> {
        let handle = pidfd::open_thread(thread).ok()?;
        let socket = pidfd::duplicate(handle.as_fd(), Pid(thread.get()), fd).ok()?;
        let kind = Kind::of(socket.as_fd())?;
        let identity = identity_of(socket.as_fd())?;
        Some(Self { socket, kind, identity, slot: (Pid(thread.get()), fd) })
    }

    /// Where its file is, if it is bound to a path.
    pub(crate) fn place(&self) -> Option<Place> {
        match Address::from_bytes(&socket::local(self.socket.as_fd()).ok()?)? {
            Address::Path(path) => {
                Place::of_thread(Tid(self.slot.0.get()), Path::new(OsStr::from_bytes(&path)))
            }
            _ => None,
        }
    }

    /// Whether its open file description has O_NONBLOCK.
    pub(crate) fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    /// Whether it listens.
    pub(crate) fn listens(&self) -> bool {
        socket_option::get_int(self.socket.as_fd(), LISTENS).is_ok_and(|listens| listens != 0)
    }
}

/// Device and inode of a socket.
pub(crate) fn identity_of(socket: BorrowedFd<'_>) -> Option<Identity> {
    rustix::fs::fstat(socket).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a descriptor of a thread closes on exec.
pub(crate) fn closes_on_exec(thread: Tid, fd: Fd) -> Option<bool> {
    procfs::closes_on_exec(&procfs::read_text(format!("/proc/{thread}/fdinfo/{fd}")).ok()?)
}

/// Which incarnation has a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The present one.
    Taken,
    /// The present one may have it: it was handed to this thread, and a signal broke the call off that gets it.
    Interrupted(Tid),
    /// None since the last one died.
    Open,
}

/// Where a descriptor of a listener was found last.
pub(crate) type Slot = (Pid, Fd);

/// A listener that is held.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) socket: OwnedFd,
    pub(crate) identity: Identity,
    pub(crate) kind: Kind,
    pub(crate) address: Address,
    pub(crate) path: Option<BoundPath>,
    pub(crate) claim: Claim,
    pub(crate) slot: Option<Slot>,
    /// Scans in a row that have found no process with it.
    pub(crate) absences: u32,
}

impl Held {
    /// A socket that listens. `None` if it has no address.
    pub(crate) fn new(taken: Taken, place: Option<Place>) -> Option<Self> {
        let Taken { socket, kind, identity, slot } = taken;
        let address = Address::from_bytes(&socket::local(socket.as_fd()).ok()?)?;
        let path = place.and_then(|place| {
            let file = socket::bound_file(socket.as_fd()).ok()??;
            Some(BoundPath::new(place, identity_of(file.as_fd())?))
        });
        let (claim, slot, absences) = (Claim::Taken, Some(slot), 0);
        Some(Self { socket, identity, kind, address, path, claim, slot, absences })
    }

    /// Whether a new incarnation may get it: it was not handed out, or no process has it open.
    pub(crate) fn is_open(&self) -> bool {
        self.claim == Claim::Open || self.absences > 0
    }

    /// Whether it is in the way of a socket of this kind that is bound to this address.
    pub(crate) fn is_in_the_way(&self, address: &Address, kind: Kind) -> bool {
        let is_in_reach = self.kind.is_tcp() == kind.is_tcp() && self.kind.namespace == kind.namespace;
        is_in_reach && self.address.conflicts(self.kind.is_v6_only, address, kind.is_v6_only)
    }

    /// Ends it. One that no incarnation has stops listening at once, although a child of this process that has not
    /// executed its program yet has a copy.
    pub(crate) fn close(self) {
        if self.claim == Claim::Open {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Whether clients that connect now reach it: its path, if it has one, leads to it.
    pub(crate) fn is_reachable(&self) -> bool {
        self.claim == Claim::Taken || self.path.as_ref().is_none_or(BoundPath::is_named)
    }

    /// Whether a socket that a thread binds to this address is the one to put it over.
    pub(crate) fn matches(&mut self, address: &Address, kind: Kind, place: Option<&Place>) -> bool {
        if self.address != *address || self.kind != kind {
            return false;
        }
        match (address, &mut self.path, place) {
            (Address::Path(_), Some(path), Some(place)) => {
                let own = path.place();
                (own.directory(), own.name()) == (place.directory(), place.name()) && path.is_named_again()
            }
            (Address::Path(_), _, _) => false,
            _ => true,
        }
    }

    /// Gives it what the program has set on its own socket.
    pub(crate) fn adopt_settings(&self, program: &Taken) {
        crate::options::copy(program.socket.as_fd(), self.socket.as_fd());
        if let Ok(mut flags) = rustix::fs::fcntl_getfl(&self.socket) {
            flags.set(OFlags::NONBLOCK, program.is_nonblocking());
            // Without it, the program's accept(2) waits or fails where it does not expect to.
            let _ = rustix::fs::fcntl_setfl(&self.socket, flags);
        }
    }

    /// Its program is dead: clients queue for longer than it had planned for. `keeps_path` has a path stay after the next
    /// incarnation has unlinked it.
    pub(crate) fn prepare_wait(&mut self, keeps_path: bool) {
        (self.claim, self.slot, self.absences) = (Claim::Open, None, 0);
        if self.kind.is_tcp() {
            // On a Unix socket, listen(2) would make this process the peer that clients see.
            let _ = rustix::net::listen(&self.socket, BACKLOG_OF_DEAD);
        }
        if let Some(path) = self.path.as_mut().filter(|_| keeps_path) {
            path.link_aside();
        }
    }

    /// It belongs to the present incarnation, and is there.
    pub(crate) fn take(&mut self, slot: Slot) {
        (self.claim, self.slot, self.absences) = (Claim::Taken, Some(slot), 0);
        if let Some(path) = &mut self.path {
            path.unlink_aside();
        }
    }
}
