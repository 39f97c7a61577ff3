//! Traces threads of other processes.
//!
//! Owns: ptrace(2) requests and the waitpid(2) calls of a tracer, with one module for each topic.
//! Invariants: a ptrace(2) request acts only on a tracee of the calling thread, because the kernel binds a tracee
//! to one tracer thread. Buffers that are passed to the kernel are owned by this module or borrowed for the whole
//! call.
//! Does not: record which stop a thread is in; the types of the crate `tracee` do.

mod calls;
mod context;
mod requests;
mod signals;
mod waits;

pub use calls::{CallPhase, call_phase};
pub use context::{
    Registers, RseqConfiguration, XSTATE_BYTES_MAX, extended_state, registers, rseq_configuration,
    set_extended_state, set_registers,
};
pub use requests::{
    Options, detach, interrupt, listen, resume, resume_to_syscall, seize, set_options, single_step,
};
pub use signals::{
    SiginfoBytes, SignalQueue, pending_signals, set_signal_information, set_signal_mask, signal_information,
    signal_mask,
};
pub use waits::{
    Stop, WaitStatus, await_any, await_change, await_end, event_message, has_tracees, peek, poll, take_end,
    wait,
};
