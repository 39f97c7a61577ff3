//! Makes socket calls. Addresses are raw bytes, and a message can carry descriptors, credentials and addresses.
//!
//! Owns: bind(2), connect(2), getsockname(2), getpeername(2), sendmsg(2), recvmsg(2) with MSG_PEEK, recv(2) for
//! discarding messages, and the ioctls that return the number of bytes in socket queues.
//! Invariants: the bytes of an address never change between the call that returned the address and the call that
//! uses the address. Every received descriptor is an `OwnedFd`.
//! Does not: interpret addresses or data.
//!
//! Man page: socket(2), recv(2), send(2), unix(7), tcp(7)
//! Since: Linux 4.20 (SIOCUNIXFILE)
//! Probe: none; `doctor` refuses older kernels
//! Fallback: none

use std::mem::{offset_of, size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::SocketFlags;

use crate::error::{Errno, Error, Result, done, owned};
use crate::netlink::word;
use crate::socket_option::{self, SocketOption};

/// Size of the largest address in bytes (struct sockaddr_storage).
const ADDRESS_BYTES_MAX: usize = 128;
/// Maximum number of descriptors that one message carries (SCM_MAX_FD).
pub const RIGHTS_MAX: usize = 253;
/// Size of the control buffer in bytes. The buffer has space for [`RIGHTS_MAX`] descriptors, credentials and a
/// destination address.
const CONTROL_BYTES: usize = 2048;

/// A socket address: the bytes of a `struct sockaddr`, family first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct SocketAddress(pub Vec<u8>);

/// Pid, uid and gid of a process, for example of the sender of a message.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// The pid of the process.
    pub pid: i32,
    /// The user id of the process.
    pub uid: u32,
    /// The group id of the process.
    pub gid: u32,
}

const _: () = assert!(size_of::<Credentials>() == 12);
const _: () = assert!(offset_of!(Credentials, gid) == 8);

/// A message that was read with MSG_PEEK and is still in its queue.
#[derive(Debug, Default)]
pub struct Peeked {
    /// The number of bytes that were copied to the buffer of the caller.
    pub length: usize,
    /// The message has more bytes than the buffer.
    pub truncated: bool,
    /// The address of the sender; empty if the sender has no address.
    pub from: SocketAddress,
    /// Duplicates of the descriptors in the message.
    pub rights: Vec<OwnedFd>,
    /// The credentials of the sender, on a socket with SO_PASSCRED.
    pub credentials: Option<Credentials>,
    /// The packet information with the destination address, on a socket with IP_PKTINFO or IPV6_RECVPKTINFO.
    pub destination: Vec<u8>,
}

impl SocketAddress {
    /// Returns the address family: AF_UNIX, AF_INET …; zero for no address.
    #[must_use]
    pub fn family(&self) -> u16 {
        self.0.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }

    /// Returns the bytes after the family. For a Unix socket, these bytes are its path or name.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.0.get(2..).unwrap_or_default()
    }
}

/// Creates a socket that is close-on-exec.
pub fn create(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd> {
    // SAFETY: plain numbers. The new descriptor has no other owner.
    let socket = unsafe { owned(libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol)) };
    socket.map_err(|errno| Error::new("create a socket", errno))
}

/// Creates two connected Unix sockets that are close-on-exec.
pub fn pair(kind: i32) -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two descriptor numbers into the array.
    let result = unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) };
    done("create a pair of sockets", result)?;
    // SAFETY: the kernel returned two new descriptors without another owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Binds a socket to an address.
pub fn bind(socket: BorrowedFd<'_>, address: &SocketAddress) -> Result<()> {
    let bytes = &address.0;
    // SAFETY: the kernel reads `len` bytes from the vector.
    let result = unsafe { libc::bind(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as u32) };
    done("bind a socket", result).map(drop)
}

/// Connects a socket to an address.
pub fn connect(socket: BorrowedFd<'_>, address: &SocketAddress) -> Result<()> {
    let bytes = &address.0;
    // SAFETY: the kernel reads `len` bytes from the vector.
    let result = unsafe { libc::connect(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as u32) };
    done("connect a socket", result).map(drop)
}

