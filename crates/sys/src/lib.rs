//! The kernel's interfaces, one module each; the only crate with unsafe code.
//!
//! Owns: system calls, kernel structures with their layout checks, feature probes.
//! Invariants: what leaves this crate is safe to call; every failure names operation, object and errno.
//! Does not: hold policy, or know what a checkpoint is.

pub mod clone;
pub mod direct_io;
pub mod error;
pub mod features;
pub mod kcmp;
pub mod page_buffer;
pub mod pagemap;
pub mod pidfd;
pub mod process_memory;
pub mod ptrace;
pub mod signal;

pub use error::{Errno, Error, Result, Target};
