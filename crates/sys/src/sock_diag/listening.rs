//! Finds listening sockets.
//!
//! Owns: the requests for all listening TCP, MPTCP and Unix sockets of the network namespace of this process.
//! Does not: find the process that holds a socket; `/proc/PID/fd` shows the process.

use std::collections::HashSet;

use model::Inode;

use super::{ANY_SOCKET, LISTENING, NOT_LISTED, SockDiag, inet, read_tcp_socket, unless};
use crate::error::Result;
use crate::netlink::{Attributes, DUMP};

/// Request attribute for a protocol number above 255 (INET_DIAG_REQ_PROTOCOL).
const PROTOCOL: u16 = 3;
/// Types of Unix sockets that accept connections.
const CONNECTING_KINDS: [i32; 2] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];

impl SockDiag {
    /// Returns the inodes of all TCP, MPTCP and Unix sockets in state LISTEN. Kinds of sockets that the kernel
    /// cannot list are left out.
    ///
    /// # Errors
    ///
    /// Fails if the kernel can list none of these kinds of sockets.
    pub fn listening(&self) -> Result<HashSet<Inode>> {
        let mut found = HashSet::new();
        let mut outcomes = vec![self.listening_unix(&mut found)];
        for family in [libc::AF_INET, libc::AF_INET6] {
            for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_MPTCP] {
                outcomes.push(self.listening_inet(family, protocol, &mut found));
            }
        }
        match outcomes.iter().any(Result::is_ok) {
            true => Ok(found),
            false => outcomes.swap_remove(0).map(|()| found),
        }
    }

    fn listening_unix(&self, found: &mut HashSet<Inode>) -> Result<()> {
        let sockets = self.unix_sockets(1 << LISTENING)?;
        let connects = |kind: u8| CONNECTING_KINDS.contains(&i32::from(kind));
        found.extend(sockets.iter().filter(|socket| connects(socket.kind)).map(|socket| socket.inode));
        Ok(())
    }

    fn listening_inet(&self, family: i32, protocol: i32, found: &mut HashSet<Inode>) -> Result<()> {
        let short = u8::try_from(protocol);
        let mut body =
            inet(family, short.map_or(libc::IPPROTO_RAW, i32::from), 0, 1 << LISTENING, &ANY_SOCKET);
        if short.is_err() {
            body.extend(Attributes::default().bytes(PROTOCOL, &protocol.to_ne_bytes()).0);
        }
        let outcome = self.exchange(DUMP, &body, |message| {
            let socket = read_tcp_socket(message).filter(|socket| socket.state == LISTENING);
            found.extend(socket.map(|socket| socket.inode).filter(|inode| *inode != Inode(0)));
            true
        });
        // The kernel has no MPTCP sockets, or cannot list MPTCP sockets.
        unless(if short.is_err() { &NOT_LISTED } else { &[] }, outcome).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::inode;
    use super::*;

    #[test]
    fn listeners_of_every_kind_are_found_and_others_are_not() {
        let diag = SockDiag::open().unwrap();
        let four = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(four.local_addr().unwrap()).unwrap();
        let six = std::net::TcpListener::bind("[::1]:0").ok();
        let folder = std::env::temp_dir().join(format!("undying-listening-{}", std::process::id()));
        let unix = std::os::unix::net::UnixListener::bind(&folder).unwrap();
        std::fs::remove_file(&folder).unwrap();
        let listening = diag.listening().unwrap();
        assert!(listening.contains(&inode(&four)) && listening.contains(&inode(&unix)));
        assert!(six.is_none_or(|six| listening.contains(&inode(&six))));
        assert!(!listening.contains(&inode(&client)));
    }

    #[test]
    fn a_listener_for_connections_over_several_paths_is_found() {
        let socket = match crate::socket::create(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) {
            Ok(socket) => socket,
            Err(error) => return println!("unsupported: {error}"),
        };
        rustix::net::listen(&socket, 1).unwrap();
        assert!(SockDiag::open().unwrap().listening().unwrap().contains(&inode(&socket)));
    }
}
