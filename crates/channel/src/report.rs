//! What `status` shows of channels, and what a restore gets.
//!
//! Owns: plain data.
//! Does not: change anything.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::{Inode, Tid};

use crate::id::ComponentId;

/// What callers of an address notice of the death of its component.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// `L0`: the listener is kept, with the connections that wait in it. New connections of any client queue.
    Listener,
    /// `L1`: no listener is held. Callers that are components of this guardian wait for one; others are refused.
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
    /// `127.0.0.1:80`, `[::]:80`, `/path`, `@abstract`; control characters are escaped.
    pub local: String,
    /// `tcp`, `tcp6`, `unix`, `unix-seqpacket`; empty for an address without a listener.
    pub kind: &'static str,
    /// What its callers notice.
    pub level: Level,
    /// The present incarnation has it. Until then, connections wait without being served.
    pub is_taken: bool,
}

/// A caller that waits for a provider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingCaller {
    /// The component that calls.
    pub caller: ComponentId,
    /// Its thread.
    pub thread: Tid,
    /// The component that it waits for.
    pub provider: ComponentId,
    /// The address that it calls, as in [`HeldListener::local`].
    pub target: String,
    /// How long it has waited.
    pub waited: Duration,
}

/// A duplicate of a held listener, for a restore or a checkpoint that takes it as inherited.
#[derive(Debug)]
pub struct InheritedListener {
    /// Device of the socket.
    pub device: u64,
    /// Inode of the socket.
    pub inode: Inode,
    /// The duplicate, close-on-exec.
    pub socket: OwnedFd,
}
