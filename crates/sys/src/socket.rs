//! Sockets with addresses as the kernel's bytes, and messages with everything that travels in them.
//!
//! Owns: bind(2), connect(2), getsockname(2), getpeername(2), recvmsg(2) that only peeks or only takes, sendmsg(2), the
//! ioctls that tell how full a socket's queues are.
//! Invariants: an address is given back to the kernel byte for byte as it came; received descriptors are owned.
//! Does not: interpret addresses or data.
//!
//! Man page: socket(2), recv(2), send(2), unix(7), tcp(7)
//! Since: Linux 4.20 (SIOCUNIXFILE)
//! Probe: none; older kernels are refused by `doctor`
//! Fallback: none

use std::mem::{offset_of, size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::error::{Errno, Error, Result};
use crate::socket_option::{self, SocketOption};

/// Bytes of the largest address (struct sockaddr_storage).
const ADDRESS_BYTES_MAX: usize = 128;
/// The most descriptors one message carries (SCM_MAX_FD).
pub const RIGHTS_MAX: usize = 253;
/// Room for the largest set of descriptors, credentials, and a destination address.
const CONTROL_BYTES: usize = 2048;

/// A socket address: the bytes of a `struct sockaddr`, family first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SocketAddress(pub Vec<u8>);

/// Who sent a message: pid, uid and gid.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// The process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

const _: () = assert!(size_of::<Credentials>() == 12);
const _: () = assert!(offset_of!(Credentials, gid) == 8);

/// A message that was looked at and is still in its queue.
#[derive(Debug, Default)]
pub struct Peeked {
    /// Bytes of it that are in the caller's buffer.
    pub length: usize,
    /// The message has more bytes than the buffer.
    pub truncated: bool,
    /// Its sender's address; empty for none.
    pub from: SocketAddress,
    /// Duplicates of the descriptors in it.
    pub rights: Vec<OwnedFd>,
    /// Its sender, on a socket with SO_PASSCRED.
    pub credentials: Option<Credentials>,
    /// The address it was sent to, on a socket with IP_PKTINFO or IPV6_RECVPKTINFO.
    pub destination: Vec<u8>,
}

impl SocketAddress {
    /// AF_UNIX, AF_INET …; zero for no address.
    #[must_use]
    pub fn family(&self) -> u16 {
        self.0.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }

    /// What lies behind the family: path or name of a Unix socket.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.0.get(2..).unwrap_or_default()
    }
}

/// A new socket, close-on-exec.
pub fn create(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    owned(result, "create a socket")
}

/// Two connected Unix sockets, close-on-exec.
pub fn pair(kind: i32) -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two descriptor numbers into the array.
    let result = unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) };
    let first = owned(if result < 0 { result } else { ends[0] }, "create a pair of sockets")?;
    // SAFETY: the kernel returned a second new descriptor without another owner.
    Ok((first, unsafe { OwnedFd::from_raw_fd(ends[1]) }))
}

