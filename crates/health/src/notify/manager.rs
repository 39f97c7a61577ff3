//! Messages to the service manager that has started this program.
//!
//! Owns: the environment variables of the protocol, and the messages that `undying` itself sends.
//! Invariants: without a service manager, every call succeeds and does nothing. No call blocks.
//! Does not: change the environment. A caller removes [`ServiceManager::VARIABLES`] from the environment of its
//! children.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use sys::{Errno, Error, Result};

use super::address::{AddressError, NOTIFY_SOCKET, NotifyAddress, WATCHDOG_PID, WATCHDOG_USEC};

/// Maximum length of a sent status text in bytes. The text and its name fit into a message of PIPE_BUF bytes.
const STATUS_BYTES_MAX: usize = 1024;

/// The connection to the service manager, if a service manager with `Type=notify` has started this program.
#[derive(Debug)]
pub struct ServiceManager {
    connection: Option<(OwnedFd, NotifyAddress)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The variables that children must not inherit. The service manager would accept their messages as messages of
    /// `undying`.
    pub const VARIABLES: [&'static str; 3] = [NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID];

    /// Connects to the service manager that the environment names.
    ///
    /// # Errors
    ///
    /// [`ManagerError::Address`] if NOTIFY_SOCKET is not an address of sd_notify(3). [`ManagerError::Socket`] if
    /// socket(2) fails.
    pub fn from_environment() -> std::result::Result<Self, ManagerError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Connects to the service manager that the variables name.
    pub(super) fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> std::result::Result<Self, ManagerError> {
        let connection = match variable(NOTIFY_SOCKET).filter(|text| !text.is_empty()) {
            Some(text) => {
                let address = NotifyAddress::parse(&text)?;
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
                    .map_err(|errno| Error::new("make a socket for the service manager", errno))?;
                Some((socket, address))
            }
            None => None,
        };
        let number = |name: &str| variable(name).as_deref().and_then(OsStr::to_str)?.parse::<u64>().ok();
        let is_for_us =
            variable(WATCHDOG_PID).is_none() || number(WATCHDOG_PID) == Some(std::process::id().into());
        let watchdog = number(WATCHDOG_USEC).filter(|usec| *usec > 0 && is_for_us && connection.is_some());
        Ok(Self { connection, watchdog: watchdog.map(Duration::from_micros) })
    }

    /// Reports whether a service manager is present.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.connection.is_some()
    }

    /// Reports to the service manager that this program has started.
    ///
    /// # Errors
    ///
    /// The errno of sendto(2). EAGAIN means that the queue of the service manager is full: repeat the call later.
    pub fn ready(&self) -> Result<()> {
        self.send("READY=1")
    }

    /// Reports to the service manager that this program is about to exit.
    ///
    /// # Errors
    ///
    /// The same errors as for [`ServiceManager::ready`].
    pub fn stopping(&self) -> Result<()> {
        self.send("STOPPING=1")
    }

    /// Sends a status text of one line. Control characters become spaces, and the text is truncated to 1024 bytes.
    ///
    /// # Errors
    ///
    /// The same errors as for [`ServiceManager::ready`].
    pub fn status(&self, text: &str) -> Result<()> {
        let cut = text.floor_char_boundary(STATUS_BYTES_MAX);
        let line: String = text[..cut].chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
        self.send(&format!("STATUS={line}"))
    }

    /// Returns the maximum time between two calls of [`ServiceManager::ping`]. Callers usually call after half of this
    /// time. Returns `None` if the service manager expects no such calls from this process.
    #[must_use]
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports to the service manager that this program is alive.
    ///
    /// # Errors
    ///
    /// The same errors as for [`ServiceManager::ready`].
    pub fn ping(&self) -> Result<()> {
        self.send("WATCHDOG=1")
    }

    fn send(&self, message: &str) -> Result<()> {
        let Some((socket, address)) = &self.connection else { return Ok(()) };
        let failed = |errno: Errno| {
            Error::path("report to the service manager at", PathBuf::from(address.value()), errno)
        };
        let to = address.to_socket_address().ok_or_else(|| failed(Errno::EINVAL))?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendto(socket, message.as_bytes(), flags, &to).map(drop).map_err(|errno| failed(errno.into()))
    }
}

/// The reason why the service manager cannot be reached.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManagerError {
    /// NOTIFY_SOCKET does not contain a valid address.
    #[error("NOTIFY_SOCKET: {0}")]
    Address(#[from] AddressError),
    /// The socket for sending cannot be created.
    #[error(transparent)]
    Socket(#[from] Error),
}
