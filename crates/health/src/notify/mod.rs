//! The protocol of sd_notify(3), as its receiver and as its sender.
//!
//! Owns: the two sides, and what they share: the address of the socket and the lines of a message.
//! Invariants: neither side waits.
//! Does not: decide what follows from a message.
//!
//! Source: sd_notify(3), and `$NOTIFY_SOCKET` in systemd.exec(5).

mod address;
mod manager;
mod message;
mod socket;

pub use address::AddressError;
pub use manager::{ManagerError, ServiceManager};
pub use message::Sign;
pub use socket::{Ignored, MESSAGES_PER_CALL, Message, NotifySocket};

/// The variable that names the socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The variable with the time between two keep-alive messages, at most, in microseconds.
pub const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// The variable with the pid of the process that sends them.
pub const WATCHDOG_PID: &str = "WATCHDOG_PID";

#[cfg(test)]
mod tests;
