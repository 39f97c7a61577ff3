//! The data that `undying status` shows about channels, and the data that a restore receives.
//!
//! Owns: plain data types.
//! Does not: change anything.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::{Inode, Tid};

use crate::id::ComponentId;

/// The protection of clients against the death of a component at one of its addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// `L0`: the listening socket stays open, with its queued connections. New connections of any client queue.
    Listener,
    /// `L1`: no listening socket is held. Callers that are components of this guardian wait for the component. Other
    /// callers are refused.
    Callers,
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Listener => "L0",
            Self::Callers => "L1",
        })
    }
}

/// An address of a component.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldListener {
    /// The address: `127.0.0.1:80`, `[::]:80`, `/path` or `@abstract`. Control characters are escaped.
    pub local: String,
    /// `tcp`, `tcp6`, `unix` or `unix-seqpacket`; empty for an address without a held socket.
    pub kind: &'static str,
    /// The protection of clients of this address.
    pub level: Level,
    /// Whether the current incarnation has the socket open. Otherwise connections queue and are not served.
    pub is_taken: bool,
}

/// A caller that waits for a provider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingCaller {
    /// The component that calls.
    pub caller: ComponentId,
    /// The calling thread.
    pub thread: Tid,
    /// The component for which the caller waits.
    pub provider: ComponentId,
    /// The target address of the call, in the form of [`HeldListener::local`].
    pub target: String,
    /// The time since the beginning of the wait.
    pub waited: Duration,
}

/// A duplicate of a held socket. A restore passes the socket to the program, and a checkpoint records the socket as
/// inherited.
#[derive(Debug)]
pub struct InheritedListener {
    /// The device of the socket.
    pub device: u64,
    /// The inode of the socket.
    pub inode: Inode,
    /// The duplicate, with the close-on-exec flag.
    pub socket: OwnedFd,
}
