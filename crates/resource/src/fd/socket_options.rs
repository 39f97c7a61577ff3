//! Saves and restores the options of a socket (getsockopt(2), setsockopt(2)) of any family.
//!
//! Only the options whose values differ from the values of a new socket are saved. A restore creates a new socket,
//! sets the saved options, and sends the saved bytes to fill the queues of the socket. An option can have an effect
//! on the packets of the restore itself. Such an option (filters, cork, peek offset) is set *late*: after the queues
//! were filled. The other options are set *early*: before the socket has an address.
//!
//! Owns: reading and setting the options of a socket, and the owner of a socket.
//! Invariants: an option with the value of a new socket is neither saved nor set.
//! Does not: save state that getsockopt(2) does not return. The descriptor kind of the socket saves or refuses this
//! state, except an extended BPF filter, which is refused here.

use std::os::fd::{AsFd, BorrowedFd};

use prost::Message;
use sys::packet_hold::SocketMark;
use sys::socket_option::{self, SocketOption};
use sys::{Errno, Error};

use super::description::Description;
use super::socket_family::{AF_INET6, Family, IPPROTO_IP, SOL_SOCKET};
use super::socket_option_table::{When, rows};
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::support::ownership::owner;

/// Maximum length of an option value in bytes. No saved option has a longer value.
const VALUE_BYTES_MAX: usize = 64;

/// Buffer sizes are read with SO_SNDBUF and SO_RCVBUF. They are set with SO_SNDBUFFORCE and SO_RCVBUFFORCE, or with
/// SO_SNDBUF and SO_RCVBUF if this process lacks the privilege. A size can be locked against automatic changes by the
/// kernel (SO_BUF_LOCK).
pub(crate) const SEND_BUFFER: SocketOption = SocketOption { level: SOL_SOCKET, number: 7, name: "SO_SNDBUF" };
pub(crate) const RECEIVE_BUFFER: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 8, name: "SO_RCVBUF" };
const SEND_BUFFER_FORCE: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 32, name: "SO_SNDBUFFORCE" };
const RECEIVE_BUFFER_FORCE: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 33, name: "SO_RCVBUFFORCE" };
const BUFFER_LOCK: SocketOption = SocketOption { level: SOL_SOCKET, number: 72, name: "SO_BUF_LOCK" };
const LOCK_FILTER: SocketOption = SocketOption { level: SOL_SOCKET, number: 44, name: "SO_LOCK_FILTER" };
pub(crate) const PEEK_OFFSET: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 42, name: "SO_PEEK_OFF" };
pub(crate) const REUSE_ADDRESS: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 2, name: "SO_REUSEADDR" };

/// The mark that the kernel adds to packets of a socket. Packet filters can select packets by this mark.
const MARK: SocketOption = SocketOption { level: SOL_SOCKET, number: 36, name: "SO_MARK" };
pub(crate) const REUSE_PORT: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 15, name: "SO_REUSEPORT" };

/// Options of one socket that differ from the options of a new socket.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Options {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
    /// The classic BPF filter of the socket; empty without a filter.
    #[prost(bytes = "vec", tag = "2")]
    filter: Vec<u8>,
    #[prost(bool, tag = "3")]
    filter_locked: bool,
    /// The owner of the socket; `None` in images of earlier versions.
    #[prost(message, optional, tag = "4")]
    owner: Option<Owner>,
}

/// Owner of a socket (fchown(2)). The owner is saved, because only sockets of the same user can share a port with
/// SO_REUSEPORT.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Owner {
    #[prost(uint32, tag = "1")]
    user: u32,
    #[prost(uint32, tag = "2")]
    group: u32,
}

impl Owner {
    fn of(socket: BorrowedFd<'_>) -> Result<Self> {
        let stat = rustix::fs::fstat(socket).map_err(|errno| Error::new("inspect a socket", errno))?;
        Ok(Self { user: stat.st_uid, group: stat.st_gid })
    }

