//! Messages to the service manager that has started this program.
//!
//! Owns: the environment of the protocol, and the messages that `undying` itself sends.
//! Invariants: without a service manager every call succeeds and does nothing; no call waits.
//! Does not: change the environment. A caller removes [`ServiceManager::VARIABLES`] from what its children get.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sendto, socket_with};
use sys::{Errno, Error, Result};

use super::address::{AddressError, NOTIFY_SOCKET, NotifyAddress, WATCHDOG_PID, WATCHDOG_USEC};

/// Bytes of a status text that are sent: what fits a message of PIPE_BUF bytes with room for its name.
const STATUS_BYTES_MAX: usize = 1024;

/// The service manager, if this program was started by one with `Type=notify`.
#[derive(Debug)]
pub struct ServiceManager {
    connection: Option<(OwnedFd, NotifyAddress)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The variables that children must not get: their messages would count as ours.
    pub const VARIABLES: [&'static str; 3] = [NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID];

    /// The service manager that the environment names.
    ///
    /// # Errors
    ///
    /// That NOTIFY_SOCKET has another form than sd_notify(3) knows; that there is no socket to send from.
    pub fn from_environment() -> std::result::Result<Self, ManagerError> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// The service manager that these variables name.
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

    /// Whether there is a service manager.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.connection.is_some()
    }

    /// Reports that this program has started up.
    ///
    /// # Errors
    ///
    /// What sendto(2) reports; EAGAIN if the queue of the service manager is full: send it again later.
    pub fn ready(&self) -> Result<()> {
        self.send("READY=1")
    }

    /// Reports that this program is about to end.
    ///
    /// # Errors
    ///
    /// As [`ServiceManager::ready`].
    pub fn stopping(&self) -> Result<()> {
        self.send("STOPPING=1")
    }

    /// Reports a text of one line; control characters become spaces, and it is cut at 1024 bytes.
    ///
    /// # Errors
    ///
    /// As [`ServiceManager::ready`].
    pub fn status(&self, text: &str) -> Result<()> {
        let cut = text.floor_char_boundary(STATUS_BYTES_MAX);
        let line: String = text[..cut].chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
        self.send(&format!("STATUS={line}"))
    }

    /// The time between two calls of [`ServiceManager::ping`], at most; half of it is usual. `None` if the service
    /// manager expects none from this process.
    #[must_use]
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that this program is alive.
    ///
    /// # Errors
    ///
    /// As [`ServiceManager::ready`].
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

/// Why the service manager cannot be reached.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManagerError {
    /// NOTIFY_SOCKET is not understood.
    #[error("NOTIFY_SOCKET: {0}")]
    Address(#[from] AddressError),
    /// There is no socket to send from.
    #[error(transparent)]
    Socket(#[from] Error),
}
