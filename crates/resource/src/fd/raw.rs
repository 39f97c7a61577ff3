//! Saves and restores raw(7) sockets and ICMP sockets (`ping`) of IPv4 and IPv6: the descriptor kind `fd/raw`.
//!
//! Owns: address, peer, options with their ICMP filters, and multicast memberships.
//! Invariants: a connected socket without a port is connected again. getpeername(2) does not show its peer, so that the
//! peer is read from /proc/net.
//! Does not: save unread packets. They are lost, as packets can get lost in a network. Sockets of a multicast router are
//! refused.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use model::Inode;
use prost::Message;
use rustix::fs::FileType;
use sys::socket::{self, SocketAddress};
use tracee::procfs;

use super::description::{Description, Known};
use super::inherited_socket::InheritedSocket;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::multicast::{self, Membership};
use super::scope::CaptureScope;
use super::socket_family::{AF_INET, AF_INET6, Family, IPPROTO_ICMP, IPPROTO_ICMPV6, SOCK_DGRAM, SOCK_RAW};
use super::socket_options::{self, Fresh, Options};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::label;

const NAME: &str = "fd/raw";
const WHAT: &str = "raw socket";
const IPPROTO_IGMP: i32 = 2;
/// The offset of the address in `struct sockaddr_in`, and the size of this structure.
const IPV4_AT: usize = 4;
const IPV4_BYTES: usize = 16;
/// The offsets of address and scope in `struct sockaddr_in6`, and the size of this structure.
const IPV6_AT: usize = 8;
const SCOPE_AT: usize = 24;
const IPV6_BYTES: usize = 28;

/// Descriptor kind ([`FdKind`]) of raw sockets and ICMP sockets.
#[derive(Debug)]
pub struct Raw;

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, required, tag = "1")]
    family: Family,
    #[prost(message, required, tag = "2")]
    options: Options,
    #[prost(bytes = "vec", tag = "3")]
    local: Vec<u8>,
    /// The address of the peer; empty for an unconnected socket.
    #[prost(bytes = "vec", tag = "4")]
    peer: Vec<u8>,
    #[prost(message, repeated, tag = "5")]
    memberships: Vec<Membership>,
    #[prost(message, optional, tag = "6")]
    inherited: Option<InheritedSocket>,
}

#[derive(Debug)]
struct Capture {
    fresh: Rc<Fresh>,
    state: State,
}

impl FdKind for Raw {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| {
                let is_icmp = [IPPROTO_ICMP, IPPROTO_ICMPV6].contains(&family.protocol);
                [AF_INET, AF_INET6].contains(&family.domain)
                    && (family.kind == SOCK_RAW || (family.kind == SOCK_DGRAM && is_icmp))
            })
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if scope.is_inherited(&description.stat) {
            return Vec::new();
        }
        let mut found = socket_options::obstacles(description, WHAT);
        if Family::of(description).is_ok_and(may_route) {
            found.push(description.obstacle(
                WHAT,
                "it may be the socket of a multicast router, whose routes belong to the kernel",
                "end the multicast router before the checkpoint",
            ));
        }
        found
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let family = Family::of(description)?;
        let inherited = InheritedSocket::of(description, scope);
        let state = State { family, inherited, ..State::default() };
        Ok(Box::new(Capture { fresh: scope.sockets.fresh(family)?, state }))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        let state = State::decode(payload).ok()?;
        Some(label::addresses(&state.local, &state.peer))
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
        let (socket, family) = (description.as_fd(), self.state.family);
        self.state.options = Options::read(socket, &self.fresh)?;
        self.state.local = socket::local(socket)?.0;
        self.state.peer = match socket::peer(socket)? {
            Some(peer) => peer.0,
            None => peer_without_port(family, description.inode(), &self.state.local)?.unwrap_or_default(),
        };
        self.state.memberships = multicast::read(socket, family)?;
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(self.state.encode_to_vec())
    }
}

fn build(state: &State) -> Result<OwnedFd> {
    let socket = state.family.create().map_err(|error| ResourceError::File {
        path: format!("{WHAT} of protocol {}", state.family.protocol),
        why: format!("it cannot be created: {error}"),
        fix: "restore with CAP_NET_RAW; for an ICMP socket, check net.ipv4.ping_group_range".to_owned(),
    })?;
    state.options.apply_early(&socket, state.family)?;
    if state.peer.is_empty() {
        state.options.apply_unconnected(&socket, state.family)?;
    }
    if is_bound(state) {
        socket::bind(socket.as_fd(), &SocketAddress(state.local.clone()))?;
    }
    multicast::join(socket.as_fd(), &state.memberships)?;
    if !state.peer.is_empty() {
        socket::connect(socket.as_fd(), &SocketAddress(state.peer.clone()))?;
    }
    state.options.restore_buffers(&socket, state.family)?;
    state.options.apply_late(&socket, state.family)?;
    Ok(socket)
}

/// Reports whether a socket has a local address. The port of a raw socket is its protocol, and the port of an ICMP
/// socket is its identifier.
fn is_bound(state: &State) -> bool {
    let host = match state.family.domain {
        AF_INET => state.local.get(IPV4_AT..IPV4_AT + 4),
        _ => state.local.get(IPV6_AT..IPV6_AT + 16),
    };
    let has_host = host.is_some_and(|host| host.iter().any(|byte| *byte != 0));
    let port = state.local.get(2..4).is_some_and(|port| port != [0; 2]);
    has_host || (port && state.family.kind == SOCK_DGRAM)
}

