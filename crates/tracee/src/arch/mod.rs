//! Everything that differs between processor architectures, with one file for each.
//!
//! Owns: register conventions of system calls, signal frames and instruction patterns. Only this module
//! chooses the architecture.
//! Does not: make system calls.

pub mod numbers;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
