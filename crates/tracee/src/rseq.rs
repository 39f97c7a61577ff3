//! Restartable sequences: what becomes of a thread that stands inside one.
//!
//! Owns: the layout of `struct rseq` and `struct rseq_cs` as far as it is needed, and the decision to abort.
//! Invariants: a thread whose registers are taken away and brought back goes on at the abort handler, as after
//! any preemption; the sequence is never finished without its protection.
//! Does not: register an area.

use model::{Address, ByteCount};
use sys::Result;
use sys::ptrace::{Registers, RseqConfiguration};

use crate::memory::ProcessMemory;

/// Offset of `rseq_cs` in `struct rseq`.
const CRITICAL_SECTION_POINTER: ByteCount = ByteCount(8);
/// `struct rseq_cs`: version, flags, start, length, abort handler.
const CRITICAL_SECTION_BYTES: usize = 32;

/// Registers with the critical section aborted, if the thread stands inside one.
pub fn aborted(
    registers: &Registers,
    memory: &ProcessMemory,
    configuration: &RseqConfiguration,
) -> Result<Option<Registers>> {
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
    let word = |at: usize| {
        let mut bytes = [0_u8; 8];
        bytes.copy_from_slice(&section[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let (start, length, handler) = (word(8), word(16), word(24));
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
