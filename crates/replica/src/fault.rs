//! A fault that is injected into one replica, and its place in time.
//!
//! Owns: the position (a call and a number of instructions after it) and the targets.
//! Invariants: a position and a target name the same bit in each run of the same program with the same input.
//! Does not: plan campaigns; `inject` does.

use model::{Address, AddressRange};
use sys::ptrace::{self, Registers, XSTATE_BYTES_MAX};
use tracee::procfs::{self, Mapping};

use crate::error::Result;
use crate::replicas::Replica;

/// What a fault changes. One bit of it is flipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A general register, except the instruction pointer.
    Register,
    /// The instruction pointer.
    InstructionPointer,
    /// A status flag.
    Flag,
    /// An extended register: x87, SSE, AVX.
    ExtendedRegister,
    /// The stack above the stack pointer.
    Stack,
    /// The heap.
    Heap,
    /// Other writable memory.
    Data,
    /// Code of the program and its libraries.
    Text,
    /// A byte that the next call with an input passes to the kernel.
    Buffer,
}

impl Target {
    /// All targets with the names that the command line uses.
    pub const ALL: [(&'static str, Self); 9] = [
        ("register", Self::Register),
        ("instruction-pointer", Self::InstructionPointer),
        ("flag", Self::Flag),
        ("extended-register", Self::ExtendedRegister),
        ("stack", Self::Stack),
        ("heap", Self::Heap),
        ("data", Self::Data),
        ("text", Self::Text),
        ("buffer", Self::Buffer),
    ];

    /// Returns the name of the target.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, target)| *target == self).map_or("", |(name, _)| name)
    }
}

/// One planned fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The replica that gets the fault.
    pub replica: usize,
    /// The number of calls after which the fault comes, from 0.
    pub call: u64,
    /// The number of instructions after this call.
    pub steps: u32,
    /// What is changed.
    pub target: Target,
    /// Chooses the register, the byte and the bit.
    pub choice: u64,
}

/// Pages above the stack pointer that a stack fault can hit: deeper frames are seldom read again.
const STACK_BYTES: u64 = 16 * 1024;
/// The general registers in the order of [`Registers::to_words`], without segments and the instruction pointer.
const GENERAL: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 19];
const INSTRUCTION_POINTER: usize = 16;
const FLAGS: usize = 18;
/// Carry, parity, auxiliary, zero, sign, direction, overflow.
const FLAG_BITS: [u64; 7] = [0, 2, 4, 6, 7, 10, 11];
/// Bits of an address that the processor uses.
const ADDRESS_BITS: u64 = 47;
/// The extended registers: x87, SSE, and the upper halves of AVX registers.
const EXTENDED: [std::ops::Range<u64>; 2] = [32..416, 576..832];

impl Fault {
    /// Flips the bit in a stopped replica. Returns the place for people; `None` if there is no such place.
    pub(crate) fn flip(&self, replica: &Replica) -> Result<Option<String>> {
        match self.target {
            Target::Register => {
                let place = GENERAL[(self.choice % 16) as usize];
                self.flip_word(replica, place, self.choice / 16 % 64)
            }
            Target::InstructionPointer => {
                self.flip_word(replica, INSTRUCTION_POINTER, self.choice % ADDRESS_BITS)
            }
            Target::Flag => self.flip_word(replica, FLAGS, FLAG_BITS[(self.choice % 7) as usize]),
            Target::ExtendedRegister => self.flip_extended(replica),
            Target::Stack | Target::Heap | Target::Data | Target::Text => {
                let ranges = self.ranges(replica)?;
                self.flip_in(replica, &ranges)
            }
            Target::Buffer => Ok(None),
        }
    }

    fn flip_word(&self, replica: &Replica, place: usize, bit: u64) -> Result<Option<String>> {
        let mut words = ptrace::registers(replica.tid())?.to_words();
        words[place] ^= 1 << bit;
        ptrace::set_registers(replica.tid(), &Registers::from_words(&words))?;
        Ok(Some(format!("word {place} of the registers, bit {bit}")))
    }

    fn flip_extended(&self, replica: &Replica) -> Result<Option<String>> {
        let mut state = [0; XSTATE_BYTES_MAX];
        let length = ptrace::extended_state(replica.tid(), &mut state)?;
        let range = &EXTENDED[(self.choice % 2) as usize];
        let byte = (range.start + self.choice / 2 % (range.end - range.start)) as usize;
        if byte >= length {
            return Ok(None);
        }
        let bit = self.choice / 1024 % 8;
        state[byte] ^= 1 << bit;
        // The components exist from now on: x87, SSE and AVX.
        state[512] |= 7;
        ptrace::set_extended_state(replica.tid(), &state[..length])?;
        Ok(Some(format!("byte {byte} of the extended state, bit {bit}")))
    }

    fn ranges(&self, replica: &Replica) -> Result<Vec<AddressRange>> {
        let pointer = ptrace::registers(replica.tid())?.rsp;
        let wanted = |mapping: &Mapping| {
            let protection = mapping.protection;
            match self.target {
                Target::Text => protection.execute && !mapping.is_kernel(),
                Target::Heap => mapping.name == "[heap]",
                Target::Stack => mapping.name == "[stack]",
                _ => protection.write && mapping.name != "[heap]" && mapping.name != "[stack]",
            }
        };
        let clip = |mapping: Mapping| {
            let mut range = mapping.range;
            if self.target == Target::Stack {
                range.start = Address(pointer);
                range.end = Address(range.end.get().min(pointer + STACK_BYTES));
            }
            range
        };
        Ok(procfs::mappings(replica.pid())?.into_iter().filter(wanted).map(clip).collect())
    }

    /// Flips a bit of a byte in one of the ranges.
    pub(crate) fn flip_in(&self, replica: &Replica, ranges: &[AddressRange]) -> Result<Option<String>> {
        let total: u64 = ranges.iter().map(|range| range.len().get()).sum();
        if total == 0 {
            return Ok(None);
        }
        let mut offset = self.choice % total;
        let mut at = Address(0);
        for range in ranges {
            let length = range.len().get();
            if offset < length {
                at = Address(range.start.get() + offset);
                break;
            }
            offset -= length;
        }
        let bit = self.choice / total % 8;
        let mut byte = [0];
        if replica.memory.read(at, &mut byte).is_err() {
            return Ok(None);
        }
        byte[0] ^= 1 << bit;
        replica.memory.write(at, &byte)?;
        Ok(Some(format!("byte {at}, bit {bit}")))
    }
}
