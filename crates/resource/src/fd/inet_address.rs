//! IPv4 and IPv6 socket addresses: conversion between the bytes of the kernel's structures and Rust types.
//!
//! Owns: reading and writing `struct sockaddr_in` and `struct sockaddr_in6`, and converting IPv4-mapped IPv6
//! addresses.
//! Does not: resolve names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use sys::socket::SocketAddress;

use super::socket_family::{AF_INET, AF_INET6};

const IPV4_BYTES: usize = 16;

/// Decodes an address from the kernel's bytes. Returns `None` for families other than AF_INET and AF_INET6.
pub(crate) fn parse(address: &SocketAddress) -> Option<SocketAddr> {
    let bytes = &address.0;
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match i32::from(address.family()) {
        AF_INET => {
            let host: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(host), port).into())
        }
        AF_INET6 => {
            let flow = u32::from_be_bytes(*bytes.get(4..)?.first_chunk()?);
            let host: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = bytes.get(24..)?.first_chunk().map_or(0, |scope| u32::from_ne_bytes(*scope));
            Some(SocketAddrV6::new(Ipv6Addr::from(host), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Encodes an address as the kernel's bytes.
pub(crate) fn encode(address: SocketAddr) -> SocketAddress {
    let mut bytes = Vec::with_capacity(28);
    match address {
        SocketAddr::V4(v4) => {
            bytes.extend((AF_INET as u16).to_ne_bytes());
            bytes.extend(v4.port().to_be_bytes());
            bytes.extend(v4.ip().octets());
            bytes.resize(IPV4_BYTES, 0);
        }
        SocketAddr::V6(v6) => {
            bytes.extend((AF_INET6 as u16).to_ne_bytes());
            bytes.extend(v6.port().to_be_bytes());
            bytes.extend(v6.flowinfo().to_be_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    SocketAddress(bytes)
}

/// Converts an IPv4-mapped IPv6 address to IPv4, so that equal addresses compare equal at both ends of a connection.
/// Clears flow and scope of other IPv6 addresses.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(host) => match host.to_ipv4_mapped() {
            Some(mapped) => SocketAddrV4::new(mapped, address.port()).into(),
            None => SocketAddrV6::new(host, address.port(), 0, 0).into(),
        },
        IpAddr::V4(_) => address,
    }
}

/// Calls [`parse`] and then [`plain`].
pub(crate) fn parse_plain(address: &SocketAddress) -> Option<SocketAddr> {
    parse(address).map(plain)
}

/// Formats an address for messages.
pub(crate) fn show(address: &SocketAddress) -> String {
    parse_plain(address).map_or_else(|| "no address".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_their_bytes() {
        for text in ["127.0.0.1:80", "[::1]:443", "[fe80::1%3]:5"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(parse(&encode(address)), Some(address));
        }
        assert_eq!(parse(&SocketAddress(vec![1, 0, b'x'])), None);
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped = encode("[::ffff:10.0.0.1]:7".parse().unwrap());
        assert_eq!(show(&mapped), "10.0.0.1:7");
        assert_eq!(parse_plain(&mapped), Some("10.0.0.1:7".parse().unwrap()));
    }
}
