//! Finds *gadgets*: instruction sequences in the code of the subject that remote calls use.
//!
//! A remote call needs two gadgets: `syscall; ret`, and the signal restorer (the code to which signal
//! handlers return). The other gadgets are optional: most of them only save time. A *store gadget* stores the
//! result of a call to memory. A *load gadget* loads a register from the stack.
//!
//! Owns: the search for gadgets.
//! Invariants: each gadget is in one executable mapping. The mapping contained the gadget when this module
//! read the mapping. Code that the program generates at run time is searched only if the other code lacks a
//! gadget that remote calls need.
//! Does not: execute anything.

use memchr::memmem;
use model::{Address, ByteCount};
use sys::Error;

use super::error::RemoteError;
use crate::arch::{self, Store};
use crate::memory::ProcessMemory;
use crate::procfs::{Backing, Mapping};

/// Bytes of code that are read into the buffer and searched at a time. The allocation of a larger buffer
/// would take longer than the search.
const SEARCH_BYTES: u64 = 32 * 1024;
/// Maximum bytes of code that are searched for optional gadgets. A C library has less code.
const SEARCH_MAX: u64 = 8 << 20;
/// Bytes of the longest pattern. Successive reads overlap by this length.
const SEARCH_OVERLAP: u64 = arch::LONGEST_STORE as u64;

/// The byte of the instruction `ret`.
const RETURN: u8 = arch::RETURN[0];

/// Addresses of the gadgets in the program's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `syscall; ret`.
    pub syscall_return: Address,
    /// The signal restorer, which calls rt_sigreturn(2).
    pub restorer: Address,
    /// `leave; ret`, which switches to another stack without using the old stack. If the subject lacks this
    /// gadget, a signal at the moment when this program dies can be handled on the wrong stack.
    pub pivot: Option<Address>,
    /// A store gadget, which stores the result register. If the subject has no store gadget, calls are made
    /// one by one, each with two stops.
    pub store: Option<(Address, Store)>,
    /// Load gadgets, which load the arguments of a call. If the subject lacks them, signal frames load the
    /// arguments.
    pub loads: Option<Loads>,
}

/// Load gadgets, which pop registers off the stack and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Loads the first argument.
    pub first: Address,
    /// Loads the second argument.
    pub second: Address,
    /// Loads the third argument. If the flag is true, the gadget pops rbx, too.
    pub third: Option<(Address, bool)>,
    /// Loads the system call number.
    pub number: Address,
}

#[derive(Default)]
struct Found {
    syscall_return: Option<Address>,
    restorer: Option<Address>,
    pivot: Option<Address>,
    store: Option<(Address, Store)>,
    first: Option<Address>,
    second: Option<Address>,
    number: Option<Address>,
    third: Option<Address>,
    third_and_rbx: Option<Address>,
    searched: u64,
    /// A part of the code was searched only for `FIRST_STORE`, the start of the most common store gadget.
    /// When all other gadgets are found, the search continues with `FIRST_STORE` only, which is faster. Most
    /// of a C library is searched in this way.
    passed_over: bool,
    is_thorough: bool,
}

impl Gadgets {
    /// Searches the executable mappings of a process. The process may run.
    pub fn find(memory: &ProcessMemory, mappings: &[Mapping]) -> Result<Self, RemoteError> {
        let mut found = Found::default();
        // Remote calls in a pause need the processor data that this call reads.
        sys::xsave::prepare();
        for is_wanted in [is_steady as fn(&Mapping) -> bool, is_unsteady] {
            if !found.can_call() {
                found.search(memory, mappings, is_wanted)?;
            }
        }
        if found.passed_over && !found.has_best_store() {
            (found.is_thorough, found.searched) = (true, 0);
            found.search(memory, mappings, is_steady)?;
        }
        let loads = found.loads();
        match found {
            Found {
                syscall_return: Some(syscall_return), restorer: Some(restorer), pivot, store, ..
            } => Ok(Self { syscall_return, restorer, pivot, store, loads }),
            _ => Err(RemoteError::NoGadget(memory.pid())),
        }
    }

    /// Reports whether the mappings that contain the gadgets are equal in both lists. The lists must be in
    /// ascending order.
    #[must_use]
    pub fn are_kept(&self, before: &[Mapping], now: &[Mapping]) -> bool {
        let loads = self.loads.map(|loads| [Some(loads.first), Some(loads.second), Some(loads.number)]);
        let third = self.loads.and_then(|loads| loads.third).map(|(at, _)| at);
        let store = self.store.map(|(at, _)| at);
        let needed = [Some(self.syscall_return), Some(self.restorer), self.pivot, store, third];
        let all = needed.into_iter().chain(loads.into_iter().flatten()).flatten();
        let around = |mappings: &[Mapping], at: Address| {
            let index = mappings.partition_point(|mapping| mapping.range.end <= at);
            let mapping = mappings.get(index).filter(|mapping| mapping.range.start <= at)?;
            Some((mapping.range, mapping.protection, mapping.offset, mapping.backing.clone()))
        };
        all.into_iter().all(|at| {
            let found = around(before, at);
            found.is_some() && found == around(now, at)
        })
    }
}

