//! Saves and restores kernel objects. A kind is the code for one type of kernel object, in a file of its own: a
//! *descriptor kind* for open file descriptions (short: *descriptions*), a *state kind* for state of processes and
//! threads, a *memory kind* for mappings. The *restorer* is the process that restores.
//!
//! Owns: the interfaces and the registries of descriptor kinds, state kinds and memory kinds.
//! Invariants: each kind has steps *before*, *inside* and *after* the pause, in which all threads of the program are
//! stopped. Inside the pause, a kind only copies raw bytes into allocated memory. Records have versions, and contain
//! no state of the running `undying` process.
//! Does not: stop or create processes, or decide where records are stored.
#![forbid(unsafe_code)]

pub mod error;
pub mod fd;
pub mod files;
pub mod memory;
pub mod obstacle;
mod opener;
pub mod shared;
pub mod state;
mod support;

pub use error::{ResourceError, Result, decode};
pub use obstacle::Obstacle;
pub use opener::Opener;
pub use shared::Shared;
