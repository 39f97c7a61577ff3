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
}

impl Gadgets {
    /// Searches the executable areas of a process; the process may run.
    pub fn find(memory: &ProcessMemory, areas: &[Area]) -> Result<Self, RemoteError> {
        let mut syscall_return = None;
        let mut restorer = None;
        for area in areas.iter().filter(|area| area.protection.execute && area.name != "[vsyscall]") {
            search(memory, area.range, |at, code| {
                if syscall_return.is_none() {
                    syscall_return = position(code, arch::SYSCALL_RETURN).map(|offset| at + offset);
                }
                if restorer.is_none() {
                    restorer = arch::SIGNAL_RESTORERS
                        .iter()
                        .find_map(|pattern| position(code, pattern))
                        .map(|offset| at + offset);
                }
                syscall_return.is_some() && restorer.is_some()
            })?;
            if let (Some(syscall_return), Some(restorer)) = (syscall_return, restorer) {
                return Ok(Self { syscall_return, restorer });
            }
        }
        Err(RemoteError::NoGadget(memory.pid()))
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
