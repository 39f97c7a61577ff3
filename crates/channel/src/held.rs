//! Describes held sockets: duplicates of listening sockets that stay open when the program dies.
//!
//! The next incarnation usually binds a new socket to the same address. The held socket then replaces the new socket.
//!
//! Owns: the duplicate of one listening socket, and the properties that must be equal in the duplicate and in a new
//! socket.
//! Invariants: the duplicate refers to the same open file description as the socket of the program.
//! Does not: decide when the socket is closed; `component` does.

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

/// Backlog of the socket of a dead program. The kernel limits the value to net.core.somaxconn. Programs often request a
/// much shorter backlog, because they expect to accept connections immediately.
const BACKLOG_OF_DEAD: i32 = i32::MAX;

const DOMAIN: SocketOption = option(libc::SOL_SOCKET, libc::SO_DOMAIN, "SO_DOMAIN");
const TYPE: SocketOption = option(libc::SOL_SOCKET, libc::SO_TYPE, "SO_TYPE");
const PROTOCOL: SocketOption = option(libc::SOL_SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL");
const V6_ONLY: SocketOption = option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY");
const INTERFACE: SocketOption = option(libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, "SO_BINDTOIFINDEX");
/// SO_NETNS_COOKIE, available since Linux 5.14.
const NAMESPACE: SocketOption = option(libc::SOL_SOCKET, 71, "SO_NETNS_COOKIE");
const LISTENS: SocketOption = option(libc::SOL_SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN");

const fn option(level: i32, number: i32, name: &'static str) -> SocketOption {
    SocketOption { level, number, name }
}

/// The properties of a socket that must be equal so that a held socket can replace a new socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    domain: i32,
    kind: i32,
    protocol: i32,
    pub(crate) is_v6_only: bool,
    interface: i32,
    /// The cookie of the network namespace; zero if the kernel does not report the cookie.
    namespace: u64,
    /// The user who has created the socket. A process of another user in the same component may lack the right to bind
    /// the address, for example a port below 1024. Its bind(2) is left to the kernel.
    owner: u32,
}

impl Kind {
    /// Returns the kind of a TCP or MPTCP socket, or of a Unix stream or seqpacket socket. Returns `None` for other
    /// sockets.
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
        let (protocol, owner) = (get(PROTOCOL)?, rustix::fs::fstat(socket).ok()?.st_uid);
        let kind = Self { domain, kind, protocol, is_v6_only, interface, namespace, owner };
        is_known.then_some(kind)
    }

    pub(crate) fn is_tcp(self) -> bool {
        self.domain != libc::AF_UNIX
    }

    /// Returns the name of the kind, for `undying status`.
    pub(crate) fn name(self) -> &'static str {
        match (self.domain, self.kind) {
            (libc::AF_INET, _) => "tcp",
            (libc::AF_INET6, _) => "tcp6",
            (_, libc::SOCK_SEQPACKET) => "unix-seqpacket",
            _ => "unix",
        }
    }
}

/// A duplicate of a socket of a program, with the properties of the socket.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) socket: OwnedFd,
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
    pub(crate) slot: Slot,
}

impl Taken {
    /// Duplicates a socket of a thread. Returns `None` if sockets of this kind are not held.
    pub(crate) fn of_thread(thread: Tid, fd: Fd) -> Option<Self> {
        let handle = pidfd::open_thread(thread).ok()?;
        let socket = pidfd::duplicate(handle.as_fd(), Pid(thread.get()), fd).ok()?;
        let kind = Kind::of(socket.as_fd())?;
        let identity = identity_of(socket.as_fd())?;
        Some(Self { socket, kind, identity, slot: (Pid(thread.get()), fd) })
    }

    /// Returns the location of the socket file if the socket is bound to a path.
    pub(crate) fn place(&self) -> Option<Place> {
        match Address::from_bytes(&socket::local(self.socket.as_fd()).ok()?)? {
            Address::Path(path) => {
                Place::of_thread(Tid(self.slot.0.get()), Path::new(OsStr::from_bytes(&path)))
            }
            _ => None,
        }
    }

    /// Reports whether the open file description has O_NONBLOCK.
    pub(crate) fn is_nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    pub(crate) fn listens(&self) -> bool {
        socket_option::get_int(self.socket.as_fd(), LISTENS).is_ok_and(|listens| listens != 0)
    }
}