impl Found {
    fn search(
        &mut self,
        memory: &ProcessMemory,
        mappings: &[Mapping],
        is_wanted: fn(&Mapping) -> bool,
    ) -> Result<(), Error> {
        let mut buffer = vec![0; (SEARCH_BYTES + SEARCH_OVERLAP) as usize];
        for mapping in mappings.iter().filter(|mapping| is_wanted(mapping)) {
            let mut start = mapping.range.start;
            while start < mapping.range.end {
                let length = (mapping.range.end - start).get().min(SEARCH_BYTES + SEARCH_OVERLAP);
                let code = &mut buffer[..length as usize];
                memory.read(start, code)?;
                if self.search_piece(start, code) {
                    return Ok(());
                }
                start = start + ByteCount(SEARCH_BYTES);
            }
        }
        Ok(())
    }

    /// Searches a piece of code, and reports whether the search is complete.
    fn search_piece(&mut self, start: Address, code: &[u8]) -> bool {
        if self.has_all_but_store() && !self.is_thorough {
            self.passed_over = true;
            let found = memmem::find_iter(code, arch::FIRST_STORE)
                .find_map(|at| arch::store(&code[at..]).filter(Store::serves_pops).map(|store| (at, store)));
            if let Some((at, store)) = found {
                self.store = Some((start + ByteCount(at as u64), store));
            }
        } else {
            for end in memchr::memchr_iter(RETURN, code) {
                self.match_patterns_at_end(start, &code[..=end]);
            }
        }
        if self.restorer.is_none() {
            let found = arch::SIGNAL_RESTORERS.iter().find_map(|pattern| memmem::find(code, pattern));
            self.restorer = found.map(|at| start + ByteCount(at as u64));
        }
        self.searched += code.len() as u64;
        // The search is complete if all gadgets are found. The search also ends if remote calls are possible,
        // and `SEARCH_MAX` bytes were searched.
        let is_all = self.has_all_but_store() && self.has_best_store();
        is_all || self.can_call() && self.searched > SEARCH_MAX
    }

    /// Compares the end of `code` with all patterns that end with `ret`. The signal restorer does not end
    /// with `ret`.
    fn match_patterns_at_end(&mut self, start: Address, code: &[u8]) {
        let (pattern, slot) = match *code {
            [.., 0x5f, RETURN] => (arch::POP_FIRST_ARGUMENT, &mut self.first),
            [.., 0x5e, RETURN] => (arch::POP_SECOND_ARGUMENT, &mut self.second),
            [.., 0x5a, RETURN] => (arch::POP_THIRD_ARGUMENT, &mut self.third),
            [.., 0x5a, 0x5b, RETURN] => (arch::POP_THIRD_ARGUMENT_AND_RBX, &mut self.third_and_rbx),
            [.., 0x58, RETURN] => (arch::POP_NUMBER, &mut self.number),
            [.., 0xc9, RETURN] => (arch::LEAVE_RETURN, &mut self.pivot),
            [.., 0x05, RETURN] => (arch::SYSCALL_RETURN, &mut self.syscall_return),
            _ => return self.check_store(start, code),
        };
        if slot.is_none() && code.ends_with(pattern) {
            *slot = Some(start + ByteCount((code.len() - pattern.len()) as u64));
        }
        self.check_store(start, code);
    }

    /// Checks whether the code ends with a store gadget.
    fn check_store(&mut self, start: Address, code: &[u8]) {
        if self.has_best_store() {
            return;
        }
        if let Some((at, store)) = arch::store_at_end(code)
            && (self.store.is_none() || store.serves_pops())
        {
            self.store = Some((start + ByteCount(at as u64), store));
        }
    }

    fn has_best_store(&self) -> bool {
        self.store.is_some_and(|(_, store)| store.serves_pops())
    }

    fn loads(&self) -> Option<Loads> {
        let alone = self.third.map(|at| (at, false));
        let third = alone.or(self.third_and_rbx.map(|at| (at, true)));
        Some(Loads { first: self.first?, second: self.second?, third, number: self.number? })
    }

