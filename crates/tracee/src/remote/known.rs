//! What is read of a stopped thread and its process before anything of it changes.
//!
//! Owns: registers, extended state, signal mask and restartable sequence, read once for all who need them; the layout
//! of `struct rseq` and `struct rseq_cs` as far as it is needed, and the decision to abort.
//! Invariants: they are those of the thread itself as long as no session has begun. A thread whose registers are taken
//! away and brought back goes on at the abort handler, as after any preemption; the sequence is never finished without
//! its protection.
//! Does not: change the thread.

use model::{Address, ByteCount, Tid};
use sys::ptrace::{self, Registers, RseqConfiguration, XSTATE_BYTES_MAX};
use sys::{Errno, Error};

use super::gadgets::Gadgets;
use crate::arch;
use crate::memory::ProcessMemory;
use crate::procfs::Area;

/// EIO: a ptrace(2) request that the kernel does not know.
const EIO: Errno = Errno(5);

/// Offset of `rseq_cs` in `struct rseq`.
const CRITICAL_SECTION_POINTER: ByteCount = ByteCount(8);
/// `struct rseq_cs`: version, flags, start, length, abort handler.
const CRITICAL_SECTION_BYTES: usize = 32;

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

/// Registers with the critical section aborted, if the thread stands inside one.
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
        // The kernel would end the program for such a pointer; that is not ours to anticipate.
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