/// Returns the device and the inode of a socket.
pub(crate) fn identity_of(socket: BorrowedFd<'_>) -> Option<Identity> {
    rustix::fs::fstat(socket).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Reports whether a descriptor of a thread has the close-on-exec flag.
pub(crate) fn closes_on_exec(thread: Tid, fd: Fd) -> Option<bool> {
    procfs::closes_on_exec(&procfs::read_text(format!("/proc/{thread}/fdinfo/{fd}")).ok()?)
}

/// Whether the current incarnation has a held socket open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The current incarnation has the socket open.
    Taken,
    /// The current incarnation may have the socket open. The thread with this tid has received the socket, but a signal
    /// has interrupted its call of bind(2).
    Interrupted(Tid),
    /// No incarnation has claimed the socket since the last death.
    Open,
}

/// The process and the descriptor number with which a socket was last found.
pub(crate) type Slot = (Pid, Fd);

/// A held listening socket.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) socket: OwnedFd,
    pub(crate) identity: Identity,
    pub(crate) kind: Kind,
    pub(crate) address: Address,
    pub(crate) path: Option<BoundPath>,
    pub(crate) claim: Claim,
    pub(crate) slot: Option<Slot>,
    /// Number of successive scans that have found no process with the socket.
    pub(crate) absences: u32,
}

impl Held {
    /// Creates a held socket from a listening socket. Returns `None` if the socket has no address.
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

    /// Reports whether a new bind(2) may receive the socket: the socket is unclaimed, or the last scan has found no
    /// process with the socket.
    pub(crate) fn is_open(&self) -> bool {
        self.claim == Claim::Open || self.absences > 0
    }

    /// Reports whether this held socket prevents a bind of a socket of the given kind to the address.
    pub(crate) fn is_in_the_way(&self, address: &Address, kind: Kind) -> bool {
        let is_in_reach = self.kind.is_tcp() == kind.is_tcp() && self.kind.namespace == kind.namespace;
        is_in_reach && self.address.conflicts(self.kind.is_v6_only, address, kind.is_v6_only)
    }

    /// Closes the socket. If the socket is unclaimed, the function calls shutdown(2) first, so that no duplicate
    /// continues to listen. A new child of this process has a duplicate until the child executes its program.
    pub(crate) fn close(self) {
        if self.claim == Claim::Open {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }

    /// Reports whether clients that connect now reach the socket. The path of a socket, if there is one, must lead to the
    /// socket. The path of a running program is not checked; a program that is being ended may have unlinked its path.
    pub(crate) fn is_reachable(&self, is_ending: bool) -> bool {
        self.claim == Claim::Taken && !is_ending || self.path.as_ref().is_none_or(BoundPath::is_named)
    }

    /// Reports whether this held socket can replace a socket that a thread binds to the address.
    pub(crate) fn matches(&mut self, address: &Address, kind: Kind, place: Option<&Place>) -> bool {
        if self.address != *address || self.kind != kind {
            return false;
        }
        match (address, &mut self.path, place) {
            (Address::Path(_), Some(path), Some(place)) => {
                let own = &path.place;
                (own.identity, &own.name) == (place.identity, &place.name) && path.is_named_again()
            }
            (Address::Path(_), _, _) => false,
            _ => true,
        }
    }

    /// Copies the settings of the program's own socket to the held socket.
    pub(crate) fn adopt_settings(&self, program: &Taken) {
        crate::options::copy(program.socket.as_fd(), self.socket.as_fd());
        if let Ok(mut flags) = rustix::fs::fcntl_getfl(&self.socket) {
            flags.set(OFlags::NONBLOCK, program.is_nonblocking());
            // If this call fails, accept(2) of the program may block or fail unexpectedly.
            let _ = rustix::fs::fcntl_setfl(&self.socket, flags);
        }
    }

    /// Prepares the socket for the time until the next incarnation claims the socket. A TCP socket gets a longer
    /// backlog, because more clients queue while no program accepts them. With `keeps_path`, a second link preserves
    /// the socket file, in case the next incarnation unlinks the path.
    pub(crate) fn prepare_wait(&mut self, keeps_path: bool) {
        (self.claim, self.slot, self.absences) = (Claim::Open, None, 0);
        if self.kind.is_tcp() {
            // On a Unix socket, listen(2) would make this process the peer that clients see.
            let _ = rustix::net::listen(&self.socket, BACKLOG_OF_DEAD);
        }
        if keeps_path {
            self.keep_path();
        }
    }

    /// Creates the second link of the socket file. If the program has unlinked the path after an earlier call, the path
    /// leads to the socket again.
    pub(crate) fn keep_path(&mut self) {
        if let Some(path) = &mut self.path
            && path.is_named_again()
        {
            path.link_aside();
        }
    }

    /// Records that the current incarnation has the socket open.
    pub(crate) fn take(&mut self, slot: Slot) {
        (self.claim, self.slot, self.absences) = (Claim::Taken, Some(slot), 0);
        if let Some(path) = &mut self.path {
            path.is_bound();
        }
    }
}