/// Reads the peer of a socket that was connected without a port. Returns `None` for an unconnected socket.
fn peer_without_port(family: Family, inode: Inode, local: &[u8]) -> Result<Option<Vec<u8>>> {
    let table = match (family.kind, family.domain) {
        (SOCK_RAW, AF_INET) => "raw",
        (SOCK_RAW, _) => "raw6",
        (_, AF_INET) => "icmp",
        _ => "icmp6",
    };
    let text = procfs::read_text(format!("/proc/net/{table}"))?;
    Ok(peer_of_line(&text, inode).map(|host| address(family.domain, &host, local)))
}

/// Finds the socket in a table of /proc/net. Returns the bytes of the remote host, if the socket is connected.
fn peer_of_line(text: &str, inode: Inode) -> Option<Vec<u8>> {
    const REMOTE: usize = 2;
    const STATE: usize = 3;
    const INODE: usize = 9;
    const ESTABLISHED: &str = "01";
    const WORD_DIGITS: usize = 8;
    let inode = inode.to_string();
    let words = |line: &'_ str| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let row = text.lines().map(words).find(|words| words.get(INODE) == Some(&inode))?;
    if row[STATE] != ESTABLISHED {
        return None;
    }
    let (host, _port) = row[REMOTE].split_once(':')?;
    let word = |at| u32::from_str_radix(host.get(at..at + WORD_DIGITS)?, 16).ok();
    let bytes = (0..host.len()).step_by(WORD_DIGITS).map(|at| Some(word(at)?.to_ne_bytes()));
    Some(bytes.collect::<Option<Vec<_>>>()?.concat())
}

/// Encodes a host as address without a port. A link-local address gets the scope of the local address.
fn address(domain: i32, host: &[u8], local: &[u8]) -> Vec<u8> {
    let mut bytes = (domain as u16).to_ne_bytes().to_vec();
    if domain == AF_INET {
        bytes.resize(IPV4_AT, 0);
        bytes.extend(host);
        bytes.resize(IPV4_BYTES, 0);
    } else {
        bytes.resize(IPV6_AT, 0);
        bytes.extend(host);
        bytes.extend(local.get(SCOPE_AT..IPV6_BYTES).unwrap_or(&[0; 4]));
        bytes.resize(IPV6_BYTES, 0);
    }
    bytes
}

/// Reports whether a socket may belong to a multicast router: the protocol is the protocol of such routers, and the
/// kernel has interfaces of a router.
fn may_route(family: Family) -> bool {
    let table = match (family.domain, family.kind, family.protocol) {
        (AF_INET, SOCK_RAW, IPPROTO_IGMP) => "/proc/net/ip_mr_vif",
        (AF_INET6, SOCK_RAW, IPPROTO_ICMPV6) => "/proc/net/ip6_mr_vif",
        _ => return false,
    };
    procfs::read_text(table).is_ok_and(|text| text.lines().count() > 1)
}

#[cfg(test)]
mod tests {
    use sys::socket_option::{self, SocketOption};

    use super::super::test_support::{alone, round_trip};
    use super::*;

    const ICMP_FILTER: SocketOption = SocketOption { level: 255, number: 1, name: "ICMP_FILTER" };

    #[test]
    fn a_connected_raw_socket_is_restored_with_peer_and_filter() {
        let _alone = alone();
        let family = Family { domain: AF_INET, kind: SOCK_RAW, protocol: IPPROTO_ICMP };
        let Ok(socket) = family.create() else { return println!("unsupported: CAP_NET_RAW") };
        socket_option::set_int(socket.as_fd(), ICMP_FILTER, !9).unwrap();
        let host = SocketAddress(address(AF_INET, &[127, 0, 0, 9], &[]));
        socket::connect(socket.as_fd(), &host).unwrap();
        let inode = Inode(rustix::fs::fstat(&socket).unwrap().st_ino);
        assert_eq!(peer_without_port(family, inode, &[]).unwrap(), Some(host.0.clone()));
        let copy = round_trip(&Raw, socket.as_fd());
        let inode = Inode(rustix::fs::fstat(&copy).unwrap().st_ino);
        assert_eq!(peer_without_port(family, inode, &[]).unwrap(), Some(host.0));
        assert_eq!(socket_option::get_int(copy.as_fd(), ICMP_FILTER).unwrap(), !9);
    }

    #[test]
    fn an_ipv6_peer_is_parsed() {
        let text = "  sl  local_address                         remote_address\n   58: 00000000000000000000000000000000:003A \
                    000080FE000000000000000001000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 77 2 0 0\n";
        let host = peer_of_line(text, Inode(77)).unwrap();
        assert_eq!(host, [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(peer_of_line(text, Inode(78)), None);
        let mut local = vec![0; IPV6_BYTES];
        local[SCOPE_AT] = 3;
        assert_eq!(address(AF_INET6, &host, &local)[SCOPE_AT..], [3, 0, 0, 0]);
    }
}
