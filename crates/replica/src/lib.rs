//! Replicated execution: several copies of one program run as one, and are compared.
//!
//! A *replica* is one copy of the program, a process with one thread. The *leader* is the first replica, the others are
//! *followers*. The *sphere of replication* is the user-mode state of a replica: its registers and its memory. Everything
//! that crosses the border of the sphere is a *meeting*: all replicas are stopped at the same system call, fault or
//! signal, and are compared. A *difference* at a meeting is a fault of the hardware (silent data corruption), or an
//! influence that is not controlled.
//!
//! Owns: starting the replicas, meetings, the table of system calls, and fault injection.
//! Invariants: no call that changes something outside of the replicas is executed before its registers and inputs were
//! equal in all replicas. After a difference, all replicas are killed.
//! Does not: repair a replica, or compare memory that no call passes to the kernel.
#![forbid(unsafe_code)]

mod calls;
mod compare;
mod error;
mod fault;
mod group;
pub mod inject;
mod parts;
mod remote;
mod replicas;
mod report;
mod signals;
mod split;

pub use calls::RefusedCall;
pub use error::{ReplicaError, Result};
pub use group::{End, Limits, replicate};
pub use report::{Detection, Kind, Statistics};