/// Returns the cookie of a socket (SO_COOKIE). No other socket gets this number until the next boot.
pub fn cookie(socket: BorrowedFd<'_>) -> Result<u64> {
    const COOKIE: SocketOption =
        SocketOption { level: libc::SOL_SOCKET, number: libc::SO_COOKIE, name: "SO_COOKIE" };
    let mut bytes = [0; 8];
    socket_option::get(socket, COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Disconnects a connected socket. In repair mode, the peer receives no packet.
pub fn disconnect(socket: BorrowedFd<'_>) -> Result<()> {
    connect(socket, &SocketAddress((libc::AF_UNSPEC as u16).to_ne_bytes().repeat(8)))
}

/// Accepts the first waiting connection.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
        .map_err(|errno| Error::new("accept a connection", errno))
}

/// Returns the local address of a socket. For an unbound Unix socket, the address contains only the family.
pub fn local(socket: BorrowedFd<'_>) -> Result<SocketAddress> {
    let mut buffer = [0_u8; ADDRESS_BYTES_MAX];
    let mut length = ADDRESS_BYTES_MAX as u32;
    // SAFETY: the kernel writes at most `length` bytes into the buffer.
    let result =
        unsafe { libc::getsockname(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), &raw mut length) };
    done("read the address of a socket", result)?;
    Ok(SocketAddress(buffer[..(length as usize).min(ADDRESS_BYTES_MAX)].to_vec()))
}

/// Returns the address of the peer of a socket; `None` when the socket is not connected.
pub fn peer(socket: BorrowedFd<'_>) -> Result<Option<SocketAddress>> {
    let mut buffer = [0_u8; ADDRESS_BYTES_MAX];
    let mut length = ADDRESS_BYTES_MAX as u32;
    // SAFETY: the kernel writes at most `length` bytes into the buffer.
    let result =
        unsafe { libc::getpeername(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), &raw mut length) };
    if result < 0 && Errno::last().0 == libc::ENOTCONN {
        return Ok(None);
    }
    done("read the address of a socket's peer", result)?;
    Ok(Some(SocketAddress(buffer[..(length as usize).min(ADDRESS_BYTES_MAX)].to_vec())))
}

/// A control buffer with the alignment that control headers need.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const _: () = assert!(size_of::<Control>() == CONTROL_BYTES);
const _: () = assert!(offset_of!(Control, 0) == 0);

/// Reads the next message, or bytes of a stream, without removing the data and without blocking. Returns `None`
/// when the queue is empty, or when the queue has no data at the peek offset of the socket (SO_PEEK_OFF).
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
    // SAFETY: every pointer of the header points to a buffer with the length that the header says. The buffers live
    // through the call.
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

/// Size in bytes of the buffer that receives skipped bytes. The buffer stays in the cache of the processor.
const SKIP_BYTES: usize = 64 * 1024;
/// Maximum number of parts of one message (UIO_MAXIOV).
const PARTS_MAX: usize = 1024;

/// Peeks into the bytes of a stream socket, and copies the bytes behind the first `skip` bytes into `bytes`. Returns
/// the number of bytes that the kernel has copied, including the skipped bytes.
pub fn peek_behind(socket: BorrowedFd<'_>, skip: usize, bytes: &mut [u8]) -> Result<usize> {
    with_peek_header(skip, bytes, |header| {
        // SAFETY: the parts of the header are valid during the call.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), header, PEEK) };
        if result >= 0 {
            return Ok(result as usize);
        }
        let errno = Errno::last();
        if errno.0 == libc::EAGAIN { Ok(0) } else { Err(Error::new("peek into a socket", errno)) }
    })
}

/// The flags of a peek.
pub(crate) const PEEK: libc::c_int = libc::MSG_PEEK | libc::MSG_DONTWAIT;

/// Calls `peek` with a message header that receives the bytes behind the first `skip` bytes into `bytes`. The header is valid
/// during the call.
pub(crate) fn with_peek_header<T>(
    skip: usize,
    bytes: &mut [u8],
    peek: impl FnOnce(&mut libc::msghdr) -> T,
) -> T {
    let mut scratch = vec![0_u8; skip.div_ceil(PARTS_MAX - 1).max(SKIP_BYTES).min(skip)];
    let mut parts = Vec::with_capacity(PARTS_MAX);
    let mut left = skip;
    while left > 0 {
        let now = left.min(scratch.len());
        parts.push(libc::iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: now });
        left -= now;
    }
    parts.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    // SAFETY: a message header of zeroes is valid: no name, no parts, no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = parts.len();
    // Every part points into `scratch` or `bytes`, which live through the call. Parts may overlap: the kernel fills one after
    // the other, and the content of `scratch` is not used.
    peek(&mut header)
}

