//! The kernel's interfaces, one module each; the only crate with unsafe code.
//!
//! Owns: system calls, kernel structures with their layout checks, feature probes.
//! Invariants: what leaves this crate is safe to call; every failure names operation, object and errno.
//! Does not: hold policy, or know what a checkpoint is.

pub mod error;

pub use error::{Errno, Error, Result, Target};
