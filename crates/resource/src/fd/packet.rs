//! Saves and restores packet(7) sockets: the descriptor kind `fd/packet`.
//!
//! Owns: protocol, interface, options, filter, memberships, fanout group and rings of a packet socket.
//! Invariants: a socket receives no packet before it has its filter, except a socket of type SOCK_PACKET, which receives
//! from its creation. Interfaces are recorded by name, because the index of an interface can change at a boot.
//! Does not: save unread packets, which are lost. A ring is restored empty. A mapped ring prevents the checkpoint.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use prost::Message;
use rustix::fs::FileType;
use sys::sock_diag::SockDiag;
use sys::sock_diag::packet::PacketSocket;
use sys::socket::{self, SocketAddress};
use sys::socket_option::{self, SocketOption};

use super::description::{Description, Known};
use super::inherited_socket::InheritedSocket;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use super::socket_family::{AF_PACKET, Family, SOL_PACKET};
use super::socket_options::{self, Fresh, Options};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::interface;

const NAME: &str = "fd/packet";
const WHAT: &str = "packet socket";
const SOCK_PACKET: i32 = 10;
const VERSION: SocketOption = SocketOption { level: SOL_PACKET, number: 10, name: "PACKET_VERSION" };
const ADD_MEMBERSHIP: SocketOption =
    SocketOption { level: SOL_PACKET, number: 1, name: "PACKET_ADD_MEMBERSHIP" };
const RX_RING: SocketOption = SocketOption { level: SOL_PACKET, number: 5, name: "PACKET_RX_RING" };
const COPY_THRESH: SocketOption = SocketOption { level: SOL_PACKET, number: 7, name: "PACKET_COPY_THRESH" };
const TX_RING: SocketOption = SocketOption { level: SOL_PACKET, number: 13, name: "PACKET_TX_RING" };
const FANOUT: SocketOption = SocketOption { level: SOL_PACKET, number: 18, name: "PACKET_FANOUT" };
/// The version whose rings have three additional parameters (TPACKET_V3).
const THIRD_VERSION: i32 = 2;
/// Words of `struct tpacket_req`, and of `struct tpacket_req3`.
const RING_WORDS: usize = 4;
const RING_WORDS_OF_THIRD: usize = 7;
/// The offset of the fanout mode in the value of PACKET_FANOUT, and the modes with a program (PACKET_FANOUT_CBPF,
/// PACKET_FANOUT_EBPF), which PACKET_FANOUT_DATA sets.
const MODE_AT: u32 = 16;
const MODES_WITH_PROGRAM: [i32; 2] = [6, 7];
const USE: &str = "a packet socket of the program uses this interface";
/// Limit on the count of one membership in an image. A program has no reason for more.
const MEMBERSHIPS_MAX: u32 = 1024;

/// Descriptor kind ([`FdKind`]) of packet sockets.
#[derive(Debug)]
pub struct Packet;

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, required, tag = "1")]
    family: Family,
    #[prost(message, required, tag = "2")]
    options: Options,
    /// The protocol number, in the byte order of the host.
    #[prost(uint32, tag = "3")]
    protocol: u32,
    /// The name of the interface; empty for all interfaces.
    #[prost(string, tag = "4")]
    interface: String,
    #[prost(message, repeated, tag = "5")]
    memberships: Vec<Membership>,
    #[prost(uint32, tag = "6")]
    copy_threshold: u32,
    /// The words of `struct tpacket_req3`; empty without a ring.
    #[prost(uint32, repeated, tag = "7")]
    receive_ring: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    send_ring: Vec<u32>,
    /// The value of PACKET_FANOUT; 0 without a group.
    #[prost(int32, tag = "9")]
    fanout: i32,
    #[prost(message, optional, tag = "10")]
    inherited: Option<InheritedSocket>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Membership {
    #[prost(string, tag = "1")]
    interface: String,
    #[prost(uint32, tag = "2")]
    count: u32,
    #[prost(uint32, tag = "3")]
    kind: u32,
    #[prost(bytes = "vec", tag = "4")]
    address: Vec<u8>,
}

#[derive(Debug)]
struct Capture {
    diag: Rc<SockDiag>,
    fresh: Rc<Fresh>,
    state: State,
}

