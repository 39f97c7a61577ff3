//! The signals of a stopped thread: the signal mask, the pending signals, and the signal of the current stop.
//!
//! Owns: the argument structure of PTRACE_PEEKSIGINFO.
//! Does not: interpret a `siginfo_t`.
//!
//! Man page: ptrace(2), sigaction(2)
//! Since: Linux 5.4 (PTRACE_PEEKSIGINFO 3.10, PTRACE_GETSIGMASK 3.11)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; without these requests a checkpoint would lose pending signals

use std::mem::{offset_of, size_of};

use model::Tid;

use super::requests::request;
use crate::error::Result;

/// Most queued signals that one request reads.
const SIGNALS_PER_PEEK: usize = 32;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;

#[repr(C)]
struct PeekSiginfoArguments {
    offset: u64,
    flags: u32,
    count: i32,
}

const _: () = assert!(size_of::<PeekSiginfoArguments>() == 16);
const _: () = assert!(offset_of!(PeekSiginfoArguments, count) == 12);

/// The 128 bytes of a `siginfo_t`, as returned by the kernel.
pub type SiginfoBytes = [u8; 128];

const _: () = assert!(size_of::<libc::siginfo_t>() == size_of::<SiginfoBytes>());

/// A queue of pending signals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalQueue {
    /// The queue of signals that were sent to this thread.
    Thread,
    /// The queue of signals that were sent to the process.
    Process,
}

/// Reads the signal mask of a stopped tracee. Bit 0 stands for signal 1.
pub fn signal_mask(tid: Tid) -> Result<u64> {
    let mut mask = 0_u64;
    request("read the signal mask", PTRACE_GETSIGMASK, tid, size_of::<u64>(), (&raw mut mask) as usize)?;
    Ok(mask)
}

/// Sets the signal mask of a stopped tracee. Bit 0 stands for signal 1.
pub fn set_signal_mask(tid: Tid, mask: u64) -> Result<()> {
    request("write the signal mask", PTRACE_SETSIGMASK, tid, size_of::<u64>(), (&raw const mask) as usize)
        .map(drop)
}

/// Reads the `siginfo_t` of the signal that a tracee is stopped at.
pub fn signal_information(tid: Tid) -> Result<SiginfoBytes> {
    let mut bytes: SiginfoBytes = [0; 128];
    request("read the signal information", libc::PTRACE_GETSIGINFO, tid, 0, bytes.as_mut_ptr() as usize)?;
    Ok(bytes)
}

/// Replaces the `siginfo_t` of the signal that a tracee is stopped at.
pub fn set_signal_information(tid: Tid, bytes: &SiginfoBytes) -> Result<()> {
    let address = std::ptr::from_ref(bytes) as usize;
    request("write the signal information", libc::PTRACE_SETSIGINFO, tid, 0, address).map(drop)
}

/// Reads the pending signals in one queue of a stopped tracee, oldest first. The signals stay in the queue.
pub fn pending_signals(tid: Tid, queue: SignalQueue) -> Result<Vec<SiginfoBytes>> {
    let flags = if queue == SignalQueue::Process { 1 } else { 0 };
    let mut found = Vec::new();
    loop {
        let mut batch = [[0_u8; 128]; SIGNALS_PER_PEEK];
        let arguments =
            PeekSiginfoArguments { offset: found.len() as u64, flags, count: SIGNALS_PER_PEEK as i32 };
        let count = request(
            "read the pending signals",
            libc::PTRACE_PEEKSIGINFO,
            tid,
            (&raw const arguments) as usize,
            batch.as_mut_ptr() as usize,
        )? as usize;
        found.extend_from_slice(&batch[..count]);
        if count < SIGNALS_PER_PEEK {
            return Ok(found);
        }
    }
}
