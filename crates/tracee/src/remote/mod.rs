//! System calls executed by a stopped thread of a subject, with a way home.
//!
//! Owns: a module for each part: the session, chains of calls, descriptors that stay open, the memory for it all.
//! Invariants: before the first register changes, a signal frame with the thread's whole context lies in
//! memory the thread does not use, and the return address leads to its own rt_sigreturn; whenever this program
//! dies, the thread runs the call to its end and comes back by itself.
//! Does not: build new processes; `stub` does, without the need for a way home.

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