impl FdKind for Packet {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| family.domain == AF_PACKET)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if scope.is_inherited(&description.stat) {
            return Vec::new();
        }
        let mut found = socket_options::obstacles(description, WHAT);
        let read = scope.sockets.diag().and_then(|diag| read(description, &diag));
        match read.and_then(|(socket, fanout)| Ok((state_of(description.as_fd(), &socket)?, fanout))) {
            Ok((_, fanout)) if MODES_WITH_PROGRAM.contains(&(fanout >> MODE_AT & 0xff)) => {
                found.push(description.obstacle(
                    WHAT,
                    "a BPF program distributes its packets (PACKET_FANOUT), and this program cannot be read",
                    "let the program use another fanout mode",
                ));
            }
            Ok(_) => {}
            Err(error) => found.push(description.obstacle(WHAT, &error.to_string(), CLOSE)),
        }
        found
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let family = Family::of(description)?;
        let inherited = InheritedSocket::of(description, scope);
        let state = State { family, inherited, ..State::default() };
        Ok(Box::new(Capture { diag: scope.sockets.diag()?, fresh: scope.sockets.fresh(family)?, state }))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let state: State = crate::error::decode(NAME, payload)?;
        let is_ring = |ring: &[u32]| ring.is_empty() || ring.len() == RING_WORDS_OF_THIRD;
        let are_few = state.memberships.iter().all(|one| one.count <= MEMBERSHIPS_MAX);
        if is_ring(&state.receive_ring) && is_ring(&state.send_ring) && are_few {
            return Ok(());
        }
        Err(ResourceError::malformed(NAME, "a ring or membership is impossible"))
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
        let (socket, fanout) = read(description, &self.diag)?;
        let options = Options::read(description, &self.fresh)?;
        self.state =
            State { family: self.state.family, options, fanout, ..state_of(description.as_fd(), &socket)? };
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(self.state.encode_to_vec())
    }
}

const CLOSE: &str = "close the socket before the checkpoint, or use a kernel with CONFIG_PACKET_DIAG";

/// Reads a socket and the value of its option PACKET_FANOUT.
fn read(description: &Description, diag: &SockDiag) -> Result<(PacketSocket, i32)> {
    let socket = diag.packet_socket(description.inode())?.ok_or_else(|| {
        let why = "the kernel does not report its state (packet_diag)";
        ResourceError::from(description.obstacle(WHAT, why, CLOSE))
    })?;
    // A socket of type SOCK_PACKET has no options of this level.
    let is_old = Family::of(description)?.kind == SOCK_PACKET;
    let fanout = if is_old { 0 } else { socket_option::get_int(description.as_fd(), FANOUT)? };
    Ok((socket, fanout))
}

/// Converts what the kernel reports. Fails if an interface was removed.
fn state_of(socket: BorrowedFd<'_>, found: &PacketSocket) -> Result<State> {
    let name_of = |number: i32| {
        let name = u32::try_from(number).ok().and_then(|number| interface::name_of(socket, number));
        name.ok_or_else(|| ResourceError::File {
            path: format!("network interface {number}"),
            why: format!("{USE}, and the interface was removed"),
            fix: "let the program close the socket".to_owned(),
        })
    };
    let memberships = found.memberships.iter().map(|one| {
        Ok(Membership {
            interface: name_of(one.interface)?,
            count: one.count,
            kind: u32::from(one.kind),
            address: one.address.clone(),
        })
    });
    Ok(State {
        protocol: u32::from(found.protocol),
        interface: if found.interface == 0 { String::new() } else { name_of(found.interface)? },
        memberships: memberships.collect::<Result<_>>()?,
        copy_threshold: found.copy_threshold,
        receive_ring: found.receive_ring.map_or_else(Vec::new, |ring| ring.to_vec()),
        send_ring: found.send_ring.map_or_else(Vec::new, |ring| ring.to_vec()),
        ..State::default()
    })
}

