//! What differs between processor architectures: one file each.
//!
//! Owns: register conventions of system calls, signal frames, instruction patterns.
//! Does not: talk to the kernel.

pub mod numbers;
pub mod x86_64;
