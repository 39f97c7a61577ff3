//! Saves and restores netlink(7) sockets of protocols without other per-socket state in the kernel: the descriptor
//! kind `fd/netlink`.
//!
//! Owns: port, peer, group memberships and options of a socket, and reporting its unread messages as lost.
//! Invariants: messages that were unread at the checkpoint are restored as one error ENOBUFS, as after an overrun.
//! After ENOBUFS, a program must query the kernel again (netlink(7)). A few acknowledgements of NLMSG_NOOP requests
//! with sequence number 0 follow the error.
//! Does not: restore a partly read dump, or queues and logs of the packet filter that are bound to the port.
//! Protocols with other state (connector, audit with a port), and sockets that are connected to another program, are
//! not restored either. All these sockets are refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use model::Inode;
use prost::Message;
use rustix::event::PollFlags;
use rustix::fs::FileType;
use sys::socket::{self, SocketAddress};
use sys::socket_option::{self, SocketOption};
use sys::{Errno, Error};
use tracee::procfs;

use super::description::{Description, Known};
use super::inherited_socket::InheritedSocket;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use super::socket_events::events;
use super::socket_family::{AF_NETLINK, Family, SOL_NETLINK};
use super::socket_options::{self, Fresh, Options, RECEIVE_BUFFER};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "fd/netlink";
const WHAT: &str = "netlink socket";
const EADDRINUSE: i32 = 98;
const GENERIC: i32 = 16;
const AUDIT: i32 = 9;
const NETFILTER: i32 = 12;
/// Supported protocols, which only answer requests: NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_XFRM,
/// NETLINK_NETFILTER, NETLINK_KOBJECT_UEVENT, NETLINK_GENERIC.
const PROTOCOLS: &[i32] = &[0, 4, 6, NETFILTER, 15, GENERIC];
const ADD_MEMBERSHIP: SocketOption =
    SocketOption { level: SOL_NETLINK, number: 1, name: "NETLINK_ADD_MEMBERSHIP" };
const LIST_MEMBERSHIPS: SocketOption =
    SocketOption { level: SOL_NETLINK, number: 9, name: "NETLINK_LIST_MEMBERSHIPS" };
const NO_ENOBUFS: SocketOption = SocketOption { level: SOL_NETLINK, number: 5, name: "NETLINK_NO_ENOBUFS" };
/// Size of the buffer for membership bits, for up to 8,192 groups. The kernel has some hundred groups.
const MEMBERSHIP_BYTES_MAX: usize = 1024;
/// Maximum number of acknowledgements requested to fill the smallest receive buffer. Four are enough on Linux 6.18.
const ACKNOWLEDGEMENTS_MAX: usize = 64;
/// The offsets in `struct sockaddr_nl`.
const PORT_AT: usize = 4;
const GROUPS_AT: usize = 8;
const DUMPING: (&str, &str) =
    ("it has requested a dump and not read all of it", "retry, or let the program read all of it");
const BOUND_AUDIT: (&str, &str) = (
    "it is bound to the audit system, which keeps state of the socket in the kernel that cannot be read back",
    "start undying inside of sudo (`sudo -u USER undying run -- CMD`), or use setpriv instead of sudo; other programs \
     must close it first",
);

/// Descriptor kind ([`FdKind`]) of netlink sockets.
#[derive(Debug)]
pub struct Netlink;

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, required, tag = "1")]
    family: Family,
    #[prost(message, required, tag = "2")]
    options: Options,
    /// The port; 0 for a socket without a port.
    #[prost(uint32, tag = "3")]
    port: u32,
    /// One bit per group. The first group is the lowest bit of the first byte.
    #[prost(bytes = "vec", tag = "4")]
    groups: Vec<u8>,
    /// Set when messages or an error were unread.
    #[prost(bool, tag = "5")]
    lost: bool,
    #[prost(message, optional, tag = "6")]
    inherited: Option<InheritedSocket>,
    /// The id of the boot in which the numbers of NETLINK_GENERIC families are valid. Empty for other protocols.
    #[prost(string, tag = "7")]
    boot: String,
    /// The port of the socket of the subject to which this socket is connected; 0 for the kernel.
    #[prost(uint32, tag = "8")]
    peer: u32,
    /// The group to which this socket is connected, as a bit; 0 without a group.
    #[prost(uint32, tag = "9")]
    peer_group: u32,
}

#[derive(Debug)]
struct Capture {
    fresh: Rc<Fresh>,
    state: State,
}

