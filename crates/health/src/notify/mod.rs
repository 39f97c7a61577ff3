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

pub use address::{AddressError, NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC};
pub use manager::{ManagerError, ServiceManager};
pub use message::Sign;
pub use socket::{Ignored, MESSAGES_PER_CALL, Message, NotifySocket};

#[cfg(test)]
mod tests;
