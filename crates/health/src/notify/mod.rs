//! The receiver and the sender of the protocol sd_notify(3).
//!
//! Owns: the two sides, the address of the socket and the lines of a message.
//! Invariants: neither side blocks.
//! Does not: decide about the consequences of a message.
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