    /// Sets the owner. If this process lacks the privilege to change the owner, this process stays the owner.
    fn apply(self, socket: BorrowedFd<'_>) -> Result<()> {
        if Self::of(socket)? == self {
            return Ok(());
        }
        let (user, group) = owner(self.user, self.group)?;
        match rustix::fs::fchown(socket, Some(user), Some(group)) {
            Ok(()) | Err(rustix::io::Errno::PERM) => Ok(()),
            Err(errno) => Err(Error::new("set the owner of a socket", errno).into()),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Value {
    #[prost(int32, tag = "1")]
    level: i32,
    #[prost(int32, tag = "2")]
    number: i32,
    #[prost(bytes = "vec", tag = "3")]
    bytes: Vec<u8>,
}

/// Returns the obstacles (reasons against a checkpoint) in the options of a socket. The only obstacle is a filter
/// that was attached with SO_ATTACH_BPF, because the kernel does not return its program.
pub(crate) fn obstacles(description: &Description, what: &str) -> Vec<Obstacle> {
    match socket_option::filter(description.as_fd()) {
        Err(error) if error.errno == Errno::EACCES => vec![description.obstacle(
            what,
            "it has an extended BPF program as packet filter, which cannot be read",
            "let the program detach the filter before the checkpoint",
        )],
        _ => Vec::new(),
    }
}

/// The options of a new socket of one family, with their values.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// Each option with its value. `None` if a new socket has no value of the option, but another socket may have
    /// one.
    values: Vec<(SocketOption, Option<Bytes>)>,
}

/// The value of an option.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    buffer: [u8; VALUE_BYTES_MAX],
    length: usize,
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Fresh {
    /// Creates a new socket, and reads its options. Omits options that no socket of the family has.
    pub(crate) fn of(family: Family) -> Result<Self> {
        let socket = family.create()?;
        let mut values = Vec::new();
        for row in rows(family) {
            match read(socket.as_fd(), row.option)? {
                // An IPv6 socket with an IPv4 peer may have IPv4 options that a new socket lacks.
                Answer::Unknown if row.option.level != IPPROTO_IP || family.domain != AF_INET6 => {}
                Answer::Unknown | Answer::NotNow => values.push((row.option, None)),
                Answer::Value(bytes) => values.push((row.option, Some(bytes))),
            }
        }
        Ok(Self { values })
    }
}

impl Options {
    /// Reads the options of a socket whose values differ from the values in `fresh`. Makes one system call per option
    /// of the family. Allocates memory only for options that differ.
    pub(crate) fn read(socket: impl AsFd, fresh: &Fresh) -> Result<Self> {
        let socket = socket.as_fd();
        let mut values = Vec::new();
        for (option, usual) in &fresh.values {
            let Answer::Value(bytes) = read(socket, *option)? else { continue };
            if *option == MARK && is_guardians(bytes.as_slice()) {
                continue;
            }
            if usual.as_ref().map(Bytes::as_slice) != Some(bytes.as_slice()) {
                let bytes = bytes.as_slice().to_vec();
                values.push(Value { level: option.level, number: option.number, bytes });
            }
        }
        let filter_locked = match read(socket, LOCK_FILTER)? {
            Answer::Value(bytes) => bytes.as_slice() != [0; 4],
            Answer::Unknown | Answer::NotNow => false,
        };
        let owner = Some(Owner::of(socket)?);
        Ok(Self { values, filter: socket_option::filter(socket)?, filter_locked, owner })
    }

    /// Returns the classic BPF filter; empty without a filter.
    pub(crate) fn filter(&self) -> &[u8] {
        &self.filter
    }

    /// Returns the saved value of an `int` option; `None` if the option was not saved.
    pub(crate) fn int(&self, option: SocketOption) -> Option<i32> {
        let value = self.find(option)?;
        Some(i32::from_ne_bytes(*value.bytes.first_chunk()?))
    }

    fn find(&self, option: SocketOption) -> Option<&Value> {
        self.values.iter().find(|value| (value.level, value.number) == (option.level, option.number))
    }

    /// Sets the owner, and the options that must be set before the socket has an address.
    pub(crate) fn apply_early(&self, socket: impl AsFd, family: Family) -> Result<()> {
        let socket = socket.as_fd();
        if let Some(owner) = self.owner {
            owner.apply(socket)?;
        }
        self.apply(socket, family, When::Early)
    }

    /// Sets options on a socket without a connection. A connection has its own values of these options. Called after
    /// [`Options::apply_early`].
    pub(crate) fn apply_unconnected(&self, socket: impl AsFd, family: Family) -> Result<()> {
        self.apply(socket.as_fd(), family, When::Unconnected)
    }

    /// Sets the options that must be set after the socket's queues were filled, and attaches the filter.
    pub(crate) fn apply_late(&self, socket: impl AsFd, family: Family) -> Result<()> {
        let socket = socket.as_fd();
        self.apply(socket, family, When::Late)?;
        if !self.filter.is_empty() {
            socket_option::attach_filter(socket, &self.filter)?;
        }
        if self.filter_locked {
            socket_option::set_int(socket, LOCK_FILTER, 1)?;
        }
        Ok(())
    }

    /// Sets the buffer sizes of the checkpoint. Called after the queues were filled, because [`make_room`] may have
    /// enlarged the buffers for the queues.
    pub(crate) fn restore_buffers(&self, socket: impl AsFd, family: Family) -> Result<()> {
        let socket = socket.as_fd();
        let fresh = family.create()?;
        for (plain, force) in [(SEND_BUFFER, SEND_BUFFER_FORCE), (RECEIVE_BUFFER, RECEIVE_BUFFER_FORCE)] {
            let size = match self.int(plain) {
                Some(size) => size,
                None => socket_option::get_int(fresh.as_fd(), plain)?,
            };
            if socket_option::get_int(socket, plain)? != size {
                set_buffer(socket, plain, force, &size.to_ne_bytes())?;
            }
        }
        set(socket, BUFFER_LOCK, &self.int(BUFFER_LOCK).unwrap_or(0).to_ne_bytes())
    }

    fn apply(&self, socket: BorrowedFd<'_>, family: Family, when: When) -> Result<()> {
        for row in rows(family).filter(|row| row.when == when) {
            let Some(value) = self.find(row.option) else { continue };
            match row.option {
                option if when == When::Unconnected => set_if_valid(socket, option, &value.bytes)?,
                SEND_BUFFER => set_buffer(socket, SEND_BUFFER, SEND_BUFFER_FORCE, &value.bytes)?,
                RECEIVE_BUFFER => set_buffer(socket, RECEIVE_BUFFER, RECEIVE_BUFFER_FORCE, &value.bytes)?,
                option => set(socket, option, &value.bytes)?,
            }
        }
        // Setting a buffer size locks the size. If the size was not locked at the checkpoint, the kernel had enlarged
        // the buffer automatically. The size must then be unlocked, so that the kernel can change the size again.
        let grown = self.find(SEND_BUFFER).is_some() || self.find(RECEIVE_BUFFER).is_some();
        if when == When::Early && grown && self.find(BUFFER_LOCK).is_none() {
            set(socket, BUFFER_LOCK, &[0; 4])?;
        }
        Ok(())
    }
}

/// Reports whether a mark was set by a guardian, and not by the program.
fn is_guardians(mark: &[u8]) -> bool {
    mark.first_chunk().is_some_and(|mark| SocketMark(u32::from_ne_bytes(*mark)).is_ours())
}

/// Result of reading an option.
enum Answer {
    Value(Bytes),
    /// No socket of the family has the option.
    Unknown,
    /// The socket has no value of the option in its present state.
    NotNow,
}

fn read(socket: BorrowedFd<'_>, option: SocketOption) -> Result<Answer> {
    let mut buffer = [0; VALUE_BYTES_MAX];
    match socket_option::get(socket, option, &mut buffer) {
        Ok(length) => Ok(Answer::Value(Bytes { buffer, length })),
        Err(error) if [ENOPROTOOPT, EOPNOTSUPP].contains(&error.errno.0) => Ok(Answer::Unknown),
        Err(error) if error.errno == Errno::EINVAL || error.errno.0 == ENOTCONN => Ok(Answer::NotNow),
        Err(error) => Err(error.into()),
    }
}

fn set(socket: BorrowedFd<'_>, option: SocketOption, bytes: &[u8]) -> Result<()> {
    match socket_option::set(socket, option, bytes) {
        // The checkpoint was taken on a newer kernel. The present kernel lacks the option, which is then not
        // restored.
        Err(error) if error.errno.0 == ENOPROTOOPT => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Sets an option, and ignores EINVAL. If a socket was connected at an earlier time, its saved value may come from
/// this connection. The kernel may refuse such a value for a socket without a connection.
fn set_if_valid(socket: BorrowedFd<'_>, option: SocketOption, bytes: &[u8]) -> Result<()> {
    match socket_option::set(socket, option, bytes) {
        Err(error) if error.errno.0 == ENOPROTOOPT || error.errno == Errno::EINVAL => Ok(()),
        outcome => Ok(outcome?),
    }
}

const ENOPROTOOPT: i32 = 92;
const EOPNOTSUPP: i32 = 95;
const ENOTCONN: i32 = 107;

/// Sets the size of a buffer to the `int` in `bytes`. The kernel doubles the argument of the option, so the argument
/// is half of the size.
fn set_buffer(socket: BorrowedFd<'_>, plain: SocketOption, force: SocketOption, bytes: &[u8]) -> Result<()> {
    let size = bytes.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match socket_option::set_int(socket, force, size / 2) {
        // Without the privilege, the kernel limits the size to the limit of the system. When the program set the
        // size, the same limit applied.
        Err(error) if error.errno == Errno::EPERM => Ok(socket_option::set_int(socket, plain, size / 2)?),
        outcome => Ok(outcome?),
    }
}

/// Enlarges a buffer to at least `bytes` bytes before a queue is filled. After the queue was filled,
/// [`Options::restore_buffers`] sets the size of the checkpoint.
pub(crate) fn make_room(socket: impl AsFd, option: SocketOption, bytes: usize) -> Result<()> {
    let socket = socket.as_fd();
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    if socket_option::get_int(socket, option)? >= wanted {
        return Ok(());
    }
    let force = if option == SEND_BUFFER { SEND_BUFFER_FORCE } else { RECEIVE_BUFFER_FORCE };
    set_buffer(socket, option, force, &wanted.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixDatagram;

    use super::super::socket_family::{AF_INET, IPPROTO_TCP, IPPROTO_UDP};
    use super::*;

    fn read_options(socket: impl AsFd, family: Family) -> Result<Options> {
        Options::read(socket, &Fresh::of(family)?)
    }

    #[test]
    fn only_changed_options_are_saved_and_restored() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let family = Family::of(&socket).unwrap();
        assert_eq!(family, Family { domain: AF_INET, kind: 1, protocol: IPPROTO_TCP });
        rustix::net::sockopt::set_tcp_keepcnt(&socket, 3).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 100_000).unwrap();
        rustix::net::sockopt::set_ip_ttl(&socket, 33).unwrap();
        let saved = read_options(&socket, family).unwrap();
        let numbers: Vec<_> = saved.values.iter().map(|value| (value.level, value.number)).collect();
        // The standard library sets SO_REUSEADDR for a listener.
        assert_eq!(numbers, [(1, 2), (1, 8), (1, 72), (0, 2), (6, 6)]);
        let copy = family.create().unwrap();
        saved.apply_early(&copy, family).unwrap();
        saved.apply_late(&copy, family).unwrap();
        assert_eq!(read_options(&copy, family).unwrap(), saved);
        assert_eq!(rustix::net::sockopt::socket_recv_buffer_size(&copy).unwrap(), 200_000);
    }

    #[test]
    fn a_locked_filter_is_attached_last() {
        let (one, _other) = UnixDatagram::pair().unwrap();
        let family = Family::of(&one).unwrap();
        socket_option::attach_filter(one.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
        socket_option::set_int(one.as_fd(), LOCK_FILTER, 1).unwrap();
        let saved = read_options(&one, family).unwrap();
        let (copy, _peer) = UnixDatagram::pair().unwrap();
        saved.apply_early(&copy, family).unwrap();
        assert!(socket_option::filter(copy.as_fd()).unwrap().is_empty());
        saved.apply_late(&copy, family).unwrap();
        assert_eq!(read_options(&copy, family).unwrap(), saved);
        assert!(socket_option::detach_filter(copy.as_fd()).is_err());
    }

    #[test]
    fn ipv6_sockets_have_the_options_of_both_levels() {
        let family = Family { domain: AF_INET6, kind: 2, protocol: IPPROTO_UDP };
        let Ok(socket) = family.create() else { return println!("unsupported: IPv6") };
        rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
        rustix::net::sockopt::set_ipv6_recvtclass(&socket, true).unwrap();
        let saved = read_options(&socket, family).unwrap();
        assert_eq!(saved.values.len(), 2, "{saved:?}");
        let copy = family.create().unwrap();
        saved.apply_early(&copy, family).unwrap();
        assert_eq!(read_options(&copy, family).unwrap(), saved);
    }
}
