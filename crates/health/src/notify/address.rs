//! The environment variables of sd_notify(3), and the address in NOTIFY_SOCKET.
//!
//! Owns: the names of the variables, and the two forms of an address: a path and `@name`.
//! Does not: open a socket.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

/// The variable that contains the address of the socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The variable that contains the maximum time between two keep-alive messages, in microseconds.
pub const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// The variable that contains the pid of the process that sends the keep-alive messages.
pub const WATCHDOG_PID: &str = "WATCHDOG_PID";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NotifyAddress {
    /// A name in the abstract namespace. Each network namespace has its own abstract names.
    Abstract(Vec<u8>),
    /// The path of a socket file.
    Path(PathBuf),
}

/// The reason why a text is not an address of a notify socket.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// The text is neither an absolute path nor `@` with a name.
    #[error("{0:?} is not the address of an sd_notify(3) socket: the first character is neither / nor @")]
    Form(OsString),
    /// The name is empty, or too long for a socket address.
    #[error(
        "{0:?} is not the address of an sd_notify(3) socket: the name is empty, or longer than 107 bytes"
    )]
    Length(OsString),
}

impl NotifyAddress {
    pub(super) fn parse(text: &OsStr) -> Result<Self, AddressError> {
        let address = match text.as_bytes() {
            [b'@', name @ ..] => Self::Abstract(name.to_vec()),
            [b'/', ..] => Self::Path(PathBuf::from(text)),
            _ => return Err(AddressError::Form(text.to_owned())),
        };
        match address.to_socket_address() {
            Some(_) => Ok(address),
            None => Err(AddressError::Length(text.to_owned())),
        }
    }

    pub(super) fn value(&self) -> OsString {
        match self {
            Self::Abstract(name) => OsString::from_vec([b"@", name.as_slice()].concat()),
            Self::Path(path) => path.clone().into_os_string(),
        }
    }

    /// Converts the address to the form of the kernel. Returns `None` if the name is empty or too long.
    pub(super) fn to_socket_address(&self) -> Option<SocketAddrUnix> {
        match self {
            Self::Abstract(name) if name.is_empty() => None,
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name).ok(),
            Self::Path(path) => SocketAddrUnix::new(path).ok(),
        }
    }
}
