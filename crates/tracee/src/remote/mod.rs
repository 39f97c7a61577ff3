//! System calls executed by a stopped thread of a subject, with a restore frame.
//!
//! Owns: a module for each part: the session, chains of calls, descriptors that stay open, the memory for all of it.
//! Invariants: before the first register changes, a signal frame with the whole context of the thread is in memory that
//! the thread does not use, and the return address leads to rt_sigreturn(2). If this program dies, the thread finishes
//! the call and returns to its former state by itself.
//! Does not: build new processes; `stub` does, and needs no restore frame.

mod batch;
mod chain;
mod error;
mod gadgets;
pub(crate) mod home;
mod known;
mod layout;
mod opened;
mod place;
mod session;

pub use batch::Batch;
pub use chain::Query;
pub use error::RemoteError;
pub use gadgets::Gadgets;
pub use known::{KnownThread, RemoteContext};
pub use layout::{DATA_BYTES, Room};
pub use place::Places;
pub use session::RemoteSession;

pub use crate::procfs::SignalSets;
