//! Stops other processes and controls them from outside.
//!
//! A *remote call* is a system call that a stopped thread executes for this program. A *gadget* is an instruction
//! sequence in the code of the subject. A *restore frame* is a signal frame with the original context of the thread.
//! The *restore path* is the sequence of returns that ends with an rt_sigreturn(2) on the restore frame. A *deferred
//! close* is a call of close(2) on the restore path. A *stub* is a new, stopped thread whose whole state the tracer
//! sets. A *leader* is the first thread of a process.
//!
//! Owns: ptrace with typestate, remote system calls with a restore frame, remote memory, and the search for
//! the processes of a tree.
//! Invariants: a stopped thread and a running thread are different types. A remote system call changes
//! registers, signal mask and memory. Dropping the guard restores them, also if a step fails. If this program
//! dies during a remote call, the thread restores itself.
//! Does not: decide what to do; the crates above do.
#![forbid(unsafe_code)]

pub mod arch;
pub mod attach;
pub mod freeze;
pub mod interruption;
pub mod memory;
pub mod post_restore_tracer;
pub mod procfs;
pub mod remote;
#[doc(hidden)]
pub mod steps;
pub mod stop;
pub mod stub;
pub mod thread;
mod tracer;
pub mod tree;
mod worker_pool;

pub use attach::{Attached, Clients, Report, StoppedAttached};
pub use freeze::{FreezeError, Freezer, StoppedProcess, StoppedTree};
pub use memory::ProcessMemory;
pub use post_restore_tracer::{FdHolder, PostRestoreTracer};
pub use remote::{Gadgets, RemoteError, RemoteSession};
pub use stop::{Continue, StopKind, ThreadStop};
pub use stub::Stub;
pub use thread::{Running, Stopped, Thread};
pub use tree::Roots;
pub use worker_pool::{Urgent, Work, WorkerPool};
