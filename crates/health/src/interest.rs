//! What an event loop waits for.
//!
//! Owns: the pair of a descriptor and the readiness that a state machine waits for.
//! Does not: wait.

use std::os::fd::BorrowedFd;

/// The readiness of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Interest {
    /// EPOLLIN.
    Readable,
    /// EPOLLOUT: a connection in progress, or a full send queue.
    Writable,
}

/// A descriptor, and the awaited event. It may be another descriptor after each call of `advance`.
pub type Handle<'a> = (BorrowedFd<'a>, Interest);
