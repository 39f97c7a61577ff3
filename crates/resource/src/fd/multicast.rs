//! Multicast memberships of UDP sockets.
//!
//! Owns: finding the groups that a socket has joined, with their source filters, and joining these groups again.
//! Invariants: the kernel shows a membership of a socket only for a given group and interface. So each group that
//! this machine has joined (/proc/net/igmp, /proc/net/igmp6) is queried.
//! Does not: find anycast addresses (IPV6_JOIN_ANYCAST), which no system call shows.

use std::os::fd::BorrowedFd;

use prost::Message;
use sys::socket_option::{self, SocketOption};
use sys::{Errno, Error};
use tracee::procfs;

use super::socket_family::{AF_INET, AF_INET6, Family, IPPROTO_IP, IPPROTO_IPV6};
use crate::error::Result;
use crate::support::interface;

/// Maximum number of sources that are read. Exceeds the default limits of a filter (10 for net.ipv4.igmp_max_msf, 64
/// for net.ipv6.mld_max_msf).
const SOURCES_MAX: usize = 256;
/// Offset of the group in `struct group_req`, behind the interface index.
const GROUP_AT: usize = 8;
const ADDRESS_BYTES: usize = 128;
const REQUEST_BYTES: usize = GROUP_AT + ADDRESS_BYTES;
/// Offset of the mode in `struct group_filter`. The order is: interface and group as in `struct group_req`, mode,
/// number of sources, sources.
const MODE_AT: usize = REQUEST_BYTES;
const COUNT_AT: usize = MODE_AT + 4;
const SOURCES_AT: usize = COUNT_AT + 4;
const EXCLUDE: u32 = 0;
const EADDRNOTAVAIL: i32 = 99;
const ENOPROTOOPT: i32 = 92;
const IPV4_BYTES: usize = 4;

/// One group that a socket has joined, as it is in the image.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Membership {
    /// The name of the interface. The index of an interface can change at a boot.
    #[prost(string, tag = "1")]
    interface: String,
    /// The address of the group: 4 bytes (IPv4) or 16 bytes (IPv6).
    #[prost(bytes = "vec", tag = "2")]
    group: Vec<u8>,
    /// MCAST_EXCLUDE or MCAST_INCLUDE.
    #[prost(uint32, tag = "3")]
    mode: u32,
    /// Addresses of the excluded or included hosts.
    #[prost(bytes = "vec", repeated, tag = "4")]
    sources: Vec<Vec<u8>>,
}

/// A group that any socket of this machine has joined.
struct Joined {
    number: u32,
    interface: String,
    group: Vec<u8>,
}

/// Reads the groups that a socket has joined.
pub(crate) fn read(socket: BorrowedFd<'_>, family: Family) -> Result<Vec<Membership>> {
    let mut found = Vec::new();
    for one in joined_here(family) {
        let mut filter = vec![0; SOURCES_AT + SOURCES_MAX * ADDRESS_BYTES];
        filter[..REQUEST_BYTES].copy_from_slice(&request(one.number, &one.group));
        filter[COUNT_AT..SOURCES_AT].copy_from_slice(&(SOURCES_MAX as u32).to_ne_bytes());
        match socket_option::get(socket, filter_option(&one.group), &mut filter) {
            Ok(_) => {}
            // This socket has not joined the group.
            Err(error) if error.errno.0 == EADDRNOTAVAIL || error.errno == Errno::EINVAL => continue,
            // A raw IPv6 socket joins no IPv4 group.
            Err(error) if error.errno.0 == ENOPROTOOPT => continue,
            Err(error) => return Err(error.into()),
        }
        let count = word(&filter, COUNT_AT) as usize;
        if count > SOURCES_MAX {
            return Err(Error::new("read all sources of a multicast group", Errno::EINVAL).into());
        }
        let sources = (0..count).map(|index| {
            let from = SOURCES_AT + index * ADDRESS_BYTES + host_at(&one.group);
            filter[from..from + one.group.len()].to_vec()
        });
        found.push(Membership {
            mode: word(&filter, MODE_AT),
            sources: sources.collect(),
            interface: one.interface,
            group: one.group,
        });
    }
    Ok(found)
}

/// Joins saved groups with their source filters.
pub(crate) fn join(socket: BorrowedFd<'_>, memberships: &[Membership]) -> Result<()> {
    for one in memberships {
        let number = interface::index_of(
            socket,
            &one.interface,
            "a socket of the program has joined a multicast group on this interface",
        )?;
        let join = SocketOption { level: level(&one.group), number: 42, name: "MCAST_JOIN_GROUP" };
        let request = request(number, &one.group);
        socket_option::set(socket, join, &request)?;
        if one.mode == EXCLUDE && one.sources.is_empty() {
            continue;
        }
        let mut filter = request;
        filter.extend(one.mode.to_ne_bytes());
        filter.extend((one.sources.len() as u32).to_ne_bytes());
        for source in &one.sources {
            filter.extend(address(source));
        }
        socket_option::set(socket, filter_option(&one.group), &filter)?;
    }
    Ok(())
}

