//! Other processes, stopped and steered from outside.
//!
//! Owns: ptrace by typestate, remote system calls with a way home, remote memory, process tree discovery.
//! Invariants: a stopped thread and a running one are different types; registers, signal mask and memory
//! changed for a remote system call come back when the guard is dropped, also when a step fails half-way;
//! should this program die in the middle, the thread finds its own way back.
//! Does not: decide anything; policy lives above.
#![forbid(unsafe_code)]

pub mod arch;
pub mod freeze;
pub mod interruption;
pub mod memory;
pub mod post_restore_tracer;
pub mod procfs;
pub mod remote;
#[doc(hidden)]
pub mod steps;
pub mod stub;
pub mod thread;
mod tracer;
pub mod tree;
mod worker_pool;

pub use freeze::{FreezeError, Freezer, StoppedProcess, StoppedTree};
pub use memory::ProcessMemory;
pub use post_restore_tracer::{FdHolder, PostRestoreTracer};
pub use remote::{Gadgets, RemoteError, RemoteSession};
pub use stub::Stub;
pub use thread::{Running, Stopped, Thread};
pub use worker_pool::{Urgent, Work, WorkerPool};