fn owned(result: i32, operation: &'static str) -> Result<OwnedFd> {
    if result < 0 {
        return Err(Error::new(operation, Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Gives a socket an address.
pub fn bind(socket: BorrowedFd<'_>, address: &SocketAddress) -> Result<()> {
    let bytes = &address.0;
    // SAFETY: the kernel reads `len` bytes from the vector.
    let result = unsafe { libc::bind(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as u32) };
    done(result, "bind a socket")
}

/// Connects a socket.
pub fn connect(socket: BorrowedFd<'_>, address: &SocketAddress) -> Result<()> {
    let bytes = &address.0;
    // SAFETY: the kernel reads `len` bytes from the vector.
    let result = unsafe { libc::connect(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as u32) };
    done(result, "connect a socket")
}

/// The number of a socket that no other one has until the system is started again.
pub fn cookie(socket: BorrowedFd<'_>) -> Result<u64> {
    const COOKIE: SocketOption =
        SocketOption { level: libc::SOL_SOCKET, number: libc::SO_COOKIE, name: "SO_COOKIE" };
    let mut bytes = [0; 8];
    socket_option::get(socket, COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Makes a connected socket one that is not; in repair mode its peer is told nothing.
pub fn disconnect(socket: BorrowedFd<'_>) -> Result<()> {
    connect(socket, &SocketAddress((libc::AF_UNSPEC as u16).to_ne_bytes().repeat(8)))
}

/// Takes the first connection that waits.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    // SAFETY: no address is asked for.
    let result =
        unsafe { libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), libc::SOCK_CLOEXEC) };
    owned(result, "accept a connection")
}

fn done(result: i32, operation: &'static str) -> Result<()> {
    if result < 0 { Err(Error::new(operation, Errno::last())) } else { Ok(()) }
}

/// The socket's own address; for an unbound Unix socket the family alone.
pub fn local(socket: BorrowedFd<'_>) -> Result<SocketAddress> {
    let mut buffer = [0_u8; ADDRESS_BYTES_MAX];
    let mut length = ADDRESS_BYTES_MAX as u32;
    // SAFETY: the kernel writes at most `length` bytes into the buffer.
    let result =
        unsafe { libc::getsockname(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), &raw mut length) };
    done(result, "read the address of a socket")?;
    Ok(SocketAddress(buffer[..(length as usize).min(ADDRESS_BYTES_MAX)].to_vec()))
}

/// The address of the socket's peer; `None` when it is not connected.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Option<SocketAddress>> {
    let mut buffer = [0_u8; ADDRESS_BYTES_MAX];
    let mut length = ADDRESS_BYTES_MAX as u32;
    // SAFETY: the kernel writes at most `length` bytes into the buffer.
    let result =
        unsafe { libc::getpeername(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), &raw mut length) };
    if result < 0 && Errno::last().0 == libc::ENOTCONN {
        return Ok(None);
    }
    done(result, "read the address of a socket's peer")?;
    Ok(Some(SocketAddress(buffer[..(length as usize).min(ADDRESS_BYTES_MAX)].to_vec())))
}

/// A control buffer with the alignment that its headers need.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const _: () = assert!(size_of::<Control>() == CONTROL_BYTES);
const _: () = assert!(offset_of!(Control, 0) == 0);

/// Looks at the next message (or at bytes of a stream) without taking it and without waiting; `None` when there
/// is nothing, or nothing any more at the socket's SO_PEEK_OFF.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<Peeked>> {
    let mut from = [0_u8; ADDRESS_BYTES_MAX];
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a message header of zeroes is valid: no name, no parts, no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = from.as_mut_ptr().cast();
    header.msg_namelen = ADDRESS_BYTES_MAX as u32;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer of the header leads to a buffer of the length given beside it, alive for the call.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    if result < 0 {
        let errno = Errno::last();
        return if errno.0 == libc::EAGAIN { Ok(None) } else { Err(Error::new("peek into a socket", errno)) };
    }
    let mut peeked = Peeked {
        length: result as usize,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        from: SocketAddress(from[..(header.msg_namelen as usize).min(ADDRESS_BYTES_MAX)].to_vec()),
        ..Peeked::default()
    };
    read_control(&header, &mut peeked);
    Ok(Some(peeked))
}

