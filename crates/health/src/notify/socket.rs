//! The socket that programs report to.
//!
//! Owns: the socket, its file, which senders count.
//! Invariants: a message counts only if its sender is a process of the tree of the root when the message is received;
//! descriptors that come with a message are closed, which also answers `BARRIER=1`; a call takes a bounded number of
//! messages.
//! Does not: accept MAINPID, FDSTORE or other assignments that would give the program rights over its supervisor.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use model::Pid;
use rustix::io::Errno as RawErrno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use sys::{Errno, Error, Result, datagram};
use tracee::tree;

use super::address::NotifyAddress;
use super::message::{Sign, parse};
use crate::interest::{Handle, Interest};

/// Bytes of a message; a longer one is ignored (systemd has the same limit, PIPE_BUF).
const MESSAGE_BYTES_MAX: usize = 4096;
/// Messages that one call takes, at most: others wait for the next call, so that a flood delays nothing else.
pub const MESSAGES_PER_CALL: usize = 64;
/// Any user may send: a component may run as another user than its supervisor, and strangers are ignored.
const MODE: u32 = 0o666;

/// What a process of the tree has reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The process.
    pub sender: Pid,
    /// What it reports, in its order.
    pub signs: Vec<Sign>,
}

/// Messages that were ignored, since the socket was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ignored {
    /// Their sender was no process of the tree, or had ended and was reaped.
    pub of_strangers: u64,
    /// They were longer than 4096 bytes.
    pub too_long: u64,
}

/// The receiver of the messages of one process tree.
#[derive(Debug)]
pub struct NotifySocket {
    socket: OwnedFd,
    address: NotifyAddress,
    root: Option<Pid>,
    ignored: Ignored,
}

impl NotifySocket {
    /// A socket with a name in the abstract namespace. Programs in another network namespace cannot reach it.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if the name is taken; EINVAL if it is empty or too long.
    pub fn bind_abstract(name: &str) -> Result<Self> {
        Self::bind(NotifyAddress::Abstract(name.as_bytes().to_vec()))
    }

    /// A socket with a file, which is removed again. A file of a socket that no process has open is replaced.
    ///
    /// # Errors
    ///
    /// EADDRINUSE if there is another file; EINVAL if the path is too long; what bind(2) reports.
    pub fn bind_path(path: &Path) -> Result<Self> {
        let mut outcome = Self::bind(NotifyAddress::Path(path.to_owned()));
        if outcome.as_ref().is_err_and(|error| error.errno.0 == RawErrno::ADDRINUSE.raw_os_error())
            && is_abandoned(path)
        {
            fs::remove_file(path).map_err(|error| Error::path("remove", path, error))?;
            outcome = Self::bind(NotifyAddress::Path(path.to_owned()));
        }
        let socket = outcome?;
        fs::set_permissions(path, Permissions::from_mode(MODE))
            .map_err(|error| Error::path("set the mode of", path, error))?;
        Ok(socket)
    }

    fn bind(address: NotifyAddress) -> Result<Self> {
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

    /// The value of NOTIFY_SOCKET for the program.
    #[must_use]
    pub fn name(&self) -> OsString {
        self.address.value()
    }

    /// Messages of this process and its descendants count from now on; without a root none does.
    pub fn set_root(&mut self, root: Option<Pid>) {
        self.root = root;
    }

    /// What is waited for.
    #[must_use]
    pub fn handle(&self) -> Handle<'_> {
        (self.socket.as_fd(), Interest::Readable)
    }

    /// How many messages were ignored.
    #[must_use]
    pub fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// The messages that have come, at most [`MESSAGES_PER_CALL`]; the handle stays readable if there are more. Those
    /// without a known line are left out.
    ///
    /// # Errors
    ///
    /// What recvmsg(2) reports. The socket can be used further.
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

impl Drop for NotifySocket {
    fn drop(&mut self) {
        if let NotifyAddress::Path(path) = &self.address {
            // A directory that was removed meanwhile has taken it along.
            let _gone_already = fs::remove_file(path);
        }
    }
}

/// The processes of a tree, listed once a call, and only if a sender is not the root.
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

/// Whether the file is a socket that no process has open.
fn is_abandoned(path: &Path) -> bool {
    let Some(address) = NotifyAddress::Path(path.to_owned()).to_socket_address() else { return false };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None) else { return false };
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| {
        use std::os::unix::fs::FileTypeExt;
        metadata.file_type().is_socket()
    });
    is_socket && connect(&socket, &address) == Err(RawErrno::CONNREFUSED)
}
