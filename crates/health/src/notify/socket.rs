//! Receives the messages that a program sends with sd_notify(3), through a socket.
//!
//! The supervisor starts a program with the name of the socket in NOTIFY_SOCKET. In a message, the program reports a
//! change of its state, for example that it is ready.
//!
//! Owns: the socket, and the check of senders.
//! Invariants: a message is accepted only if its sender belongs to the process tree when the message is received. File
//! descriptors in a message are closed. A program that sends `BARRIER=1` with a descriptor waits for this close. One
//! call receives a limited number of messages.
//! Does not: accept MAINPID, FDSTORE or other assignments that would give the program rights over its supervisor.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use model::Pid;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use sys::{Errno, Error, Result, datagram};
use tracee::tree;

use super::address::NotifyAddress;
use super::message::{Sign, parse};
use crate::interest::{Handle, Interest};

/// Maximum length of a message in bytes. Longer messages are ignored. systemd has the same limit, PIPE_BUF.
const MESSAGE_BYTES_MAX: usize = 4096;
/// Maximum number of messages that one call receives. Further messages wait for the next call, so that a flood of
/// messages does not delay other work.
pub const MESSAGES_PER_CALL: usize = 64;
/// A message of a process in the process tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The process that has sent the message.
    pub sender: Pid,
    /// The reports in the message, in the order of the lines.
    pub signs: Vec<Sign>,
}

/// Numbers of messages that were ignored since the socket was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ignored {
    /// Messages whose sender was not a process of the tree, or was a process that had ended and was already reaped.
    pub of_strangers: u64,
    /// Messages of more than 4096 bytes.
    pub too_long: u64,
}

/// The socket that receives the messages of one process tree.
#[derive(Debug)]
pub struct NotifySocket {
    socket: OwnedFd,
    address: NotifyAddress,
    root: Option<Pid>,
    ignored: Ignored,
}

impl NotifySocket {
    /// Creates a socket with a name in the abstract namespace. Programs in another network namespace cannot reach the
    /// socket.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if the name is in use. EINVAL if the name is empty or too long.
    pub fn bind_abstract(name: &str) -> Result<Self> {
        let address = NotifyAddress::Abstract(name.as_bytes().to_vec());
        let name = PathBuf::from(address.value());
        let failed = |errno: Errno| Error::path("make the notify socket", &name, errno);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(|errno| failed(errno.into()))?;
        sockopt::set_socket_passcred(&socket, true).map_err(|errno| failed(errno.into()))?;
        let bytes = address.to_socket_address().ok_or_else(|| failed(Errno::EINVAL))?;
        bind(&socket, &bytes).map_err(|errno| failed(errno.into()))?;
        Ok(Self { socket, address, root: None, ignored: Ignored::default() })
    }

    /// Returns the value of NOTIFY_SOCKET for the program.
    #[must_use]
    pub fn name(&self) -> OsString {
        self.address.value()
    }

    /// Sets the root of the process tree whose messages are accepted. Without a root, all messages are ignored.
    pub fn set_root(&mut self, root: Option<Pid>) {
        self.root = root;
    }

    /// Returns the descriptor and the event for which the caller waits before it calls [`Self::advance`].
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        (self.socket.as_fd(), Interest::Readable)
    }

    /// Returns the numbers of ignored messages.
    #[must_use]
    pub fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Receives up to [`MESSAGES_PER_CALL`] messages. The handle stays readable if further messages are queued.
    /// Messages without a known line are left out.
    ///
    /// # Errors
    ///
    /// The errno of recvmsg(2). The socket remains usable.
    pub fn advance(&mut self) -> Result<Vec<Message>> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let mut tree = Tree { root: self.root, members: None };
        let mut messages = Vec::new();
        for _ in 0..MESSAGES_PER_CALL {
            let Some(datagram) = datagram::receive(self.socket.as_fd(), &mut buffer)? else { break };
            let sender = Pid(datagram.sender.map_or(0, |sender| sender.pid));
            if !tree.has(sender) {
                self.ignored.of_strangers += 1;
            } else if datagram.is_truncated {
                self.ignored.too_long += 1;
            } else {
                let signs = parse(&buffer[..datagram.length]);
                messages.extend((!signs.is_empty()).then_some(Message { sender, signs }));
            }
        }
        Ok(messages)
    }
}

/// A process tree. During one call of `advance`, the list of its processes is read at most once, and only if a sender
/// is not the root.
struct Tree {
    root: Option<Pid>,
    members: Option<Vec<Pid>>,
}

impl Tree {
    fn has(&mut self, sender: Pid) -> bool {
        let Some(root) = self.root.filter(|_| sender.get() > 0) else { return false };
        if sender == root {
            return true;
        }
        let list = || tree::descendants(root).unwrap_or_default();
        self.members.get_or_insert_with(list).contains(&sender)
    }
}