impl FdKind for Netlink {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| family.domain == AF_NETLINK)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if scope.is_inherited(&description.stat) {
            return Vec::new();
        }
        let mut found = socket_options::obstacles(description, WHAT);
        match refusal(description).and_then(|found| Ok(found.or(foreign_peer(description, scope)?))) {
            Ok(None) => {}
            Ok(Some((why, fix))) => found.push(description.obstacle(WHAT, why, fix)),
            Err(error) => found.push(description.obstacle(WHAT, &error.to_string(), "retry")),
        }
        found
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let family = Family::of(description)?;
        let inherited = InheritedSocket::of(description, scope);
        let boot = if family.protocol == GENERIC { boot()? } else { String::new() };
        let state = State { family, inherited, boot, ..State::default() };
        Ok(Box::new(Capture { fresh: scope.sockets.fresh(family)?, state }))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |state: State, _, context| match state.inherited {
            Some(inherited) => inherited.take(context),
            None => build(&state),
        })
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        if self.state.inherited.is_some() {
            return Ok(());
        }
        if let Some((why, fix)) = refusal(description)? {
            return Err(description.obstacle(WHAT, why, fix).into());
        }
        let socket = description.as_fd();
        self.state.options = Options::read(socket, &self.fresh)?;
        self.state.port = port(&socket::local(socket)?);
        let peer = socket::peer(socket)?.unwrap_or_default();
        (self.state.peer, self.state.peer_group) = (port(&peer), word(&peer, GROUPS_AT));
        self.state.groups = memberships(socket)?;
        self.state.lost = events(socket)?.intersects(PollFlags::IN | PollFlags::ERR);
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        match foreign_peer(description, scope)? {
            Some((why, fix)) if self.state.inherited.is_none() => {
                Err(description.obstacle(WHAT, why, fix).into())
            }
            _ => Ok(()),
        }
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(self.state.encode_to_vec())
    }
}

/// Returns the reason why a socket cannot be saved, and the fix. Returns `None` if the socket can be saved.
fn refusal(description: &Description) -> Result<Option<(&'static str, &'static str)>> {
    let socket = description.as_fd();
    let family = Family::of(socket)?;
    let own = port(&socket::local(socket)?);
    // The kernel sends audit events only to a socket with a port. Programs such as dbus-daemon open a socket without
    // a port to write events.
    let is_unused_audit = family.protocol == AUDIT && own == 0;
    if family.protocol == AUDIT && !is_unused_audit {
        return Ok(Some(BOUND_AUDIT));
    }
    if !PROTOCOLS.contains(&family.protocol) && !is_unused_audit {
        return Ok(Some((
            "its protocol keeps state of the socket in the kernel, and this state cannot be read back",
            "let the program close it before the checkpoint",
        )));
    }
    if is_dumping(description.inode())? {
        return Ok(Some(DUMPING));
    }
    if family.protocol == NETFILTER && own != 0 && has_packet_queue(own) {
        return Ok(Some((
            "a queue or log of the packet filter is bound to it",
            "let the program close it before the checkpoint (NFQUEUE, NFLOG)",
        )));
    }
    Ok(None)
}

/// Returns the reason why a connection to a port cannot be saved. A connected socket may send to its port without a
/// further check, so the port must be a port of the subject, which the restore binds again.
fn foreign_peer(
    description: &Description,
    scope: &CaptureScope<'_>,
) -> Result<Option<(&'static str, &'static str)>> {
    let socket = description.as_fd();
    let (protocol, peer) = (Family::of(socket)?.protocol, port(&socket::peer(socket)?.unwrap_or_default()));
    let has_port = |open: &Description| {
        Family::of(open).is_ok_and(|family| (family.domain, family.protocol) == (AF_NETLINK, protocol))
            && socket::local(open.as_fd()).is_ok_and(|local| port(&local) == peer)
    };
    // Before a pause, later scans hold no duplicates. The check inside the pause then decides.
    let is_own = peer == 0 || scope.open.is_empty() || scope.open.iter().any(has_port);
    Ok((!is_own).then_some((
        "it is connected to the port of another program",
        "let the program close it before the checkpoint",
    )))
}

/// Returns the port in a `struct sockaddr_nl`.
fn port(address: &SocketAddress) -> u32 {
    word(address, PORT_AT)
}

fn word(address: &SocketAddress, at: usize) -> u32 {
    address.0.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn memberships(socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let mut bits = vec![0; MEMBERSHIP_BYTES_MAX];
    let length = socket_option::get(socket, LIST_MEMBERSHIPS, &mut bits)?;
    bits.truncate(length);
    Ok(bits)
}

/// Reports whether a dump for a socket is in progress (column `Dump` of /proc/net/netlink).
fn is_dumping(inode: Inode) -> Result<bool> {
    const DUMP: usize = 6;
    const INODE: usize = 9;
    let text = procfs::read_text("/proc/net/netlink")?;
    let inode = inode.to_string();
    Ok(text.lines().any(|line| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        words.get(INODE) == Some(&inode.as_str()) && words[DUMP] != "0"
    }))
}

