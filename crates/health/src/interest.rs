//! The events for which an event loop waits on behalf of a state machine.
//!
//! Owns: the pair of a descriptor and the awaited readiness.
//! Does not: wait.

use std::os::fd::BorrowedFd;

/// The awaited readiness of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Interest {
    /// The descriptor is readable (EPOLLIN).
    Readable,
    /// The descriptor is writable (EPOLLOUT). A state machine awaits this event for a new connection or a full send
    /// queue.
    Writable,
}

/// A descriptor and the awaited event. Each call of `advance` may change the descriptor.
pub type Handle<'a> = (BorrowedFd<'a>, Interest);
