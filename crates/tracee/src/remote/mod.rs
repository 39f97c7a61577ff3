//! Makes a stopped thread of a subject execute system calls, protected by a restore frame.
//!
//! Owns: one module for each part: sessions, chains of calls, opened descriptors, and the memory for all of
//! these.
//! Invariants: a restore frame is written before the first register changes. The frame is in memory that the thread
//! does not use, and each call returns to rt_sigreturn(2). If this program dies, the thread finishes the call and
//! restores its former state by itself.
//! Does not: create processes; `stub` does, and needs no restore frame.

mod batch;
mod chain;
mod error;
mod gadgets;
mod known;
mod layout;
mod opened;
mod place;
pub(crate) mod restore_frame;
mod session;

pub use batch::Batch;
pub use chain::Query;
pub use error::RemoteError;
pub use gadgets::Gadgets;
pub use known::{KnownThread, RemoteContext};
pub use layout::{DATA_BYTES, SessionCapacity};
pub use place::Places;
pub use session::RemoteSession;

pub use crate::procfs::SignalSets;