fn build(state: &State) -> Result<OwnedFd> {
    // The protocol decides which packets a socket receives. A socket without a protocol receives none, and gets its
    // protocol with bind(2). A socket of type SOCK_PACKET can get its protocol only now.
    let protocol = (state.protocol as u16).to_be();
    let is_old = state.family.kind == SOCK_PACKET;
    let early = if is_old { i32::from(protocol) } else { 0 };
    let socket = socket::create(AF_PACKET, state.family.kind, early)?;
    state.options.apply_early(&socket, state.family)?;
    state.options.restore_buffers(&socket, state.family)?;
    let words =
        if state.options.int(VERSION) == Some(THIRD_VERSION) { RING_WORDS_OF_THIRD } else { RING_WORDS };
    for (option, ring) in [(RX_RING, &state.receive_ring), (TX_RING, &state.send_ring)] {
        if !ring.is_empty() {
            let bytes: Vec<u8> = ring.iter().take(words).flat_map(|word| word.to_ne_bytes()).collect();
            socket_option::set(socket.as_fd(), option, &bytes)?;
        }
    }
    if state.copy_threshold != 0 {
        socket_option::set_int(socket.as_fd(), COPY_THRESH, state.copy_threshold as i32)?;
    }
    state.options.apply_late(&socket, state.family)?;
    bind(socket.as_fd(), state, protocol)?;
    for one in &state.memberships {
        join(socket.as_fd(), one)?;
    }
    if state.fanout != 0 {
        socket_option::set_int(socket.as_fd(), FANOUT, state.fanout)?;
    }
    Ok(socket)
}

/// Binds a socket to its interface and its protocol.
fn bind(socket: BorrowedFd<'_>, state: &State, protocol: u16) -> Result<()> {
    /// The size of `struct sockaddr_ll`, and of the name in the address of a socket of type SOCK_PACKET.
    const ADDRESS_BYTES: usize = 20;
    const NAME_BYTES: usize = 14;
    let mut address = (AF_PACKET as u16).to_ne_bytes().to_vec();
    if state.family.kind == SOCK_PACKET {
        if state.interface.is_empty() {
            return Ok(());
        }
        address.extend(state.interface.bytes().take(NAME_BYTES - 1));
        address.resize(2 + NAME_BYTES, 0);
    } else {
        if state.protocol == 0 && state.interface.is_empty() {
            return Ok(());
        }
        let number =
            if state.interface.is_empty() { 0 } else { interface::index_of(socket, &state.interface, USE)? };
        address.extend(protocol.to_ne_bytes());
        address.extend(number.to_ne_bytes());
        address.resize(ADDRESS_BYTES, 0);
    }
    Ok(socket::bind(socket, &SocketAddress(address))?)
}

fn join(socket: BorrowedFd<'_>, one: &Membership) -> Result<()> {
    /// The minimal size of the address in `struct packet_mreq`.
    const ADDRESS_BYTES: usize = 8;
    let mut request = interface::index_of(socket, &one.interface, USE)?.to_ne_bytes().to_vec();
    request.extend((one.kind as u16).to_ne_bytes());
    request.extend((one.address.len() as u16).to_ne_bytes());
    request.extend(&one.address);
    request.resize(request.len().max(8 + ADDRESS_BYTES), 0);
    for _ in 0..one.count {
        socket_option::set(socket, ADD_MEMBERSHIP, &request)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{alone, describe, round_trip};
    use super::*;

    const DGRAM: i32 = 2;
    const MULTICAST: u16 = 0;

    #[test]
    fn a_bound_socket_is_restored_with_ring_membership_and_filter() {
        let _alone = alone();
        let family = Family { domain: AF_PACKET, kind: DGRAM, protocol: 0 };
        let Ok(socket) = family.create() else { return println!("unsupported: CAP_NET_RAW") };
        let state = State {
            family,
            protocol: 0x806,
            interface: "lo".to_owned(),
            memberships: vec![Membership {
                interface: "lo".to_owned(),
                count: 2,
                kind: u32::from(MULTICAST),
                address: vec![1, 0, 0x5e, 0, 0, 1],
            }],
            receive_ring: vec![4096, 2, 1024, 8, 0, 0, 0],
            ..State::default()
        };
        drop(socket);
        let socket = build(&state).unwrap();
        socket_option::attach_filter(socket.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
        let diag = SockDiag::open().unwrap();
        let Ok((before, _)) = read(&describe(0, &socket), &diag) else {
            return println!("unsupported: CONFIG_PACKET_DIAG");
        };
        assert_eq!((before.protocol, before.memberships[0].count), (0x806, 2));
        let copy = round_trip(&Packet, &socket);
        assert_eq!(read(&describe(0, &copy), &diag).unwrap().0, before);
        assert_eq!(socket_option::filter(copy.as_fd()).unwrap(), socket_option::FILTER_DROPS_ALL);
    }
}
