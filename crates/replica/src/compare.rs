//! Compares the registers of replicas.
//!
//! Owns: which bits of the state of a thread take part in a comparison.
//! Does not: compare memory; `parts` does.

use sys::ptrace::{self, Registers, XSTATE_BYTES_MAX};

use crate::error::Result;
use crate::replicas::Replica;
use crate::report::Kind;

/// A difference: its kind, and a text for people.
pub(crate) type Difference = (Kind, String);

/// The names of the words of [`Registers::to_words`].
const NAMES: [&str; 27] = [
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
];
const EFLAGS: usize = 18;
/// The trap flag and the resume flag: the kernel sets them for a tracer.
const FLAGS_OF_TRACER: u64 = 0x100 | 0x1_0000;
/// The header of the extended state. It says which components are in their initial state, and the processor may choose
/// differently. The kernel writes the initial values of such components to the buffer.
const HEADER: std::ops::Range<usize> = 512..576;
/// The bytes of the legacy area that belong to software.
const SOFTWARE: std::ops::Range<usize> = 464..512;

/// Returns the first register that differs.
pub(crate) fn registers(one: &Registers, other: &Registers) -> Option<Difference> {
    let (one, other) = (one.to_words(), other.to_words());
    let mask = |place: usize| if place == EFLAGS { !FLAGS_OF_TRACER } else { u64::MAX };
    let place = (0..NAMES.len()).find(|place| (one[*place] ^ other[*place]) & mask(*place) != 0)?;
    let text = format!("{}: {:#x} and {:#x}", NAMES[place], one[place], other[place]);
    Some((Kind::Register, text))
}

/// Returns the first byte of the extended registers that differs between the first replica and another one.
pub(crate) fn extended(replicas: &[Replica]) -> Result<Option<Difference>> {
    let mut first = [0; XSTATE_BYTES_MAX];
    let length = ptrace::extended_state(replicas[0].tid(), &mut first)?;
    for replica in &replicas[1..] {
        let mut other = [0; XSTATE_BYTES_MAX];
        let other_length = ptrace::extended_state(replica.tid(), &mut other)?;
        let counts = |place: &usize| !HEADER.contains(place) && !SOFTWARE.contains(place);
        let differs = |place: &usize| first[*place] != other[*place];
        if length != other_length {
            return Ok(Some((Kind::ExtendedRegister, format!("{length} and {other_length} bytes of state"))));
        }
        if let Some(place) = (0..length).filter(counts).find(differs) {
            let text =
                format!("byte {place} of the extended state: {:#x} and {:#x}", first[place], other[place]);
            return Ok(Some((Kind::ExtendedRegister, text)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_register_counts_and_flags_of_the_tracer_do_not() {
        let equal = Registers::default();
        for place in 0..NAMES.len() {
            let mut words = equal.to_words();
            words[place] ^= 2;
            let found = registers(&equal, &Registers::from_words(&words)).unwrap();
            assert!(found.1.starts_with(NAMES[place]), "{found:?}");
        }
        let traced = Registers { eflags: FLAGS_OF_TRACER, ..equal };
        assert_eq!(registers(&equal, &traced), None);
    }
}
