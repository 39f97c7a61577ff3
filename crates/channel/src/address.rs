//! Addresses of listening sockets and of callers (threads that call connect(2)).
//!
//! Owns: the forms of an address in the memory of a program, in a system file and in a report. Also owns the check
//! whether a caller reaches a listening socket.
//! Invariants: bytes that cannot be parsed result in no address.
//! Does not: resolve names, or follow paths.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use model::Escaped;
use sys::socket::SocketAddress;

use crate::error::{ChannelError, Result};

/// Size in bytes of `struct sockaddr_in`, and of `struct sockaddr_in6` without the scope (SIN6_LEN_RFC2133).
const INET_BYTES: usize = 16;
const INET6_BYTES: usize = 24;
/// A name that stands for both loopback addresses.
const LOCALHOST: &str = "localhost";

/// The address of a stream socket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Address {
    /// A TCP address.
    Inet(SocketAddr),
    /// A path, exactly as the program has passed it to the kernel.
    Path(Vec<u8>),
    /// A name in the abstract namespace, without its leading zero byte.
    Abstract(Vec<u8>),
}

/// Whether a caller that connects to one address reaches a listening socket at another address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The caller reaches the socket.
    Yes,
    /// The caller reaches the socket if the target of the caller is an address of this machine.
    IfLocal,
    /// The caller does not reach the socket.
    No,
}

impl Address {
    /// Parses the bytes that the kernel or a program uses. Returns `None` if the bytes contain no address, or an
    /// address of another family.
    pub(crate) fn from_bytes(address: &SocketAddress) -> Option<Self> {
        let bytes = &address.0;
        let port = || bytes.get(2..)?.first_chunk().copied().map(u16::from_be_bytes);
        match i32::from(address.family()) {
            libc::AF_INET if bytes.len() >= INET_BYTES => {
                let host: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
                Some(Self::Inet(SocketAddrV4::new(Ipv4Addr::from(host), port()?).into()))
            }
            libc::AF_INET6 if bytes.len() >= INET6_BYTES => {
                let host: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
                let scope = bytes.get(24..).and_then(|rest| rest.first_chunk().copied());
                let scope = scope.map_or(0, u32::from_ne_bytes);
                Some(Self::Inet(SocketAddrV6::new(Ipv6Addr::from(host), port()?, 0, scope).into()))
            }
            libc::AF_UNIX => match address.body() {
                [] => None,
                [0, name @ ..] => Some(Self::Abstract(name.to_vec())),
                path => {
                    let length = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
                    Some(Self::Path(path[..length].to_vec()))
                }
            },
            _ => None,
        }
    }

    /// Parses an address of a system file: `127.0.0.1:80`, `[::1]:80`, `localhost:80` (both loopback addresses),
    /// `/path` or `@abstract`. The prefix `tcp:` or `unix:` is optional.
    ///
    /// # Errors
    ///
    /// `BadAddress`, also for a host name other than `localhost`, because host names are not resolved.
    pub(crate) fn parse(text: &str) -> Result<Vec<Self>> {
        let bad = |why| ChannelError::BadAddress { text: text.to_owned(), why };
        let bare = text.strip_prefix("tcp:").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if let Some(name) = bare.strip_prefix('@') {
            return Ok(vec![Self::Abstract(name.as_bytes().to_vec())]);
        }
        if bare.starts_with('/') {
            return Ok(vec![Self::Path(bare.as_bytes().to_vec())]);
        }
        if let Some(port) = bare.strip_prefix(LOCALHOST).and_then(|rest| rest.strip_prefix(':')) {
            let port = port.parse().map_err(|_| bad("the port is no number"))?;
            let hosts = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
            return Ok(hosts.map(|host| Self::Inet(SocketAddr::new(host, port))).to_vec());
        }
        let inet = bare.parse().map_err(|_| bad("it is no IP address with a port, path or `@name`"))?;
        Ok(vec![Self::Inet(inet)])
    }

    /// Returns the path of a Unix socket, if the address has a path.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(Path::new(OsStr::from_bytes(path))),
            _ => None,
        }
    }

    /// Reports whether a socket at this address prevents a bind of another socket to `other`. Only the addresses and
    /// IPV6_V6ONLY of both sockets are considered.
    pub(crate) fn conflicts(&self, is_v6_only: bool, other: &Self, other_is_v6_only: bool) -> bool {
        match (self, other) {
            (Self::Inet(one), Self::Inet(two)) => {
                let hosts = (one.ip().to_canonical(), two.ip().to_canonical());
                one.port() == two.port() && one.port() != 0 && overlap(hosts, (is_v6_only, other_is_v6_only))
            }
            (one, two) => one == two,
        }
    }
}

/// Reports whether the two sockets serve at least one common host address.
fn overlap((one, two): (IpAddr, IpAddr), is_v6_only: (bool, bool)) -> bool {
    match (one, two) {
        (IpAddr::V6(six), IpAddr::V4(_)) => six.is_unspecified() && !is_v6_only.0,
        (IpAddr::V4(_), IpAddr::V6(six)) => six.is_unspecified() && !is_v6_only.1,
        _ => one == two || one.is_unspecified() || two.is_unspecified(),
    }
}

/// Reports whether a caller that connects to `target` reaches a TCP socket that listens at `listener`.
pub(crate) fn reach(listener: SocketAddr, is_v6_only: bool, target: SocketAddr) -> Reach {
    if listener.port() != target.port() {
        return Reach::No;
    }
    let (own, wanted) = (listener.ip().to_canonical(), loopback_for_any(target.ip().to_canonical()));
    let is_family_served = match (own, wanted) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => true,
        (IpAddr::V6(_), IpAddr::V4(_)) => !is_v6_only,
        (IpAddr::V4(_), IpAddr::V6(_)) => false,
    };
    match own.is_unspecified() {
        true if is_family_served && wanted.is_loopback() => Reach::Yes,
        true if is_family_served => Reach::IfLocal,
        false if own == wanted => Reach::Yes,
        _ => Reach::No,
    }
}

