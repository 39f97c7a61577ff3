//! Saving and restoring kernel objects, one file per kind.
//!
//! Owns: the interfaces of descriptor kinds, state kinds and memory kinds, and their registries.
//! Invariants: a kind has steps *before*, *inside* and *after* the pause; inside it, a kind only copies raw bytes
//! into allocated memory. Records are versioned and contain no state of the present run.
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