    fn has_all_but_store(&self) -> bool {
        self.syscall_return.is_some()
            && self.restorer.is_some()
            && self.pivot.is_some()
            && self.loads().is_some_and(|loads| loads.third.is_some())
    }

    fn can_call(&self) -> bool {
        self.syscall_return.is_some() && self.restorer.is_some()
    }
}

/// Reports whether a mapping is code of a file or of the kernel. A program does not change such code between
/// the search and a remote call.
fn is_steady(mapping: &Mapping) -> bool {
    is_code(mapping) && !mapping.protection.write && mapping.backing != Backing::Anonymous
}

/// Reports whether a mapping is code that the program has generated and may change at any time. A packed
/// program has only such code.
fn is_unsteady(mapping: &Mapping) -> bool {
    is_code(mapping) && !is_steady(mapping)
}

fn is_code(mapping: &Mapping) -> bool {
    mapping.protection.execute && mapping.name != "[vsyscall]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_found_where_it_begins() {
        let mut found = Found::default();
        let patterns = [
            arch::POP_FIRST_ARGUMENT,
            arch::POP_SECOND_ARGUMENT,
            arch::POP_THIRD_ARGUMENT,
            arch::POP_THIRD_ARGUMENT_AND_RBX,
            arch::POP_NUMBER,
            arch::LEAVE_RETURN,
            arch::SYSCALL_RETURN,
            arch::SIGNAL_RESTORERS[1],
            &[0x48, 0x89, 0x03, 0x5b, 0xc3],
        ];
        let mut code = vec![0x90_u8; 16 * patterns.len()];
        for (index, pattern) in patterns.iter().enumerate() {
            code[16 * index..][..pattern.len()].copy_from_slice(pattern);
        }
        found.search_piece(Address(0x1000), &code);
        let at = |index: u64| Some(Address(0x1000 + 16 * index));
        let pops = [found.first, found.second, found.third, found.third_and_rbx, found.number];
        assert_eq!(pops, [at(0), at(1), at(2), at(3), at(4)]);
        assert_eq!([found.pivot, found.syscall_return, found.restorer], [at(5), at(6), at(7)]);
        assert_eq!(found.store.map(|(address, _)| address), at(8));
        assert!(found.has_all_but_store() && found.has_best_store());
    }

    #[test]
    fn a_store_of_another_register_is_found_when_the_first_is_nowhere() {
        let mut code = vec![0x90_u8; 4096];
        let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
        for (index, pattern) in [
            arch::POP_FIRST_ARGUMENT,
            arch::POP_SECOND_ARGUMENT,
            arch::POP_THIRD_ARGUMENT,
            arch::POP_NUMBER,
            arch::LEAVE_RETURN,
            arch::SYSCALL_RETURN,
            arch::SIGNAL_RESTORERS[0],
        ]
        .iter()
        .enumerate()
        {
            put(16 * index, pattern);
        }
        // mov %rax, (%r12); add $8, %rsp; pop %rbx; pop %r12; ret
        put(2048, &[0x49, 0x89, 0x04, 0x24, 0x48, 0x83, 0xc4, 0x08, 0x5b, 0x41, 0x5c, 0xc3]);
        let mut found = Found::default();
        found.search_piece(Address(0), &code[..1024]);
        assert!(!found.passed_over);
        found.search_piece(Address(1024), &code[1024..]);
        assert!(found.passed_over && found.store.is_none());
        found.is_thorough = true;
        assert!(found.search_piece(Address(0), &code));
        let (at, store) = found.store.unwrap();
        assert_eq!((at, store.words, store.base_word), (Address(2048), 3, Some(2)));
    }

    /// A just-in-time compiler constantly writes to mappings with generated code. In a Java program under
    /// load, one in forty remote calls through such a mapping failed with SIGSEGV.
    #[test]
    fn code_that_may_be_written_anew_comes_last() {
        let text = "7f0000000000-7f0000001000 rwxp 00000000 00:00 0 \n\
                    7f0000002000-7f0000003000 r-xp 00000000 00:00 0 \n\
                    7f0000004000-7f0000005000 r-xp 00001000 08:01 77 /usr/lib/libc.so.6\n\
                    7f0000006000-7f0000007000 rwxp 00001000 08:01 77 /usr/lib/libc.so.6\n\
                    7f0000008000-7f0000009000 rw-p 00000000 00:00 0 \n";
        let mappings = crate::procfs::mappings_in(text.as_bytes()).unwrap();
        let steady: Vec<bool> = mappings.iter().map(is_steady).collect();
        assert_eq!(steady, [false, false, true, false, false]);
        let unsteady: Vec<bool> = mappings.iter().map(is_unsteady).collect();
        assert_eq!(unsteady, [true, true, false, true, false]);
    }
}
