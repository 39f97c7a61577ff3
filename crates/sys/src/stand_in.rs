//! A stand-in: a short-lived process with a chosen pid and user that makes one socket call in the name of another
//! process.
//!
//! For some socket calls, the kernel records the calling process. The caller of socketpair(2), connect(2) or
//! listen(2) becomes the recorded peer of a connection (SO_PEERCRED). The caller of sendmsg(2) becomes the recorded
//! sender of a message. If the original caller no longer exists, a stand-in with the same pid and user makes the
//! call.
//!
//! Owns: the execution of a stand-in, and its end.
//! Invariants: a stand-in shares the descriptor table of this process and nothing else. A stand-in makes only
//! system calls and never returns. This module reaps the stand-in, which frees the pid.
//! Does not: give a stand-in the capabilities or security labels of the other process.
//!
//! Man page: clone3(2), unix(7)
//! Since: Linux 5.5 (`set_tid`)
//! Probe: none; the call fails with EPERM without the right to choose a pid, and with EEXIST while the pid is in
//! use
//! Fallback: the caller makes the socket call itself

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::clone::{self, CloneArguments};
use crate::error::{Errno, Error, Result};
use crate::socket::{Credentials, Message, PreparedMessage, SocketAddress};

/// An action that a stand-in performs in the name of another process.
#[derive(Clone, Copy, Debug)]
pub enum Act<'a> {
    /// Makes two connected Unix sockets, which replace two descriptors.
    Pair {
        /// Socket type: SOCK_STREAM …
        kind: i32,
        /// Descriptor that becomes one end of the connection.
        first: BorrowedFd<'a>,
        /// Descriptor that becomes the other end of the connection.
        second: BorrowedFd<'a>,
    },
    /// Calls listen(2).
    Listen {
        /// A bound socket.
        socket: BorrowedFd<'a>,
        /// Maximum number of waiting clients.
        backlog: i32,
    },
    /// Calls connect(2).
    Connect {
        /// The socket.
        socket: BorrowedFd<'a>,
        /// Destination address.
        address: &'a SocketAddress,
    },
    /// Calls sendmsg(2) for a message that fits into the queue of the socket. Fails with ENOBUFS if only a part was
    /// sent.
    Send {
        /// The socket.
        socket: BorrowedFd<'a>,
        /// The message. The credentials of the stand-in replace the credentials in the message.
        message: Message<'a>,
    },
}

/// A prepared action, whose execution does not allocate memory.
enum Step<'a> {
    Act(Act<'a>),
    Send(BorrowedFd<'a>, PreparedMessage<'a>),
}

/// Performs one action as the process `who` with these supplementary groups. Fails with EEXIST if a process has the
/// pid of `who`.
pub fn perform(who: Credentials, groups: &[u32], act: Act<'_>) -> Result<()> {
    const NAME: &str = "make a socket in the name of a process";
    let step = match act {
        Act::Send { socket, message } => {
            Step::Send(socket, PreparedMessage::new(Message { credentials: Some(who), ..message })?)
        }
        other => Step::Act(other),
    };
    let arguments = CloneArguments {
        flags: libc::CLONE_FILES as u64,
        set_tid: (&raw const who.pid) as u64,
        set_tid_size: 1,
        ..CloneArguments::default()
    };
    let failed = |errno| Error::process(NAME, model::Pid(who.pid), errno);
    // SAFETY: `run` makes only system calls. In the shared descriptor table, it changes only the descriptors that `act`
    // borrows. The pid lives during the call.
    let child = unsafe { clone::create(&arguments, || run(who, groups, &step)) }.map_err(failed)?;
    let status = clone::reap(child)?;
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        _ if !libc::WIFEXITED(status) => Err(failed(Errno(libc::EINTR))),
        errno => Err(failed(Errno(errno))),
    }
}

/// Runs the stand-in. The exit status of the stand-in is 0, or the errno of a failed system call.
fn run(who: Credentials, groups: &[u32], step: &Step<'_>) -> ! {
    // SAFETY: the system calls use numbers, and memory that `groups` and `step` borrow. This function runs in a
    // child process that never returns from this function. The raw system calls change the identity of this process
    // alone.
    unsafe {
        let (uid, gid) = (who.uid, who.gid);
        let changed = libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0;
        let done = changed && take(step);
        let status = if done { 0 } else { *libc::__errno_location() };
        loop {
            libc::syscall(libc::SYS_exit_group, status);
        }
    }
}

fn take(step: &Step<'_>) -> bool {
    let act = match step {
        Step::Send(socket, message) => {
            let sent = message.send(*socket);
            if sent >= 0 && sent as usize != message.len() {
                // SAFETY: errno belongs to this thread, the only thread of the process.
                unsafe { *libc::__errno_location() = libc::ENOBUFS };
            }
            return sent >= 0 && sent as usize == message.len();
        }
        Step::Act(act) => *act,
    };
    // SAFETY: plain system calls. The pointers point to a local array and to the borrowed address.
    unsafe {
        match act {
            Act::Pair { kind, first, second } => {
                let mut ends: [RawFd; 2] = [0; 2];
                libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) == 0
                    && place(ends[0], first.as_raw_fd())
                    && place(ends[1], second.as_raw_fd())
            }
            Act::Listen { socket, backlog } => libc::listen(socket.as_raw_fd(), backlog) == 0,
            Act::Connect { socket, address } => {
                let bytes = &address.0;
                libc::connect(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as u32) == 0
            }
            Act::Send { .. } => false,
        }
    }
}

fn place(from: RawFd, to: RawFd) -> bool {
    // SAFETY: plain numbers. `from` was just created here, and `to` is a borrowed descriptor that may be replaced.
    unsafe { libc::dup3(from, to, libc::O_CLOEXEC) >= 0 && libc::close(from) == 0 }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_pair_is_made_in_the_name_of_a_process_that_is_no_more() {
        let nothing = || crate::socket::create(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap();
        let (first, second) = (nothing(), nothing());
        let who = Credentials { pid: 4_000, uid: 1234, gid: 4321 };
        let groups = [7, 4321];
        let act = Act::Pair { kind: libc::SOCK_SEQPACKET, first: first.as_fd(), second: second.as_fd() };
        if let Err(error) = perform(who, &groups, act) {
            return println!("unsupported: {error}");
        }
        let seen = crate::socket::peer_credentials(first.as_fd()).unwrap();
        assert_eq!(seen, who);
        assert_eq!(crate::socket::peer_groups(first.as_fd()).unwrap(), groups);
        rustix::io::write(&first, b"x").unwrap();
        assert_eq!(crate::socket::readable_bytes(second.as_fd()).unwrap(), 1);
        rustix::net::sockopt::set_socket_passcred(&second, true).unwrap();
        let message = Message { bytes: b"y", ..Message::default() };
        perform(who, &groups, Act::Send { socket: first.as_fd(), message }).unwrap();
        rustix::io::read(&second, &mut [0; 1]).unwrap();
        let seen = crate::socket::peek(second.as_fd(), &mut [0; 1]).unwrap().unwrap();
        assert_eq!(seen.credentials, Some(who));
        let us = Credentials { pid: std::process::id() as i32, ..Credentials::default() };
        assert_eq!(perform(us, &[], act).unwrap_err().errno, Errno::EEXIST);
    }
}
