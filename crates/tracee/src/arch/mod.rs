//! What differs between processor architectures: one file each.
//!
//! Owns: register conventions of system calls, signal frames, instruction patterns; the choice of the architecture,
//! which is made here and nowhere else.
//! Does not: talk to the kernel.

pub mod numbers;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