fn read_control(header: &libc::msghdr, peeked: &mut Peeked) {
    // SAFETY: recvmsg has just filled the header. The control data is alive and contains complete control headers.
    // Each control header has as many bytes as its length says. Descriptors in the control data are new and have no
    // owner.
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
    /// The bytes of the message.
    pub bytes: &'a [u8],
    /// The destination address; `None` on a connected socket.
    pub to: Option<&'a SocketAddress>,
    /// The descriptors that the message carries, at most [`RIGHTS_MAX`].
    pub rights: &'a [BorrowedFd<'a>],
    /// The credentials that the message carries.
    pub credentials: Option<Credentials>,
}

/// Sends one message without blocking. Returns the number of bytes that were sent.
pub fn send(socket: BorrowedFd<'_>, message: &Message<'_>) -> Result<usize> {
    let sent = PreparedMessage::new(*message)?.send(socket);
    usize::try_from(sent).map_err(|_| Error::new("send into a socket", Errno::last()))
}

/// A message that can be sent with one system call, without allocation.
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

    /// Returns the number of bytes of the message.
    pub(crate) fn len(&self) -> usize {
        self.message.bytes.len()
    }

    /// Calls sendmsg(2) and returns its result. Allocates nothing.
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
        // SAFETY: every pointer of the header points to a buffer with the length that the header says. The buffers
        // live through the call, and the kernel only reads from the buffers.
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

/// Writes one control header of level SOL_SOCKET with its data. Returns the number of bytes that the header and the
/// data occupy.
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
    // SAFETY: the requests of all callers write one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) };
    done(operation, result)?;
    Ok(usize::try_from(value).unwrap_or(0))
}

/// Returns the number of bytes that can be read (SIOCINQ). For a datagram socket, counts only the next message.
pub fn readable_bytes(socket: BorrowedFd<'_>) -> Result<usize> {
    ask(socket, libc::FIONREAD, "read the length of a receive queue")
}

/// Returns the number of written bytes that the peer has not yet read or acknowledged (SIOCOUTQ).
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> Result<usize> {
    ask(socket, libc::TIOCOUTQ, "read the length of a send queue")
}

/// Returns the number of bytes that were written to a TCP socket and were never sent (SIOCOUTQNSD).
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> Result<usize> {
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    ask(socket, SIOCOUTQNSD, "read the number of unsent bytes")
}

/// Returns the credentials of the process that made the other end of a Unix connection, by connect(2), listen(2) or
/// socketpair(2) (SO_PEERCRED). For a listening socket, returns the credentials of the process that called
/// listen(2).
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<Credentials> {
    let mut bytes = [0; size_of::<Credentials>()];
    let option = SocketOption { level: libc::SOL_SOCKET, number: libc::SO_PEERCRED, name: "SO_PEERCRED" };
    socket_option::get(socket, option, &mut bytes)?;
    Ok(Credentials { pid: word(&bytes, 0) as i32, uid: word(&bytes, 4), gid: word(&bytes, 8) })
}

/// Returns the supplementary groups of the process that [`peer_credentials`] describes. The list is empty if the
/// kernel has no SO_PEERGROUPS (before Linux 4.13) or stores no such process.
pub fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>> {
    const GROUPS_MAX: usize = 65_536;
    const SO_PEERGROUPS: i32 = 59;
    let option = SocketOption { level: libc::SOL_SOCKET, number: SO_PEERGROUPS, name: "SO_PEERGROUPS" };
    let mut bytes = vec![0; 64 * size_of::<u32>()];
    let mut result = socket_option::get(socket, option, &mut bytes);
    if result.as_ref().is_err_and(|error| error.errno.0 == libc::ERANGE) {
        bytes = vec![0; GROUPS_MAX * size_of::<u32>()];
        result = socket_option::get(socket, option, &mut bytes);
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

/// Opens the file to which a Unix socket is bound (with O_PATH). Returns `None` when the socket is not bound to a
/// path.
pub fn bound_file(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    const SIOCUNIXFILE: libc::c_ulong = 0x89e0;
    // SAFETY: the request takes no argument and returns a new descriptor.
    match unsafe { owned(libc::ioctl(socket.as_raw_fd(), SIOCUNIXFILE, 0)) } {
        Ok(file) => Ok(Some(file)),
        Err(Errno::ENOENT | Errno::EINVAL) => Ok(None),
        Err(errno) => Err(Error::new("open the file of a Unix socket", errno)),
    }
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
