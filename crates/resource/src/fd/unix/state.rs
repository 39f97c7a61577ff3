//! The state of a Unix socket in an image.
//!
//! Owns: the payload of the record of a Unix socket.
//! Invariants: an address is stored as the bytes of `struct sockaddr_un`. A reference to a socket, or to a descriptor
//! in flight in a message, is stored as the id of an open file description.
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

/// The payload: one Unix socket as it is in the image.
#[derive(Clone, PartialEq, Message)]
pub(super) struct State {
    #[prost(message, required, tag = "1")]
    pub(super) family: Family,
    #[prost(message, required, tag = "2")]
    pub(super) options: Options,
    /// The state of the socket, as the number that sock_diag(7) reports.
    #[prost(uint32, tag = "3")]
    pub(super) state: u32,
    /// Bits of the shut directions: 1 for receiving, 2 for sending.
    #[prost(uint32, tag = "4")]
    pub(super) shut: u32,
    /// The address. If the socket has no name, the address consists of the address family only.
    #[prost(bytes = "vec", tag = "5")]
    pub(super) local: Vec<u8>,
    /// The address of the peer; empty unless the socket is connected.
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
    /// The identity of a socket that the restoring process has inherited; `None` for other sockets.
    #[prost(message, optional, tag = "13")]
    pub(super) inherited: Option<InheritedSocket>,
    /// The *maker*: the process that made the connection or called listen(2), as SO_PEERCRED reports it.
    #[prost(message, optional, tag = "14")]
    pub(super) maker: Option<Sender>,
    /// The supplementary groups of the maker, as SO_PEERGROUPS reports them.
    #[prost(uint32, repeated, tag = "15")]
    pub(super) maker_groups: Vec<u32>,
}

/// The peer of a connected socket.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub(super) enum Peer {
    /// A socket of the subject: the id of its description.
    #[prost(uint32, tag = "8")]
    Inside(u32),
    /// The peer is closed. The socket may still have unread bytes of its peer.
    #[prost(bool, tag = "9")]
    Closed(bool),
    /// A socket of a process outside the subject. The name of the socket identifies the peer.
    #[prost(bool, tag = "10")]
    Outside(bool),
}

/// The file to which a socket is bound.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct BoundFile {
    /// The first name of the file. If all names were removed, the name that the file had last.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub(super) mode: u32,
    #[prost(uint32, tag = "4")]
    pub(super) user: u32,
    #[prost(uint32, tag = "5")]
    pub(super) group: u32,
    /// Set when all names of the file were removed.
    #[prost(bool, tag = "6")]
    pub(super) gone: bool,
    /// The first name of the file, with its directory. `None` if all names were removed, and in images of earlier
    /// versions.
    #[prost(message, optional, tag = "7")]
    pub(super) place: Option<Place>,
    /// All names of the file except `place`.
    #[prost(message, repeated, tag = "8")]
    pub(super) others: Vec<Place>,
}

/// One name of a socket's file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Place {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// The device number of the directory that contains the name.
    #[prost(uint64, tag = "2")]
    pub(super) device: u64,
    /// The inode number of the directory that contains the name.
    #[prost(uint64, tag = "3")]
    pub(super) inode: u64,
}

impl BoundFile {
    /// Returns the first name of the file; `None` if all names were removed.
    pub(super) fn first(&self) -> Option<Place> {
        let unknown = || Place { path: self.path.clone(), ..Place::default() };
        (!self.gone).then(|| self.place.clone().unwrap_or_else(unknown))
    }
}

impl Place {
    /// Creates a name from its path, and from device and inode of the directory that contains the name.
    pub(super) fn new(path: &Path, directory: (u64, u64)) -> Self {
        Self { path: path::to_bytes(path), device: directory.0, inode: directory.1 }
    }

    /// Returns the whole path.
    pub(super) fn path(&self) -> PathBuf {
        path::from_bytes(&self.path)
    }
}

/// State of a listener.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Listener {
    #[prost(uint32, tag = "1")]
    pub(super) backlog: u32,
    /// The connections that the program has not accepted yet, in accept order. If the checkpoint has accepted a
    /// connection, the list contains the id of its server side. If not, the list contains the id of its client.
    #[prost(uint32, repeated, tag = "2")]
    pub(super) waiting: Vec<u32>,
}

/// An unread message, or unread bytes of a stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Queued {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) bytes: Vec<u8>,
    /// The address of the sender; empty if the sender has no address.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) from: Vec<u8>,
    /// The ids of the descriptions in flight in the message (SCM_RIGHTS).
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

/// Credentials and supplementary groups of the process that made a connection, or called listen(2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker<'a> {
    pub(super) credentials: Credentials,
    pub(super) groups: &'a [u32],
}

/// Number of bytes of the address family. In an address, these bytes precede the name.
const FAMILY_BYTES: usize = 2;

impl State {
    pub(super) fn maker(&self) -> Option<Maker<'_>> {
        self.maker.map(|maker| Maker { credentials: Credentials::from(maker), groups: &self.maker_groups })
    }

    pub(super) fn local(&self) -> SocketAddress {
        SocketAddress(self.local.clone())
    }

    /// Returns the paths of the file to which the socket is bound: the names at the checkpoint. For a file without a
    /// name, and for a file that is not known, returns the address.
    pub(super) fn file_names(&self) -> Vec<PathBuf> {
        let named = self.file.as_ref().filter(|file| !file.gone);
        named.map_or_else(
            || vec![path::from_bytes(text(&self.local()))],
            |file| file.first().iter().chain(&file.others).map(Place::path).collect(),
        )
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

    /// Returns the id of the peer's description, if the peer is a socket of the subject.
    pub(super) fn peer_inside(&self) -> Option<u32> {
        match self.peer {
            Some(Peer::Inside(id)) => Some(id),
            _ => None,
        }
    }
}

/// Reports whether an address is a path.
pub(super) fn is_path(address: &SocketAddress) -> bool {
    address.body().first().is_some_and(|byte| *byte != 0)
}

/// Returns the path of an address, without its terminating zero byte.
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
