//! Tracing threads of other processes.
//!
//! Owns: ptrace(2) requests, and waitpid(2) as the tracer sees it; a module for each topic.
//! Invariants: calls act on the calling thread's own tracees only (ptrace is bound to the tracer thread);
//! buffers handed to the kernel are owned here or borrowed for the whole call.
//! Does not: know which stop a thread is in; the typestate above does.

mod context;
mod requests;
mod signals;
mod waits;

pub use context::{
    Registers, RseqConfiguration, XSTATE_BYTES_MAX, extended_state, registers, rseq_configuration,
    set_extended_state, set_registers,
};
pub use requests::{
    Options, detach, interrupt, listen, resume, resume_to_syscall, seize, set_options, single_step,
};
pub use signals::{
    SiginfoBytes, SignalQueue, pending_signals, set_signal_mask, signal_information, signal_mask,
};
pub use waits::{
    Stop, WaitStatus, await_any, await_change, await_end, event_message, has_tracees, peek, poll, take_end,
    wait,
};
