//! Instructions of a subject's own code that remote calls are made with.
//!
//! Owns: the search for them.
//! Invariants: what is found lies in one executable area, and was there when it was read.
//! Does not: execute anything.

use model::{Address, AddressRange, ByteCount};
use sys::Error;

use super::RemoteError;
use crate::arch::x86_64 as arch;
use crate::memory::ProcessMemory;
use crate::procfs::Area;

/// Code is searched in pieces of this size.
const SEARCH_BYTES: u64 = 256 * 1024;
/// Longest pattern searched for, less one: pieces overlap by this.
const SEARCH_OVERLAP: u64 = 8;

/// Instructions of the program's own code that remote calls are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `syscall; ret`.
    pub syscall_return: Address,
    /// The code that signal handlers return to.
    pub restorer: Address,
    /// `leave; ret`: changes the stack without using it. Without it there is a moment at which a signal that
    /// comes just as this program dies would be handled on the wrong stack.
    pub pivot: Option<Address>,
}

impl Gadgets {
    /// Searches the executable areas of a process; the process may run.
    pub fn find(memory: &ProcessMemory, areas: &[Area]) -> Result<Self, RemoteError> {
        let mut found = [None; 3];
        for area in areas.iter().filter(|area| area.protection.execute && area.name != "[vsyscall]") {
            search(memory, area.range, |at, code| {
                let first = |patterns: &[&[u8]]| {
                    patterns.iter().find_map(|pattern| position(code, pattern)).map(|offset| at + offset)
                };
                found[0] = found[0].or_else(|| first(&[arch::SYSCALL_RETURN]));
                found[1] = found[1].or_else(|| first(arch::SIGNAL_RESTORERS));
                found[2] = found[2].or_else(|| first(&[arch::LEAVE_RETURN]));
                found.iter().all(Option::is_some)
            })?;
            if found.iter().all(Option::is_some) {
                break;
            }
        }
        match found {
            [Some(syscall_return), Some(restorer), pivot] => Ok(Self { syscall_return, restorer, pivot }),
            _ => Err(RemoteError::NoGadget(memory.pid())),
        }
    }
}

fn search(
    memory: &ProcessMemory,
    range: AddressRange,
    mut found: impl FnMut(Address, &[u8]) -> bool,
) -> Result<(), Error> {
    let mut start = range.start;
    while start < range.end {
        let length = (range.end - start).get().min(SEARCH_BYTES + SEARCH_OVERLAP);
        let code = memory.read_vec(start, ByteCount(length))?;
        if found(start, &code) {
            return Ok(());
        }
        start = start + ByteCount(SEARCH_BYTES);
    }
    Ok(())
}

fn position(code: &[u8], pattern: &[u8]) -> Option<ByteCount> {
    code.windows(pattern.len()).position(|window| window == pattern).map(|offset| ByteCount(offset as u64))
}