fn level(group: &[u8]) -> i32 {
    if group.len() == IPV4_BYTES { IPPROTO_IP } else { IPPROTO_IPV6 }
}

fn filter_option(group: &[u8]) -> SocketOption {
    SocketOption { level: level(group), number: 48, name: "MCAST_MSFILTER" }
}

fn request(interface: u32, group: &[u8]) -> Vec<u8> {
    let mut bytes = interface.to_ne_bytes().to_vec();
    bytes.resize(GROUP_AT, 0);
    bytes.extend(address(group));
    bytes
}

/// Returns the offset of the host address in the `struct sockaddr` of its family.
fn host_at(host: &[u8]) -> usize {
    if host.len() == IPV4_BYTES { 4 } else { 8 }
}

/// Encodes a host address as `struct sockaddr_storage`.
fn address(host: &[u8]) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    let family = if host.len() == IPV4_BYTES { AF_INET } else { AF_INET6 };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    let end = (host_at(host) + host.len()).min(ADDRESS_BYTES);
    bytes[host_at(host)..end].copy_from_slice(&host[..end - host_at(host)]);
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Returns all groups that a socket of this family may have joined. The files are missing on a kernel without
/// multicast.
fn joined_here(family: Family) -> Vec<Joined> {
    let text = procfs::read_text("/proc/net/igmp").unwrap_or_default();
    let mut found = parse_ipv4(&text);
    if family.domain == AF_INET6 {
        found.extend(parse_ipv6(&procfs::read_text("/proc/net/igmp6").unwrap_or_default()));
    }
    found
}

/// Parses /proc/net/igmp: a line per interface (index, name), followed by a line for each group of the interface.
fn parse_ipv4(text: &str) -> Vec<Joined> {
    let mut interface = None;
    let mut found = Vec::new();
    for line in text.lines().skip(1) {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if !line.starts_with('\t') {
            interface = first.parse().ok().zip(second.map(|name| name.trim_end_matches(':').to_owned()));
            continue;
        }
        let group = u32::from_str_radix(first, 16).ok();
        if let (Some((number, name)), Some(group)) = (&interface, group) {
            let group = group.to_ne_bytes().to_vec();
            found.push(Joined { number: *number, interface: name.clone(), group });
        }
    }
    found
}

/// Parses /proc/net/igmp6: a line per group, with index and name of the interface, and the group in hexadecimal.
fn parse_ipv6(text: &str) -> Vec<Joined> {
    let read = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (number, interface, group) =
            (words.next()?.parse().ok()?, words.next()?.to_owned(), words.next()?);
        let group = u128::from_str_radix(group, 16).ok()?.to_be_bytes().to_vec();
        Some(Joined { number, interface, group })
    };
    text.lines().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;

    /// A group that no other program on this machine joins.
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 12, 5);

    fn family(socket: &UdpSocket) -> Family {
        Family::of(socket).unwrap()
    }

    #[test]
    fn memberships_are_read_and_joined_again_with_their_sources() {
        const LEAVE_SOURCE: i32 = 43;
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.join_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST).is_err() {
            return println!("unsupported: multicast");
        }
        let number =
            joined_here(family(&socket)).iter().find(|one| one.group == GROUP.octets()).unwrap().number;
        let mut block = request(number, &GROUP.octets());
        block.extend(address(&[10, 0, 0, 9]));
        let option = SocketOption { level: IPPROTO_IP, number: LEAVE_SOURCE, name: "MCAST_BLOCK_SOURCE" };
        socket_option::set(socket.as_fd(), option, &block).unwrap();
        let found = read(socket.as_fd(), family(&socket)).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].interface[..], found[0].mode), ("lo", EXCLUDE));
        assert_eq!(found[0].sources, [[10, 0, 0, 9]]);
        let copy = UdpSocket::bind("0.0.0.0:0").unwrap();
        assert!(read(copy.as_fd(), family(&copy)).unwrap().is_empty());
        join(copy.as_fd(), &found).unwrap();
        assert_eq!(read(copy.as_fd(), family(&copy)).unwrap(), found);
        copy.leave_multicast_v4(&GROUP, &Ipv4Addr::LOCALHOST).unwrap();
        let gone = [Membership { interface: "no-such-if".to_owned(), ..found[0].clone() }];
        assert!(join(copy.as_fd(), &gone).unwrap_err().to_string().contains("no-such-if"));
    }

    #[test]
    fn ipv6_memberships_are_read_and_joined_again() {
        let group = "ff12::77:12:5".parse().unwrap();
        let Ok(socket) = UdpSocket::bind("[::]:0") else { return println!("unsupported: IPv6") };
        if socket.join_multicast_v6(&group, 1).is_err() {
            return println!("unsupported: IPv6 multicast");
        }
        let found = read(socket.as_fd(), family(&socket)).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let copy = UdpSocket::bind("[::]:0").unwrap();
        join(copy.as_fd(), &found).unwrap();
        assert_eq!(read(copy.as_fd(), family(&copy)).unwrap(), found);
    }
}