/// Takes all messages that wait in a socket for datagrams, with what travels in them, and forgets them.
pub fn forget_messages(socket: BorrowedFd<'_>) -> Result<()> {
    loop {
        // SAFETY: no buffer is given, none is written.
        let result = unsafe { libc::recv(socket.as_raw_fd(), ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
        if result < 0 {
            let errno = Errno::last();
            return if errno.0 == libc::EAGAIN { Ok(()) } else { Err(Error::new("empty a socket", errno)) };
        }
    }
}

fn read_control(header: &libc::msghdr, peeked: &mut Peeked) {
    // SAFETY: the header is one that recvmsg has just filled; its control data is alive and holds whole headers,
    // each followed by as many bytes as its length says. Descriptors in it are new and have no owner.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            let length = (*at).cmsg_len - libc::CMSG_LEN(0) as usize;
            let data = libc::CMSG_DATA(at);
            match ((*at).cmsg_level, (*at).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..length / size_of::<i32>() {
                        let fd = data.cast::<i32>().add(index).read_unaligned();
                        peeked.rights.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<Credentials>() => {
                    peeked.credentials = Some(data.cast::<Credentials>().read_unaligned());
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) | (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    peeked.destination = std::slice::from_raw_parts(data, length).to_vec();
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// A message to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Where to; nowhere in particular on a connected socket.
    pub to: Option<&'a SocketAddress>,
    /// Descriptors that travel with it, at most [`RIGHTS_MAX`].
    pub rights: &'a [BorrowedFd<'a>],
    /// As whom it is sent.
    pub credentials: Option<Credentials>,
}

/// Sends one message without waiting; the result is how many of its bytes went.
pub fn send(socket: BorrowedFd<'_>, message: &Message<'_>) -> Result<usize> {
    let sent = PreparedMessage::new(*message)?.send(socket);
    usize::try_from(sent).map_err(|_| Error::new("send into a socket", Errno::last()))
}

/// A message that takes nothing but one system call to be sent.
pub(crate) struct PreparedMessage<'a> {
    message: Message<'a>,
    control: Control,
    control_bytes: usize,
}

impl<'a> PreparedMessage<'a> {
    pub(crate) fn new(message: Message<'a>) -> Result<Self> {
        let mut control = Control([0; CONTROL_BYTES]);
        let control_bytes = write_control(&mut control, &message)?;
        Ok(Self { message, control, control_bytes })
    }

    /// Bytes of the message.
    pub(crate) fn len(&self) -> usize {
        self.message.bytes.len()
    }

    /// The result of sendmsg(2); allocates nothing.
    pub(crate) fn send(&self, socket: BorrowedFd<'_>) -> isize {
        let bytes = self.message.bytes;
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: a message header of zeroes is valid: no name, no parts, no control data.
        let mut header: libc::msghdr = unsafe { zeroed() };
        if let Some(to) = self.message.to {
            header.msg_name = to.0.as_ptr().cast_mut().cast();
            header.msg_namelen = to.0.len() as u32;
        }
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if self.control_bytes > 0 {
            header.msg_control = self.control.0.as_ptr().cast_mut().cast();
            header.msg_controllen = self.control_bytes;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: every pointer of the header leads to a buffer of the length given beside it, alive for the
        // call; the kernel only reads them.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) }
    }
}

fn write_control(control: &mut Control, message: &Message<'_>) -> Result<usize> {
    let mut used = 0;
    if message.rights.len() > RIGHTS_MAX {
        return Err(Error::new("send descriptors into a socket", Errno::EINVAL));
    }
    if !message.rights.is_empty() {
        let numbers: Vec<u8> =
            message.rights.iter().flat_map(|right| right.as_raw_fd().to_ne_bytes()).collect();
        used += put(&mut control.0[used..], libc::SCM_RIGHTS, &numbers);
    }
    if let Some(Credentials { pid, uid, gid }) = message.credentials {
        let mut bytes = pid.to_ne_bytes().to_vec();
        bytes.extend(uid.to_ne_bytes());
        bytes.extend(gid.to_ne_bytes());
        used += put(&mut control.0[used..], libc::SCM_CREDENTIALS, &bytes);
    }
    Ok(used)
}

/// Writes one control header of the socket level with its data; the result is the room it takes.
fn put(control: &mut [u8], kind: i32, data: &[u8]) -> usize {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let length = HEADER + data.len();
    control[..8].copy_from_slice(&length.to_ne_bytes());
    control[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control[12..16].copy_from_slice(&kind.to_ne_bytes());
    control[HEADER..length].copy_from_slice(data);
    length.next_multiple_of(size_of_val(&length))
}

fn ask(socket: BorrowedFd<'_>, request: libc::c_ulong, operation: &'static str) -> Result<usize> {
    let mut value = 0_i32;
    // SAFETY: the requests used here write one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) };
    done(result, operation)?;
    Ok(usize::try_from(value).unwrap_or(0))
}

/// Bytes that can be read; of a datagram socket those of the next message (SIOCINQ).
pub fn readable_bytes(socket: BorrowedFd<'_>) -> Result<usize> {
    ask(socket, libc::FIONREAD, "read the length of a receive queue")
}

/// Bytes that were written and not taken or acknowledged (SIOCOUTQ).
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Result<usize> {
    ask(socket, libc::TIOCOUTQ, "read the length of a send queue")
}

/// Bytes that were written to a TCP socket and not yet sent once (SIOCOUTQNSD).
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> Result<usize> {
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    ask(socket, SIOCOUTQNSD, "read the length of what is not sent")
}

/// Who made the connection of a Unix socket, or listens on it.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<Credentials> {
    let mut bytes = [0; size_of::<Credentials>()];
    let option = crate::socket_option::SocketOption {
        level: libc::SOL_SOCKET,
        number: libc::SO_PEERCRED,
        name: "SO_PEERCRED",
    };
    crate::socket_option::get(socket, option, &mut bytes)?;
    let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    Ok(Credentials {
        pid: i32::from_ne_bytes(word(0)),
        uid: u32::from_ne_bytes(word(4)),
        gid: u32::from_ne_bytes(word(8)),
    })
}

/// The supplementary groups of the process that made the connection of a Unix socket, or listens on it. Empty where
/// the kernel has no SO_PEERGROUPS (before Linux 4.13), or knows no process.
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
    const GROUPS_MAX: usize = 65_536;
    const SO_PEERGROUPS: i32 = 59;
    let option = crate::socket_option::SocketOption {
        level: libc::SOL_SOCKET,
        number: SO_PEERGROUPS,
        name: "SO_PEERGROUPS",
    };
    let mut bytes = vec![0; 64 * size_of::<u32>()];
    let mut result = crate::socket_option::get(socket, option, &mut bytes);
    if result.as_ref().is_err_and(|error| error.errno.0 == libc::ERANGE) {
        bytes = vec![0; GROUPS_MAX * size_of::<u32>()];
        result = crate::socket_option::get(socket, option, &mut bytes);
    }
    match result {
        Ok(length) => {
            let words = bytes[..length.min(bytes.len())].chunks_exact(size_of::<u32>());
            Ok(words.filter_map(|word| word.first_chunk().map(|word| u32::from_ne_bytes(*word))).collect())
        }
        Err(error) if [libc::ENOPROTOOPT, libc::ENODATA].contains(&error.errno.0) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The file that a Unix socket is bound to, opened with O_PATH; `None` when it is not bound to a path.
pub fn bound_file(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    const SIOCUNIXFILE: libc::c_ulong = 0x89e0;
    // SAFETY: the request takes no argument and returns a new descriptor.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE, 0) };
    if result < 0 && matches!(Errno::last().0, libc::ENOENT | libc::EINVAL) {
        return Ok(None);
    }
    owned(result, "open the file of a Unix socket").map(Some)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_is_seen_with_all_that_travels_in_it_and_stays() {
        let (left, right) = pair(libc::SOCK_SEQPACKET).unwrap();
        let rights = [left.as_fd(), right.as_fd()];
        let us = Credentials { pid: std::process::id() as i32, ..Credentials::default() };
        let message =
            Message { bytes: b"hello", rights: &rights, credentials: Some(us), ..Message::default() };
        if let Err(error) = send(left.as_fd(), &message) {
            return println!("unsupported: {error}");
        }
        rustix::net::sockopt::set_socket_passcred(&right, true).unwrap();
        for _ in 0..2 {
            let mut buffer = [0; 3];
            let peeked = peek(right.as_fd(), &mut buffer).unwrap().unwrap();
            assert_eq!((&buffer, peeked.length, peeked.truncated), (b"hel", 3, true));
            assert_eq!(peeked.rights.len(), 2);
            assert_eq!(peeked.credentials, Some(us));
        }
        assert!(peek(left.as_fd(), &mut [0; 4]).unwrap().is_none());
        assert_eq!(readable_bytes(right.as_fd()).unwrap(), 5);
        forget_messages(right.as_fd()).unwrap();
        assert!(peek(right.as_fd(), &mut [0; 4]).unwrap().is_none());
    }

    #[test]
    fn addresses_come_back_byte_for_byte() {
        let socket = create(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(local(socket.as_fd()).unwrap().body(), b"");
        assert_eq!(peer(socket.as_fd()).unwrap(), None);
        let mut address = SocketAddress((libc::AF_UNIX as u16).to_ne_bytes().to_vec());
        address.0.extend(format!("\0undying test \0 {}", std::process::id()).as_bytes());
        bind(socket.as_fd(), &address).unwrap();
        assert_eq!(local(socket.as_fd()).unwrap(), address);
        assert!(bound_file(socket.as_fd()).unwrap().is_none());
        assert!(connect(socket.as_fd(), &address).is_err());
    }
}
