//! What is saved of a Unix socket.
//!
//! Owns: the payload of a record.
//! Invariants: addresses are the kernel's bytes; other sockets and descriptors in flight are named by description.
//! Does not: read or set any of it.

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
    /// The number of its state.
    #[prost(uint32, tag = "3")]
    pub(super) state: u32,
    /// Halves that are shut: 1 receiving, 2 sending.
    #[prost(uint32, tag = "4")]
    pub(super) shut: u32,
    /// Its address: the family alone for a socket without a name.
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
    /// Device and inode of a socket that whoever restores holds itself.
    #[prost(message, optional, tag = "13")]
    pub(super) inherited: Option<InheritedSocket>,
    /// SO_PEERCRED: who made the connection, or listens.
    #[prost(message, optional, tag = "14")]
    pub(super) maker: Option<Sender>,
    /// SO_PEERGROUPS: the supplementary groups of that process.
    #[prost(uint32, repeated, tag = "15")]
    pub(super) maker_groups: Vec<u32>,
}

/// What a connected socket is connected to.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub(super) enum Peer {
    /// A socket of the subject.
    #[prost(uint32, tag = "8")]
    Inside(u32),
    /// Nothing any more; what it had sent may still be unread.
    #[prost(bool, tag = "9")]
    Closed(bool),
    /// A socket outside, known by its name.
    #[prost(bool, tag = "10")]
    Outside(bool),
}

/// The file that a socket is bound to.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct BoundFile {
    /// Its first name, or the last one that it had.
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
    /// Its first name; missing in images of earlier versions.
    #[prost(message, optional, tag = "7")]
    pub(super) place: Option<Place>,
    /// Its further names.
    #[prost(message, repeated, tag = "8")]
    pub(super) others: Vec<Place>,
}

/// One name of a socket's file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Place {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// The directory in which it lies.
    #[prost(uint64, tag = "2")]
    pub(super) device: u64,
    #[prost(uint64, tag = "3")]
    pub(super) inode: u64,
}

impl BoundFile {
    /// The first of its names; none if it has no name any more.
    pub(super) fn first(&self) -> Option<Place> {
        let unknown = || Place { path: self.path.clone(), ..Place::default() };
        (!self.gone).then(|| self.place.clone().unwrap_or_else(unknown))
    }
}

impl Place {
    /// A name, and the directory in which it lies.
    pub(super) fn new(path: &Path, directory: (u64, u64)) -> Self {
        Self { path: path::to_bytes(path), device: directory.0, inode: directory.1 }
    }

    /// The whole path.
    pub(super) fn path(&self) -> PathBuf {
        path::from_bytes(&self.path)
    }
}

/// What only a listener has.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Listener {
    #[prost(uint32, tag = "1")]
    pub(super) backlog: u32,
    /// What waited to be accepted, in order: descriptions of the server's sides where they were taken out, else of
    /// clients.
    #[prost(uint32, repeated, tag = "2")]
    pub(super) waiting: Vec<u32>,
}

/// A message, or a piece of a stream, that was not read yet.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Queued {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) bytes: Vec<u8>,
    /// The sender's address; empty for none.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) from: Vec<u8>,
    /// Descriptions that travel in it.
    #[prost(uint32, repeated, tag = "3")]
    pub(super) rights: Vec<u32>,
    #[prost(message, optional, tag = "4")]
    pub(super) sender: Option<Sender>,
}

/// Who sent a message, or made a connection.
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
    fn from(who: Credentials) -> Self {
        Self { pid: who.pid, user: who.uid, group: who.gid }
    }
}

impl From<Sender> for Credentials {
    fn from(who: Sender) -> Self {
        Self { pid: who.pid, uid: who.user, gid: who.group }
    }
}

/// Who made a connection, or listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker<'a> {
    pub(super) credentials: Credentials,
    pub(super) groups: &'a [u32],
}

/// Bytes of the family in front of a name.
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

/// Whether an address names a file.
pub(super) fn is_path(address: &SocketAddress) -> bool {
    address.body().first().is_some_and(|byte| *byte != 0)
}

/// The bytes of an address that is a path, without the zero that ends it.
pub(super) fn text(address: &SocketAddress) -> &[u8] {
    let body = address.body();
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    &body[..end]
}

/// How messages show an address.
pub(super) fn show(address: &SocketAddress) -> String {
    match address.body() {
        [] => "no name".to_owned(),
        [0, name @ ..] => format!("@{}", String::from_utf8_lossy(name)),
        _ => String::from_utf8_lossy(text(address)).into_owned(),
    }
}
