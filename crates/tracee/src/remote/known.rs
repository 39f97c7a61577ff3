//! Reads a stopped thread before a session changes it.
//!
//! Owns: registers, extended state, signal mask and restartable sequence (rseq(2)), which are read once for
//! all users. Also the necessary part of the layout of `struct rseq` and `struct rseq_cs`, and the decision
//! to abort a sequence.
//! Invariants: the values are the thread's own if no session has begun. If the thread is inside a restartable
//! sequence, it resumes at the abort handler, as after a preemption. The thread never finishes a sequence
//! whose protection the kernel has dropped.
//! Does not: change the thread.

use model::{Address, ByteCount, Tid};
use sys::ptrace::{self, Registers, RseqConfiguration, XSTATE_BYTES_MAX};
use sys::{Errno, Error};

use super::gadgets::Gadgets;
use crate::arch;
use crate::memory::ProcessMemory;
use crate::procfs::Mapping;

/// EIO: the kernel does not know the ptrace(2) request.
const EIO: Errno = Errno(5);

/// Offset of `rseq_cs` in `struct rseq`.
const CRITICAL_SECTION_POINTER: ByteCount = ByteCount(8);
/// Bytes of `struct rseq_cs`: version, flags, start, length, abort handler.
const CRITICAL_SECTION_BYTES: usize = 32;

/// The data of the process that a session needs, collected before any thread changes.
#[derive(Debug)]
pub struct RemoteContext<'a> {
    /// Memory of the process.
    pub memory: &'a ProcessMemory,
    /// Mappings of the process, in ascending order.
    pub mappings: &'a [Mapping],
    /// Gadgets in the code of the program.
    pub gadgets: Gadgets,
}

/// The state of a stopped thread before a session.
#[derive(Clone, Debug)]
pub struct KnownThread {
    /// The registers with which the thread resumes. Inside a restartable sequence, they point to the abort
    /// handler, as after a preemption. The kernel forgets the sequence as soon as the thread executes other
    /// code.
    pub resumed: Registers,
    /// Extended state of the thread, in the format of ptrace(2).
    pub extended_state: Vec<u8>,
    /// Signals that the thread blocks.
    pub signal_mask: u64,
    /// Restartable sequence of the thread; `None` before Linux 5.13, or without CONFIG_RSEQ.
    pub sequence: Option<RseqConfiguration>,
}

impl KnownThread {
    /// Reads a stopped thread.
    pub fn read(tid: Tid, memory: &ProcessMemory) -> Result<Self, Error> {
        let mut state = [0_u8; XSTATE_BYTES_MAX];
        let registers = ptrace::registers(tid)?;
        let length = ptrace::extended_state(tid, &mut state)?;
        let sequence = match ptrace::rseq_configuration(tid) {
            Ok(configuration) => Some(configuration),
            Err(error) if error.errno == EIO || error.errno == Errno::EINVAL => None,
            Err(error) => return Err(error),
        };
        let aborted = sequence.as_ref().map(|sequence| aborted(&registers, memory, sequence)).transpose()?;
        Ok(Self {
            resumed: aborted.flatten().unwrap_or(registers),
            extended_state: state[..length].to_vec(),
            signal_mask: ptrace::signal_mask(tid)?,
            sequence,
        })
    }

    pub(super) fn state_in_use(&self) -> &[u8] {
        arch::extended_state_in_use(&self.extended_state)
    }
}

/// Returns registers with the restartable sequence aborted, or `None` if the thread is not inside a sequence.
fn aborted(
    registers: &Registers,
    memory: &ProcessMemory,
    configuration: &RseqConfiguration,
) -> Result<Option<Registers>, Error> {
    if configuration.address == 0 {
        return Ok(None);
    }
    let mut pointer = [0_u8; 8];
    memory.read(Address(configuration.address) + CRITICAL_SECTION_POINTER, &mut pointer)?;
    let section_at = Address(u64::from_ne_bytes(pointer));
    if section_at == Address(0) {
        return Ok(None);
    }
    let mut section = [0_u8; CRITICAL_SECTION_BYTES];
    if memory.read(section_at, &mut section).is_err() {
        // The kernel kills a program for such a pointer. This function leaves that to the kernel.
        return Ok(None);
    }
    Ok(abort_handler(&section, registers.rip).map(|rip| Registers { rip, ..*registers }))
}

fn abort_handler(section: &[u8; CRITICAL_SECTION_BYTES], rip: u64) -> Option<u64> {
    let (words, _) = section.as_chunks::<8>();
    let [start, length, handler] = [1, 2, 3].map(|index| u64::from_ne_bytes(words[index]));
    (rip.wrapping_sub(start) < length).then_some(handler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_inside_the_section_are_aborted() {
        let mut section = [0_u8; CRITICAL_SECTION_BYTES];
        section[8..16].copy_from_slice(&0x1000_u64.to_ne_bytes());
        section[16..24].copy_from_slice(&0x10_u64.to_ne_bytes());
        section[24..32].copy_from_slice(&0x2000_u64.to_ne_bytes());
        assert_eq!(abort_handler(&section, 0x0fff), None);
        assert_eq!(abort_handler(&section, 0x1000), Some(0x2000));
        assert_eq!(abort_handler(&section, 0x100f), Some(0x2000));
        assert_eq!(abort_handler(&section, 0x1010), None);
    }
}
