//! The variables of the protocol, and the address in NOTIFY_SOCKET.
//!
//! Owns: their names; the two forms of an address, a path and `@name`.
//! Does not: open a socket.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::net::SocketAddrUnix;

/// The variable that names the socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The variable with the time between two keep-alive messages, at most, in microseconds.
pub const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// The variable with the pid of the process that sends them.
pub const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Where a notify socket is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NotifyAddress {
    /// A name in the abstract namespace, which belongs to the network namespace.
    Abstract(Vec<u8>),
    /// A file.
    Path(PathBuf),
}

/// Why a text is no address of a notify socket.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// It is neither an absolute path nor `@` and a name.
    #[error("{0:?} is no socket of sd_notify(3): it begins with neither / nor @")]
    Form(OsString),
    /// It is too long for the address of a socket, or empty behind the `@`.
    #[error("{0:?} is no socket of sd_notify(3): the name is empty, or longer than 107 bytes")]
    Length(OsString),
}

impl NotifyAddress {
    /// Reads the value of NOTIFY_SOCKET.
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

    /// The value of NOTIFY_SOCKET for it.
    pub(super) fn value(&self) -> OsString {
        match self {
            Self::Abstract(name) => OsString::from_vec([b"@", name.as_slice()].concat()),
            Self::Path(path) => path.clone().into_os_string(),
        }
    }

    /// The form that the kernel takes.
    pub(super) fn to_socket_address(&self) -> Option<SocketAddrUnix> {
        match self {
            Self::Abstract(name) if name.is_empty() => None,
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name).ok(),
            Self::Path(path) => SocketAddrUnix::new(path).ok(),
        }
    }
}