/// Reports whether NFQUEUE or NFLOG sends packets to a port. Without these kernel modules, the files are missing.
fn has_packet_queue(port: u32) -> bool {
    const PORT: usize = 1;
    let files = ["/proc/net/netfilter/nfnetlink_queue", "/proc/net/netfilter/nfnetlink_log"];
    let port = port.to_string();
    files.iter().any(|path| {
        let text = procfs::read_text(path).unwrap_or_default();
        text.lines().any(|line| line.split_ascii_whitespace().nth(PORT) == Some(port.as_str()))
    })
}

/// Returns the id of this boot.
fn boot() -> Result<String> {
    Ok(procfs::read_text("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn build(state: &State) -> Result<OwnedFd> {
    if !state.boot.is_empty() && state.boot != boot()? {
        return Err(refused(
            state,
            "the machine was rebooted since the checkpoint, which changes the numbers of NETLINK_GENERIC families",
            "start the program anew instead of restoring it",
        ));
    }
    let owned = state.family.create()?;
    let socket = owned.as_fd();
    if state.port != 0 {
        bind(socket, state)?;
    }
    if state.lost && state.options.int(NO_ENOBUFS).unwrap_or(0) == 0 {
        overrun(socket)?;
    }
    state.options.apply_early(socket, state.family)?;
    state.options.restore_buffers(socket, state.family)?;
    for (index, byte) in state.groups.iter().enumerate() {
        for bit in (0..8).filter(|bit| byte & 1 << bit != 0) {
            socket_option::set_int(socket, ADD_MEMBERSHIP, (index * 8 + bit + 1) as i32)?;
        }
    }
    state.options.apply_late(socket, state.family)?;
    if (state.peer, state.peer_group) != (0, 0) {
        socket::connect(socket, &address(state.peer, state.peer_group))?;
    }
    Ok(owned)
}

/// Encodes a port and groups as `struct sockaddr_nl`.
fn address(port: u32, groups: u32) -> SocketAddress {
    let mut address = (AF_NETLINK as u16).to_ne_bytes().to_vec();
    address.extend([0; 2]);
    address.extend(port.to_ne_bytes());
    address.extend(groups.to_ne_bytes());
    SocketAddress(address)
}

fn bind(socket: BorrowedFd<'_>, state: &State) -> Result<()> {
    socket::bind(socket, &address(state.port, 0)).map_err(|error| match error.errno.0 {
        EADDRINUSE => refused(
            state,
            "another socket has this port",
            "end the program that uses this port (`ss -f netlink -p`), then restore again",
        ),
        _ => error.into(),
    })
}

fn refused(state: &State, why: &str, fix: &str) -> ResourceError {
    let path = format!("netlink protocol {} port {}", state.family.protocol, state.port);
    ResourceError::File { path, why: why.to_owned(), fix: fix.to_owned() }
}

/// Makes a socket report ENOBUFS: sends requests whose acknowledgements fill the receive buffer. Messages with the
/// kernel as sender cannot be injected. The acknowledgements are not read, since a read would also clear the error.
fn overrun(socket: BorrowedFd<'_>) -> Result<()> {
    const NOOP: u16 = 1;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 5;
    let mut request = 16_u32.to_ne_bytes().to_vec();
    request.extend(NOOP.to_ne_bytes());
    request.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    request.extend([0; 8]);
    socket_option::set_int(socket, RECEIVE_BUFFER, 1)?;
    for _ in 0..ACKNOWLEDGEMENTS_MAX {
        socket::send(socket, &socket::Message { bytes: &request, ..socket::Message::default() })?;
        if events(socket)?.contains(PollFlags::ERR) {
            return Ok(());
        }
    }
    Err(Error::new("report lost messages of a netlink socket", Errno::EINVAL).into())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::{Duration, Instant};

    use model::DescriptionId;

    use super::super::test_support::{capture, create, describe_all, round_trip};
    use super::*;

    const ROUTE: Family = Family { domain: AF_NETLINK, kind: 3, protocol: 0 };
    const EXTENDED_ACK: SocketOption =
        SocketOption { level: SOL_NETLINK, number: 11, name: "NETLINK_EXT_ACK" };

    fn bound(family: Family, groups: &[i32]) -> OwnedFd {
        let socket = family.create().unwrap();
        bind(socket.as_fd(), &State::default()).unwrap();
        for group in groups {
            socket_option::set_int(socket.as_fd(), ADD_MEMBERSHIP, *group).unwrap();
        }
        socket
    }

    /// Requests one link by its index, or all links (a dump).
    fn ask(socket: &OwnedFd, all: bool) {
        const GET_LINK: u16 = 18;
        let flags: u16 = if all { 0x301 } else { 1 };
        let mut request = 32_u32.to_ne_bytes().to_vec();
        request.extend(GET_LINK.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend([7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        request.extend(1_u32.to_ne_bytes());
        request.extend([0; 8]);
        socket::send(socket.as_fd(), &socket::Message { bytes: &request, ..Default::default() }).unwrap();
    }

    fn restore(socket: OwnedFd) -> OwnedFd {
        let records = capture(&Netlink, &describe_all(&[socket.as_fd()]), false).unwrap();
        drop(socket);
        // A child that another test forks has the socket, and so the port, until the child executes its program.
        let begun = Instant::now();
        loop {
            match create(&Netlink, &records, HashMap::new(), false) {
                Ok(mut created) => return created.remove(&DescriptionId(0)).unwrap(),
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error}"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn port_groups_and_options_are_restored() {
        let socket = bound(ROUTE, &[1, 5, 33]);
        socket_option::set_int(socket.as_fd(), EXTENDED_ACK, 1).unwrap();
        socket_option::set_int(socket.as_fd(), RECEIVE_BUFFER, 40_000).unwrap();
        let before = (socket::local(socket.as_fd()).unwrap(), memberships(socket.as_fd()).unwrap());
        let copy = restore(socket);
        assert_eq!((socket::local(copy.as_fd()).unwrap(), memberships(copy.as_fd()).unwrap()), before);
        assert_eq!(socket_option::get_int(copy.as_fd(), EXTENDED_ACK).unwrap(), 1);
        assert_eq!(socket_option::get_int(copy.as_fd(), RECEIVE_BUFFER).unwrap(), 80_000);
        assert!(events(&copy).unwrap().is_empty());
        ask(&copy, false);
        assert!(events(&copy).unwrap().contains(PollFlags::IN));
        let fresh = round_trip(&Netlink, ROUTE.create().unwrap());
        assert_eq!(port(&socket::local(fresh.as_fd()).unwrap()), 0);
    }

    #[test]
    fn unread_messages_are_reported_as_lost_once() {
        const ENOBUFS: i32 = 105;
        for protocol in [0, 4, 15, GENERIC] {
            let family = Family { protocol, ..ROUTE };
            let socket = bound(family, &[]);
            if overrun(socket.as_fd()).is_err() {
                println!("unsupported: netlink protocol {protocol}");
                continue;
            }
            let copy = restore(socket);
            let mut buffer = [0; 64];
            let error = socket::peek(copy.as_fd(), &mut buffer).unwrap_err();
            assert_eq!(error.errno.0, ENOBUFS);
            while rustix::net::recv(&copy, &mut buffer, rustix::net::RecvFlags::DONTWAIT).is_ok() {}
            assert!(events(&copy).unwrap().is_empty());
            assert_eq!(
                socket_option::get_int(copy.as_fd(), RECEIVE_BUFFER).unwrap(),
                socket_option::get_int(family.create().unwrap().as_fd(), RECEIVE_BUFFER).unwrap().min(2304),
            );
        }
        let socket = bound(ROUTE, &[]);
        ask(&socket, false);
        let copy = restore(socket);
        assert!(events(&copy).unwrap().contains(PollFlags::ERR));
        assert!(socket_option::get_int(copy.as_fd(), RECEIVE_BUFFER).unwrap() > 2304);
    }

    #[test]
    fn a_socket_with_other_kernel_state_is_refused() {
        let socket = bound(ROUTE, &[]);
        ask(&socket, true);
        let error = capture(&Netlink, &describe_all(&[socket.as_fd()]), false).unwrap_err().to_string();
        assert!(error.contains("dump"), "{error}");
        if let Ok(audit) = (Family { protocol: AUDIT, ..ROUTE }).create() {
            round_trip(&Netlink, &audit);
            bind(audit.as_fd(), &State::default()).unwrap();
            let error = capture(&Netlink, &describe_all(&[audit.as_fd()]), false).unwrap_err().to_string();
            assert!(error.contains("audit system") && error.contains("setpriv"), "{error}");
        }
        const USERSOCK: i32 = 2;
        let Ok(socket) = (Family { protocol: USERSOCK, ..ROUTE }).create() else {
            return println!("unsupported: NETLINK_USERSOCK");
        };
        let error = capture(&Netlink, &describe_all(&[socket.as_fd()]), false).unwrap_err().to_string();
        assert!(error.contains("protocol"), "{error}");
    }

    #[test]
    fn a_used_port_and_another_boot_are_named() {
        let socket = bound(ROUTE, &[]);
        let records = capture(&Netlink, &describe_all(&[socket.as_fd()]), false).unwrap();
        let error = create(&Netlink, &records, HashMap::new(), false).unwrap_err().to_string();
        assert!(error.contains("another socket has this port"), "{error}");
        let state = State { family: ROUTE, boot: "an earlier one".to_owned(), ..State::default() };
        assert!(build(&state).unwrap_err().to_string().contains("NETLINK_GENERIC"));
    }
}
