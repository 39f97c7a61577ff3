//! Options that a program sets on a socket before bind(2).
//!
//! Owns: the list of options that are copied to a held socket when the socket is handed to a program.
//! Invariants: an option is set only if its value differs. An option that one of the two sockets lacks is not set.
//! Does not: copy options that affect the address of a socket. Sockets that differ in such options are not handed over.

use std::os::fd::BorrowedFd;

use sys::socket_option::{self, SocketOption};

/// Size in bytes of the largest value (`struct timeval`).
const VALUE_BYTES: usize = 16;

/// Options whose values are copied unchanged.
const COPIED: &[SocketOption] = &[
    option(libc::SOL_SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR"),
    option(libc::SOL_SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT"),
    option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE"),
    option(libc::SOL_SOCKET, libc::SO_LINGER, "SO_LINGER"),
    option(libc::SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE"),
    option(libc::SOL_SOCKET, libc::SO_PASSCRED, "SO_PASSCRED"),
    option(libc::SOL_SOCKET, libc::SO_PRIORITY, "SO_PRIORITY"),
    option(libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT"),
    option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, "SO_RCVTIMEO"),
    option(libc::SOL_SOCKET, libc::SO_SNDTIMEO, "SO_SNDTIMEO"),
    option(libc::IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY"),
    option(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, "TCP_DEFER_ACCEPT"),
    option(libc::IPPROTO_TCP, libc::TCP_FASTOPEN, "TCP_FASTOPEN"),
    option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE"),
    option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL"),
    option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT"),
    option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT"),
    option(libc::IPPROTO_IP, libc::IP_TOS, "IP_TOS"),
    option(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, "IPV6_TCLASS"),
];

/// Buffer sizes. getsockopt(2) returns twice the value that was set.
const DOUBLED: &[SocketOption] = &[
    option(libc::SOL_SOCKET, libc::SO_RCVBUF, "SO_RCVBUF"),
    option(libc::SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF"),
];

const fn option(level: i32, number: i32, name: &'static str) -> SocketOption {
    SocketOption { level, number, name }
}

/// Copies the options that differ from one socket to another socket. An option that the kernel refuses keeps its value.
pub(crate) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    for option in COPIED {
        let (mut wanted, mut present) = ([0; VALUE_BYTES], [0; VALUE_BYTES]);
        let lengths =
            (socket_option::get(from, *option, &mut wanted), socket_option::get(to, *option, &mut present));
        if let (Ok(length), Ok(_)) = lengths
            && wanted != present
        {
            let _ = socket_option::set(to, *option, &wanted[..length]);
        }
    }
    for option in DOUBLED {
        let values = (socket_option::get_int(from, *option), socket_option::get_int(to, *option));
        if let (Ok(wanted), Ok(present)) = values
            && wanted != present
        {
            let _ = socket_option::set_int(to, *option, wanted / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_differs_is_copied() {
        let sockets = [(); 2].map(|()| sys::socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap());
        let [from, to] = sockets.each_ref().map(|socket| socket.as_fd());
        for option in [COPIED[0], COPIED[1], COPIED[2], COPIED[10]] {
            socket_option::set_int(from, option, 1).unwrap();
        }
        socket_option::set_int(from, COPIED[13], 77).unwrap();
        socket_option::set_int(from, DOUBLED[0], 20_000).unwrap();
        copy(from, to);
        for option in COPIED.iter().chain(DOUBLED) {
            let values = [from, to].map(|socket| {
                let mut value = [0; VALUE_BYTES];
                socket_option::get(socket, *option, &mut value).map(|_| value).ok()
            });
            assert_eq!(values[0], values[1], "{}", option.name);
        }
    }
}
