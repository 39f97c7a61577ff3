//! A segment that the peer sent long ago and will not send again: its FIN.
//!
//! Owns: building it and putting it into the network of this machine.
//! Invariants: it goes to a local address only, so it never leaves the machine.
//! Does not: send anything in the name of a peer but this one flag.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use sys::socket::{self, Message, SocketAddress};

use super::super::inet_address::{encode, parse_plain};
use super::super::socket_options::{AF_INET, AF_INET6};
use super::state::{Connection, State};
use crate::error::{ResourceError, Result};

const SOCK_RAW: i32 = 3;
const IPPROTO_RAW: i32 = 255;
const IPPROTO_TCP: u8 = 6;
const TCP_HEADER_BYTES: usize = 20;
const FIN_ACK: u8 = 0x11;
const TIME_TO_LIVE: u8 = 64;

/// Lets a started socket receive the FIN that its peer had sent before the checkpoint.
pub(super) fn inject_fin(state: &State, connection: &Connection) -> Result<()> {
    let (Some(local), Some(peer)) = (parse_plain(&state.local()), parse_plain(&state.peer())) else {
        return Err(ResourceError::Malformed { kind: super::NAME, why: "addresses are no IP".to_owned() });
    };
    let acknowledged = connection.send_end.wrapping_sub(connection.written.len() as u32);
    let window = (connection.window_send >> connection.send_scale).min(u32::from(u16::MAX)) as u16;
    let segment = segment(peer, local, connection.receive_end, acknowledged, window);
    let packet = packet(peer.ip(), local.ip(), &segment);
    let family = if local.is_ipv4() { AF_INET } else { AF_INET6 };
    let raw = socket::create(family, SOCK_RAW, IPPROTO_RAW)?;
    let to: SocketAddress = encode(SocketAddr::new(local.ip(), 0));
    socket::send(raw.as_fd(), &Message { bytes: &packet, to: Some(&to), ..Message::default() })?;
    Ok(())
}

fn segment(from: SocketAddr, to: SocketAddr, sequence: u32, acknowledged: u32, window: u16) -> Vec<u8> {
    const CHECKSUM: usize = 16;
    let mut bytes = Vec::with_capacity(TCP_HEADER_BYTES);
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(acknowledged.to_be_bytes());
    bytes.extend([(TCP_HEADER_BYTES as u8 / 4) << 4, FIN_ACK]);
    bytes.extend(window.to_be_bytes());
    bytes.extend([0; 4]);
    let checksum = checksum(from.ip(), to.ip(), IPPROTO_TCP, &bytes);
    bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// The checksum of TCP and UDP (RFC 9293, RFC 8200): over addresses, protocol, length and content.
pub(in super::super) fn checksum(from: IpAddr, to: IpAddr, protocol: u8, content: &[u8]) -> u16 {
    let mut all = octets(from);
    all.extend(octets(to));
    all.extend((content.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(content);
    if all.len() % 2 == 1 {
        all.push(0);
    }
    let mut sum: u32 =
        all.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > u32::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// An IP packet around a segment; the kernel fills the checksum of an IPv4 header.
pub(in super::super) fn packet_of(from: IpAddr, to: IpAddr, protocol: u8, content: &[u8]) -> Vec<u8> {
    const IPV4_HEADER_BYTES: u16 = 20;
    let length = content.len() as u16;
    let mut bytes = Vec::with_capacity(content.len() + 40);
    if from.is_ipv4() {
        bytes.extend([0x45, 0]);
        bytes.extend((IPV4_HEADER_BYTES + length).to_be_bytes());
        bytes.extend([0, 0, 0, 0, TIME_TO_LIVE, protocol, 0, 0]);
    } else {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([protocol, TIME_TO_LIVE]);
    }
    bytes.extend(octets(from));
    bytes.extend(octets(to));
    bytes.extend(content);
    bytes
}

fn packet(from: IpAddr, to: IpAddr, segment: &[u8]) -> Vec<u8> {
    packet_of(from, to, IPPROTO_TCP, segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_whole_segment_adds_up_to_nothing() {
        for (from, to) in [("10.0.0.1:5", "10.0.0.2:6"), ("[fe80::1]:5", "[fe80::2]:6")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let segment = segment(from, to, 0xdead_beef, 0x1234_5678, 512);
            assert_eq!(segment.len(), TCP_HEADER_BYTES);
            assert_eq!(checksum(from.ip(), to.ip(), IPPROTO_TCP, &segment), 0);
        }
    }
}
