//! Sends packets with the sender address of a peer to a socket of this machine.
//!
//! Owns: building an IP packet around a TCP segment or a datagram, and sending the packet through a raw socket.
//! Invariants: the destination is a local address, so no packet leaves the machine. Sending needs CAP_NET_RAW.
//! Does not: choose the content. The caller passes a FIN segment, or a datagram that a peer had sent before the
//! checkpoint.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use sys::socket::{self, Message};
use sys::{Errno, Error};

use super::inet_address::encode;
use super::socket_family::{AF_INET, AF_INET6, SOCK_RAW};
use crate::error::Result;

const IPPROTO_RAW: i32 = 255;
const IPV4_HEADER_BYTES: u16 = 20;
const TIME_TO_LIVE: u8 = 64;
const EMSGSIZE: i32 = 90;

/// Sends a segment or datagram. Writes its checksum at offset `checksum_at`.
pub(crate) fn inject(
    from: SocketAddr,
    to: SocketAddr,
    protocol: u8,
    mut content: Vec<u8>,
    checksum_at: usize,
) -> Result<()> {
    if content.len() > usize::from(u16::MAX - IPV4_HEADER_BYTES) {
        return Err(Error::new("send a packet", Errno(EMSGSIZE)).into());
    }
    let sum = checksum(from.ip(), to.ip(), protocol, &content);
    // For a sum of zero, UDP sends all ones. TCP accepts all ones too.
    let sum = if sum == 0 { u16::MAX } else { sum };
    content[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let family = if to.is_ipv4() { AF_INET } else { AF_INET6 };
    let raw = socket::create(family, SOCK_RAW, IPPROTO_RAW)?;
    let mut target = to;
    target.set_port(0);
    let bytes = packet(from.ip(), to.ip(), protocol, &content);
    socket::send(raw.as_fd(), &Message { bytes: &bytes, to: Some(&encode(target)), ..Message::default() })?;
    Ok(())
}

/// Returns the checksum of TCP and UDP (RFC 9293, RFC 768, RFC 8200) over addresses, protocol, length and content.
fn checksum(from: IpAddr, to: IpAddr, protocol: u8, content: &[u8]) -> u16 {
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

/// Builds an IP packet. The kernel fills in the checksum of an IPv4 header.
fn packet(from: IpAddr, to: IpAddr, protocol: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u16;
    let mut bytes = Vec::with_capacity(content.len() + 40);
    if to.is_ipv4() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_arrives_with_the_address_of_its_sender() {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let from: SocketAddr = "192.0.2.7:4711".parse().unwrap();
        let to = receiver.local_addr().unwrap();
        let mut content = [from.port().to_be_bytes(), to.port().to_be_bytes(), 13_u16.to_be_bytes()].concat();
        content.extend([0; 2]);
        content.extend(b"hello");
        match inject(from, to, 17, content, 6) {
            Ok(()) => {}
            Err(error) => return println!("unsupported: {error}"),
        }
        let mut buffer = [0; 9];
        assert_eq!(receiver.recv_from(&mut buffer).unwrap(), (5, from));
        assert_eq!(&buffer[..5], b"hello");
    }

    #[test]
    fn content_above_the_packet_limit_is_refused() {
        let address: SocketAddr = "127.0.0.1:9".parse().unwrap();
        for length in [65_516, 200_000, 1 << 20] {
            let error = inject(address, address, 17, vec![0xff; length], 6).unwrap_err();
            assert!(error.to_string().contains("packet"), "{error}");
        }
    }

    #[test]
    fn a_filled_checksum_adds_up_to_zero() {
        for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            let mut content = vec![1, 2, 0, 0, 5];
            let sum = checksum(from, to, 6, &content);
            content[2..4].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(checksum(from, to, 6, &content), 0);
        }
    }
}
