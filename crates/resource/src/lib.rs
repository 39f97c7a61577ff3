//! Saving and restoring kernel objects: one kind, one file.
//!
//! Owns: the interfaces of descriptor kinds, state kinds and memory kinds, and their registries.
//! Invariants: a kind says what it does *before*, *inside* and *after* the pause; inside it only copies raw
//! bytes into memory that it already has. Records are versioned and carry nothing that only this run knows.
//! Does not: stop or create processes, or know where records are stored.
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
