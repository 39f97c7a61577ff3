//! Domain, type and protocol of a socket.
//!
//! Owns: the numbers of families, types, protocols and option levels from the kernel's headers.
//! Does not: read or set socket options.

use std::os::fd::{AsFd, OwnedFd};

use prost::Message;
use sys::socket_option::{self, SocketOption};

use crate::error::Result;

pub(crate) const SOL_SOCKET: i32 = 1;
pub(crate) const IPPROTO_IP: i32 = 0;
pub(crate) const IPPROTO_ICMP: i32 = 1;
pub(crate) const IPPROTO_TCP: i32 = 6;
pub(crate) const IPPROTO_UDP: i32 = 17;
pub(crate) const IPPROTO_IPV6: i32 = 41;
pub(crate) const IPPROTO_ICMPV6: i32 = 58;
pub(crate) const IPPROTO_UDPLITE: i32 = 136;
pub(crate) const IPPROTO_MPTCP: i32 = 262;
pub(crate) const SOL_RAW: i32 = 255;
pub(crate) const SOL_PACKET: i32 = 263;
pub(crate) const SOL_NETLINK: i32 = 270;
pub(crate) const AF_UNIX: i32 = 1;
pub(crate) const AF_INET: i32 = 2;
pub(crate) const AF_INET6: i32 = 10;
pub(crate) const AF_NETLINK: i32 = 16;
pub(crate) const AF_PACKET: i32 = 17;
pub(crate) const SOCK_STREAM: i32 = 1;
pub(crate) const SOCK_DGRAM: i32 = 2;
pub(crate) const SOCK_RAW: i32 = 3;
pub(crate) const SOCK_SEQPACKET: i32 = 5;

/// Domain, type and protocol with which a socket was created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct Family {
    /// AF_UNIX, AF_INET, AF_INET6 or AF_NETLINK.
    #[prost(int32, tag = "1")]
    pub(crate) domain: i32,
    /// SOCK_STREAM and so on.
    #[prost(int32, tag = "2")]
    pub(crate) kind: i32,
    /// IPPROTO_TCP and so on.
    #[prost(int32, tag = "3")]
    pub(crate) protocol: i32,
}

impl Family {
    /// Reads the family of an open socket.
    pub(crate) fn of(socket: impl AsFd) -> Result<Self> {
        let get = |number, name| {
            socket_option::get_int(socket.as_fd(), SocketOption { level: SOL_SOCKET, number, name })
        };
        Ok(Self {
            domain: get(39, "SO_DOMAIN")?,
            kind: get(3, "SO_TYPE")?,
            protocol: get(38, "SO_PROTOCOL")?,
        })
    }

    /// Creates a socket of this family.
    pub(crate) fn create(self) -> Result<OwnedFd> {
        Ok(sys::socket::create(self.domain, self.kind, self.protocol)?)
    }
}
