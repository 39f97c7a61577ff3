//! Datagrams with the credentials of their senders.
//!
//! Owns: recvmsg(2) of one datagram with SCM_CREDENTIALS.
//! Invariants: descriptors that travel with a datagram are never opened here. The control buffer has room for the
//! credentials alone, which the kernel writes first, and the kernel closes what does not fit.
//! Does not: wait, or interpret data. `socket` peeks at messages with all that travels in them.
//!
//! Man page: unix(7), recvmsg(2)
//! Since: Linux 2.2 (SO_PASSCRED)
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Errno, Error, Result};
use crate::socket::Credentials;

/// A datagram that was taken out of its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Bytes of it that are in the caller's buffer.
    pub length: usize,
    /// The datagram had more bytes than the buffer.
    pub is_truncated: bool,
    /// The sender, on a socket with SO_PASSCRED. The pid is 0 for a sender outside of our PID namespace.
    pub sender: Option<Credentials>,
}

/// One control header with credentials.
#[repr(C, align(8))]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    credentials: Credentials,
    padding: u32,
}

const _: () = assert!(size_of::<Control>() == 32);
const _: () = assert!(offset_of!(Control, credentials) == 16);

/// Takes the next datagram of a socket, without waiting; `None` when there is none.
///
/// # Errors
///
/// What recvmsg(2) reports, EAGAIN apart.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<Datagram>> {
    let mut control =
        Control { length: 0, level: 0, kind: 0, credentials: Credentials::default(), padding: 0 };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a message header of zeroes is valid: no name, no parts, no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer of the header leads to a buffer of the length given beside it, alive for the call.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    if result < 0 {
        let errno = Errno::last();
        return if errno == Errno::EAGAIN { Ok(None) } else { Err(Error::new("receive a datagram", errno)) };
    }
    let has_sender = (control.level, control.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
        && control.length >= offset_of!(Control, credentials) + size_of::<Credentials>();
    Ok(Some(Datagram {
        length: result as usize,
        is_truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        sender: has_sender.then_some(control.credentials),
    }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::socket::{Message, pair, send};

    #[test]
    fn a_datagram_comes_with_its_sender_and_without_its_descriptors() {
        let (left, right) = pair(libc::SOCK_DGRAM).unwrap();
        rustix::net::sockopt::set_socket_passcred(&right, true).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let rights = [writer.as_fd(), writer.as_fd()];
        send(left.as_fd(), &Message { bytes: b"hello", rights: &rights, ..Message::default() }).unwrap();
        drop(writer);
        let mut buffer = [0; 3];
        let datagram = receive(right.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer, datagram.length, datagram.is_truncated), (b"hel", 3, true));
        assert_eq!(datagram.sender.map(|sender| sender.pid), Some(std::process::id() as i32));
        // The end of the pipe that travelled is closed: the other end sees the end of the file.
        assert_eq!(std::io::Read::read(&mut &reader, &mut [0; 1]).unwrap(), 0);
        assert_eq!(receive(right.as_fd(), &mut buffer).unwrap(), None);
    }
}