/// Replaces the unspecified address by the loopback address, because the kernel does so for connect(2).
fn loopback_for_any(host: IpAddr) -> IpAddr {
    match host {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        host => host,
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => write!(formatter, "{address}"),
            Self::Path(path) => write!(formatter, "{}", Escaped(&String::from_utf8_lossy(path))),
            Self::Abstract(name) => write!(formatter, "@{}", Escaped(&String::from_utf8_lossy(name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn raw(family: i32, rest: &[u8]) -> SocketAddress {
        SocketAddress([&(family as u16).to_ne_bytes(), rest].concat())
    }

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let four = raw(libc::AF_INET, &[0x1e, 0x79, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Address::from_bytes(&four), Some(Address::Inet(inet("127.0.0.1:7801"))));
        let mut six = vec![0x1e, 0x79, 9, 9, 9, 9];
        six.extend(Ipv6Addr::LOCALHOST.octets());
        let short = raw(libc::AF_INET6, &six);
        assert_eq!(Address::from_bytes(&short), Some(Address::Inet(inet("[::1]:7801"))));
        six.extend(7_u32.to_ne_bytes());
        assert_eq!(
            Address::from_bytes(&raw(libc::AF_INET6, &six)),
            Some(Address::Inet(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7801, 0, 7).into()))
        );
        assert_eq!(Address::from_bytes(&raw(libc::AF_UNIX, b"/a\0b")), Some(Address::Path(b"/a".to_vec())));
        assert_eq!(
            Address::from_bytes(&raw(libc::AF_UNIX, b"\0a\0")),
            Some(Address::Abstract(b"a\0".to_vec()))
        );
        for none in [raw(libc::AF_UNIX, b""), raw(libc::AF_INET, &[0; 4]), raw(libc::AF_NETLINK, &[0; 10])] {
            assert_eq!(Address::from_bytes(&none), None);
        }
    }

    #[test]
    fn declared_addresses_have_one_form_each() {
        let parsed = |text| Address::parse(text).unwrap();
        assert_eq!(parsed("127.0.0.1:80"), [Address::Inet(inet("127.0.0.1:80"))]);
        assert_eq!(parsed("tcp:[::1]:80"), [Address::Inet(inet("[::1]:80"))]);
        assert_eq!(parsed("localhost:80").len(), 2);
        assert_eq!(parsed("unix:/run/a"), [Address::Path(b"/run/a".to_vec())]);
        assert_eq!(parsed("@name"), [Address::Abstract(b"name".to_vec())]);
        for bad in ["", "host:80", "127.0.0.1", "relative/path", "localhost:http"] {
            assert!(matches!(Address::parse(bad), Err(ChannelError::BadAddress { .. })), "{bad}");
        }
        assert_eq!(parsed("unix:/run/a")[0].to_string(), "/run/a");
        assert_eq!(parsed("@name")[0].to_string(), "@name");
    }

    #[test]
    fn callers_reach_wildcards_and_exact_addresses() {
        let reaches = |listener, target| reach(inet(listener), false, inet(target));
        assert_eq!(reaches("127.0.0.1:1", "127.0.0.1:1"), Reach::Yes);
        assert_eq!(reaches("127.0.0.1:1", "0.0.0.0:1"), Reach::Yes);
        assert_eq!(reaches("127.0.0.1:1", "[::ffff:127.0.0.1]:1"), Reach::Yes);
        assert_eq!(reaches("127.0.0.1:1", "127.0.0.1:2"), Reach::No);
        assert_eq!(reaches("127.0.0.1:1", "127.0.0.2:1"), Reach::No);
        assert_eq!(reaches("0.0.0.0:1", "127.0.0.2:1"), Reach::Yes);
        assert_eq!(reaches("0.0.0.0:1", "10.0.0.1:1"), Reach::IfLocal);
        assert_eq!(reaches("0.0.0.0:1", "[::1]:1"), Reach::No);
        assert_eq!(reaches("[::]:1", "127.0.0.1:1"), Reach::Yes);
        assert_eq!(reaches("[::]:1", "[::1]:1"), Reach::Yes);
        assert_eq!(reach(inet("[::]:1"), true, inet("127.0.0.1:1")), Reach::No);
    }

    #[test]
    fn a_held_socket_is_in_the_way_of_overlapping_ones() {
        let address = |text| Address::Inet(inet(text));
        let conflicts = |one, two| address(one).conflicts(false, &address(two), false);
        assert!(conflicts("0.0.0.0:1", "127.0.0.1:1") && conflicts("[::]:1", "127.0.0.1:1"));
        assert!(conflicts("127.0.0.1:1", "[::]:1") && conflicts("[::]:1", "[::1]:1"));
        assert!(!conflicts("127.0.0.2:1", "127.0.0.1:1") && !conflicts("0.0.0.0:0", "0.0.0.0:0"));
        assert!(!conflicts("[::1]:1", "0.0.0.0:1"));
        assert!(!address("[::]:1").conflicts(true, &address("0.0.0.0:1"), false));
        assert!(!address("0.0.0.0:1").conflicts(false, &address("[::]:1"), true));
        assert!(Address::Path(b"a".to_vec()).conflicts(false, &Address::Path(b"a".to_vec()), false));
    }
}
