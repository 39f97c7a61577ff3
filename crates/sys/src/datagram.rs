//! Receives datagrams with the credentials of their senders.
//!
//! Owns: recvmsg(2) of one datagram with SCM_CREDENTIALS.
//! Invariants: this module never opens descriptors that were sent with a datagram. The control buffer has space
//! only for the credentials, which the kernel writes first. The kernel closes descriptors that do not fit into the
//! buffer.
//! Does not: wait, or interpret data. `socket` peeks at messages with all their control data.
//!
//! Man page: unix(7), recvmsg(2)
//! Since: Linux 2.2 (SO_PASSCRED)
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Errno, Error, Result};
use crate::socket::Credentials;

/// A datagram that was removed from its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Number of bytes that were written to the caller's buffer.
    pub length: usize,
    /// Whether the datagram was longer than the buffer.
    pub is_truncated: bool,
    /// The sender; `None` for a socket without SO_PASSCRED. The pid is 0 for a sender outside our PID namespace.
    pub sender: Option<Credentials>,
}

/// One control message header with credentials.
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

/// Receives the next datagram of a socket without waiting. Returns `None` if the queue is empty.
///
/// # Errors
///
/// Returns the errors of recvmsg(2), except EAGAIN.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<Datagram>> {
    let mut control =
        Control { length: 0, level: 0, kind: 0, credentials: Credentials::default(), padding: 0 };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a message header of zeroes is valid. It contains no name, no parts and no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer of the header points to a live buffer of the length that is given in the header.
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
        // The received duplicates of the writing end are closed, so the reading end reports the end of file.
        assert_eq!(std::io::Read::read(&mut &reader, &mut [0; 1]).unwrap(), 0);
        assert_eq!(receive(right.as_fd(), &mut buffer).unwrap(), None);
    }
}
