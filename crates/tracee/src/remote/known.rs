//! What is read of a stopped thread and its process before anything of it changes.
//!
//! Owns: registers, extended state, signal mask and restartable sequence, read once for all who need them.
//! Invariants: they are those of the thread itself as long as no session has begun.
//! Does not: change the thread.

use model::Tid;
use sys::ptrace::{self, Registers, RseqConfiguration, XSTATE_BYTES_MAX};
use sys::{Errno, Error};

use super::gadgets::Gadgets;
use crate::arch;
use crate::memory::ProcessMemory;
use crate::procfs::Area;
use crate::rseq;

/// EIO: a ptrace(2) request that the kernel does not know.
const EIO: Errno = Errno(5);

/// What a session needs to know of the process, gathered before any thread changes.
#[derive(Debug)]
pub struct RemoteContext<'a> {
    /// The process's memory.
    pub memory: &'a ProcessMemory,
    /// Its areas, rising.
    pub areas: &'a [Area],
    /// Instructions found before.
    pub gadgets: Gadgets,
}

/// A stopped thread, as it was found.
#[derive(Clone, Debug)]
pub struct KnownThread {
    /// The registers that it goes on with. A restartable sequence it stands in is aborted, as any preemption would:
    /// the kernel forgets the sequence as soon as the thread runs anything else.
    pub resumed: Registers,
    /// Its extended state, as ptrace(2) gives it.
    pub extended_state: Vec<u8>,
    /// The signals it blocks.
    pub signal_mask: u64,
    /// Its restartable sequence; `None` before Linux 5.13, or without CONFIG_RSEQ.
    pub sequence: Option<RseqConfiguration>,
}

impl KnownThread {
    /// Reads a thread that stands.
    pub fn read(tid: Tid, memory: &ProcessMemory) -> Result<Self, Error> {
        let mut state = [0_u8; XSTATE_BYTES_MAX];
        let registers = ptrace::registers(tid)?;
        let length = ptrace::extended_state(tid, &mut state)?;
        let sequence = match ptrace::rseq_configuration(tid) {
            Ok(configuration) => Some(configuration),
            Err(error) if error.errno == EIO || error.errno == Errno::EINVAL => None,
            Err(error) => return Err(error),
        };
        let aborted = match &sequence {
            Some(sequence) => rseq::aborted(&registers, memory, sequence)?,
            None => None,
        };
        Ok(Self {
            resumed: aborted.unwrap_or(registers),
            extended_state: state[..length].to_vec(),
            signal_mask: ptrace::signal_mask(tid)?,
            sequence,
        })
    }

    pub(super) fn state_in_use(&self) -> &[u8] {
        arch::extended_state_in_use(&self.extended_state)
    }
}
