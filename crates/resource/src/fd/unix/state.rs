//! Saved state of a Unix socket.
//!
//! Owns: the payload of a record.
//! Invariants: addresses are the kernel's bytes; other sockets and descriptors in flight are identified by
//! description id.
//! Does not: read or set the state of a socket.

use std::path::{Path, PathBuf};

use prost::Message;
use sys::sock_diag;
use sys::socket::{Credentials, SocketAddress};

use super::super::inherited_socket::InheritedSocket;
use super::super::socket_family::{Family, SOCK_DGRAM};
use super::super::socket_options::Options;
use crate::support::path;

pub(super) const NAME: &str = "fd/unix";

/// One Unix socket.
#[derive(Clone, PartialEq, Message)]
pub(super) struct State {
    #[prost(message, required, tag = "1")]
    pub(super) family: Family,
    #[prost(message, required, tag = "2")]
    pub(super) options: Options,
    /// The kernel's number of its state.
    #[prost(uint32, tag = "3")]
    pub(super) state: u32,
    /// Shut halves: 1 receiving, 2 sending.
    #[prost(uint32, tag = "4")]
    pub(super) shut: u32,
    /// Its address; only the family for an unnamed socket.
    #[prost(bytes = "vec", tag = "5")]
    pub(super) local: Vec<u8>,
    /// Its peer's address, while it is connected.
    #[prost(bytes = "vec", tag = "6")]
    pub(super) peer_name: Vec<u8>,
    #[prost(message, optional, tag = "7")]
    pub(super) file: Option<BoundFile>,
    #[prost(oneof = "Peer", tags = "8, 9, 10")]
    pub(super) peer: Option<Peer>,
    #[prost(message, repeated, tag = "11")]
    pub(super) queue: Vec<Queued>,
    #[prost(message, optional, tag = "12")]
    pub(super) listener: Option<Listener>,
    /// Device and inode of a socket that the restoring process has inherited.
    #[prost(message, optional, tag = "13")]
    pub(super) inherited: Option<InheritedSocket>,
    /// SO_PEERCRED: the process that made the connection, or listens.
    #[prost(message, optional, tag = "14")]
    pub(super) maker: Option<Sender>,
    /// SO_PEERGROUPS: the supplementary groups of that process.
    #[prost(uint32, repeated, tag = "15")]
    pub(super) maker_groups: Vec<u32>,
}

/// The peer of a connected socket.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub(super) enum Peer {
    /// A socket of the subject.
    #[prost(uint32, tag = "8")]
    Inside(u32),
    /// The peer was closed; bytes that it had sent may be unread.
    #[prost(bool, tag = "9")]
    Closed(bool),
    /// An outside socket, identified by its name.
    #[prost(bool, tag = "10")]
    Outside(bool),
}

/// The file to which a socket is bound.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct BoundFile {
    /// The first of its names, or the last one that it had.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub(super) mode: u32,
    #[prost(uint32, tag = "4")]
    pub(super) user: u32,
    #[prost(uint32, tag = "5")]
    pub(super) group: u32,
    /// It has no name any more.
    #[prost(bool, tag = "6")]
    pub(super) gone: bool,
    /// The first of its names; missing in images of earlier versions.
    #[prost(message, optional, tag = "7")]
    pub(super) place: Option<Place>,
    /// Its other names.
    #[prost(message, repeated, tag = "8")]
    pub(super) others: Vec<Place>,
}

/// One name of a socket's file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Place {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// Device and inode of its directory.
    #[prost(uint64, tag = "2")]
    pub(super) device: u64,
    #[prost(uint64, tag = "3")]
    pub(super) inode: u64,
}

impl BoundFile {
    /// The first of its names; `None` if it has no name.
    pub(super) fn first(&self) -> Option<Place> {
        let unknown = || Place { path: self.path.clone(), ..Place::default() };
        (!self.gone).then(|| self.place.clone().unwrap_or_else(unknown))
    }
}

impl Place {
    /// A name, with device and inode of its directory.
    pub(super) fn new(path: &Path, directory: (u64, u64)) -> Self {
        Self { path: path::to_bytes(path), device: directory.0, inode: directory.1 }
    }

    /// The whole path.
    pub(super) fn path(&self) -> PathBuf {
        path::from_bytes(&self.path)
    }
}

/// State of a listener.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Listener {
    #[prost(uint32, tag = "1")]
    pub(super) backlog: u32,
    /// Waiting connections in order: descriptions of the server sides where these were accepted by the checkpoint,
    /// else of the clients.
    #[prost(uint32, repeated, tag = "2")]
    pub(super) waiting: Vec<u32>,
}

/// An unread message, or piece of a stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Queued {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) bytes: Vec<u8>,
    /// The sender's address; empty for none.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) from: Vec<u8>,
    /// Descriptions in flight in it.
    #[prost(uint32, repeated, tag = "3")]
    pub(super) rights: Vec<u32>,
    #[prost(message, optional, tag = "4")]
    pub(super) sender: Option<Sender>,
}

/// Credentials of the sender of a message, or of the process that made a connection.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Sender {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(uint32, tag = "2")]
    pub(super) user: u32,
    #[prost(uint32, tag = "3")]
    pub(super) group: u32,
}

impl From<Credentials> for Sender {
    fn from(credentials: Credentials) -> Self {
        Self { pid: credentials.pid, user: credentials.uid, group: credentials.gid }
    }
}

impl From<Sender> for Credentials {
    fn from(sender: Sender) -> Self {
        Self { pid: sender.pid, uid: sender.user, gid: sender.group }
    }
}

/// Credentials and groups of the process that made a connection, or listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker<'a> {
    pub(super) credentials: Credentials,
    pub(super) groups: &'a [u32],
}

/// Bytes of the address family before a name.
const FAMILY_BYTES: usize = 2;

impl State {
    pub(super) fn maker(&self) -> Option<Maker<'_>> {
        self.maker.map(|maker| Maker { credentials: Credentials::from(maker), groups: &self.maker_groups })
    }

    pub(super) fn local(&self) -> SocketAddress {
        SocketAddress(self.local.clone())
    }

    pub(super) fn is_named(&self) -> bool {
        self.local.len() > FAMILY_BYTES
    }

    pub(super) fn is_datagram(&self) -> bool {
        self.family.kind == SOCK_DGRAM
    }

    pub(super) fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn is_listening(&self) -> bool {
        self.state == u32::from(sock_diag::LISTENING)
    }

    /// The other end, where that is a socket of the subject.
    pub(super) fn peer_inside(&self) -> Option<u32> {
        match self.peer {
            Some(Peer::Inside(id)) => Some(id),
            _ => None,
        }
    }
}

/// Whether an address is a path.
pub(super) fn is_path(address: &SocketAddress) -> bool {
    address.body().first().is_some_and(|byte| *byte != 0)
}

/// The path of an address, without its terminating zero.
pub(super) fn text(address: &SocketAddress) -> &[u8] {
    let body = address.body();
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    &body[..end]
}

/// Formats an address for messages.
pub(super) fn show(address: &SocketAddress) -> String {
    match address.body() {
        [] => "no name".to_owned(),
        [0, name @ ..] => format!("@{}", String::from_utf8_lossy(name)),
        _ => String::from_utf8_lossy(text(address)).into_owned(),
    }
}
