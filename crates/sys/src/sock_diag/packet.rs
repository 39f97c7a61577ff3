//! Packet sockets (packet(7)) in sock_diag(7).
//!
//! Owns: the request for one packet socket, with its memberships and rings.
//! Does not: read the options that getsockopt(2) returns.

use model::Inode;

use super::{NOT_LISTED, SockDiag, unless};
use crate::error::Result;
use crate::netlink::{DUMP, HEADER_BYTES, each_attribute, word};

const INODE_AT: usize = HEADER_BYTES + 4;
const PROTOCOL_AT: usize = HEADER_BYTES + 2;
const FIXED_BYTES: usize = HEADER_BYTES + 16;
/// PACKET_SHOW_INFO, PACKET_SHOW_MCLIST and PACKET_SHOW_RING_CFG.
const SHOW: u32 = 1 | 2 | 4;
const INFO: u16 = 0;
const MEMBERSHIPS: u16 = 1;
const RECEIVE_RING: u16 = 2;
const SEND_RING: u16 = 3;
const RING_WORDS: usize = 7;
const COPY_THRESHOLD_AT: usize = 12;
/// The size of `struct packet_diag_mclist`, with an address of 32 bytes.
const MEMBERSHIP_BYTES: usize = 44;
const ADDRESS_AT: usize = 12;

/// What the kernel reports about one packet socket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PacketSocket {
    /// The protocol number (ETH_P_IP and so on), in the byte order of the host.
    pub protocol: u16,
    /// The index of the interface; 0 for all interfaces.
    pub interface: i32,
    /// The option PACKET_COPY_THRESH.
    pub copy_threshold: u32,
    /// The memberships (PACKET_ADD_MEMBERSHIP).
    pub memberships: Vec<PacketMembership>,
    /// The receive ring, as the words of `struct tpacket_req3`.
    pub receive_ring: Option<[u32; RING_WORDS]>,
    /// The send ring, as the words of `struct tpacket_req3`.
    pub send_ring: Option<[u32; RING_WORDS]>,
}

/// One membership of a packet socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketMembership {
    /// The index of the interface.
    pub interface: i32,
    /// How often the program has added the membership.
    pub count: u32,
    /// PACKET_MR_MULTICAST and so on.
    pub kind: u16,
    /// The hardware address; empty for a membership without an address.
    pub address: Vec<u8>,
}

impl SockDiag {
    /// Returns the packet socket with an inode. Returns `None` if the network namespace has no such socket, or if the
    /// kernel does not report packet sockets (CONFIG_PACKET_DIAG).
    pub fn packet_socket(&self, inode: Inode) -> Result<Option<PacketSocket>> {
        let mut body = vec![libc::AF_PACKET as u8, 0, 0, 0];
        for word in [0, SHOW, u32::MAX, u32::MAX] {
            body.extend(word.to_ne_bytes());
        }
        let mut found = None;
        let outcome = self.exchange(DUMP, &body, |message| {
            let is_whole = message.len() >= FIXED_BYTES;
            if is_whole && Inode(u64::from(word(message, INODE_AT))) == inode {
                found = read(message);
                return found.is_some();
            }
            is_whole
        });
        unless(&NOT_LISTED, outcome)?;
        Ok(found)
    }
}

fn read(message: &[u8]) -> Option<PacketSocket> {
    let protocol = u16::from_ne_bytes(*message.get(PROTOCOL_AT..)?.first_chunk()?);
    let mut socket = PacketSocket { protocol, ..PacketSocket::default() };
    let mut is_known = true;
    let is_whole = each_attribute(&message[FIXED_BYTES..], |kind, value| match kind {
        INFO if value.len() >= COPY_THRESHOLD_AT + 4 => {
            socket.interface = word(value, 0) as i32;
            socket.copy_threshold = word(value, COPY_THRESHOLD_AT);
        }
        MEMBERSHIPS => {
            let read = value.chunks_exact(MEMBERSHIP_BYTES).map(membership);
            is_known &= value.len().is_multiple_of(MEMBERSHIP_BYTES);
            socket.memberships.extend(read);
        }
        RECEIVE_RING => socket.receive_ring = ring(value),
        SEND_RING => socket.send_ring = ring(value),
        _ => {}
    });
    (is_whole && is_known).then_some(socket)
}

fn membership(bytes: &[u8]) -> PacketMembership {
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let length = usize::from(half(10)).min(MEMBERSHIP_BYTES - ADDRESS_AT);
    PacketMembership {
        interface: word(bytes, 0) as i32,
        count: word(bytes, 4),
        kind: half(8),
        address: bytes[ADDRESS_AT..ADDRESS_AT + length].to_vec(),
    }
}

fn ring(value: &[u8]) -> Option<[u32; RING_WORDS]> {
    (value.len() >= RING_WORDS * 4).then(|| std::array::from_fn(|at| word(value, at * 4)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::socket;

    #[test]
    fn a_packet_socket_is_found_with_its_protocol() {
        const ARP: u16 = 0x806;
        let Ok(socket) = socket::create(libc::AF_PACKET, libc::SOCK_DGRAM, i32::from(ARP.to_be())) else {
            return println!("unsupported: CAP_NET_RAW");
        };
        let inode = Inode(rustix::fs::fstat(socket.as_fd()).unwrap().st_ino);
        let Some(found) = SockDiag::open().unwrap().packet_socket(inode).unwrap() else {
            return println!("unsupported: CONFIG_PACKET_DIAG");
        };
        assert_eq!(found, PacketSocket { protocol: ARP, ..PacketSocket::default() });
    }
}
