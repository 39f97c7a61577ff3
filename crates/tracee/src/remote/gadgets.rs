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
use crate::arch;
use crate::memory::ProcessMemory;
use crate::procfs::{Backing, Mapping};

/// Bytes of code that are read into the buffer and searched at a time. The allocation of a larger buffer
/// would take longer than the search.
const SEARCH_BYTES: u64 = 32 * 1024;
/// Maximum bytes of code that are searched for optional gadgets. A C library has less code.
const SEARCH_MAX: u64 = 8 << 20;
/// Bytes of the longest pattern. Successive reads overlap by this length.
const SEARCH_OVERLAP: u64 = arch::LONGEST_RESTORER as u64;
/// Maximum number of words that [`Store::words`] returns.
pub(super) const STORE_WORDS_MAX: usize = 4;

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
    /// The gadgets that store the result of a call. If the subject lacks these or the load gadgets, calls are
    /// made one by one, each with two stops.
    pub store: Option<Store>,
    /// Load gadgets, which load the arguments of a call.
    pub loads: Option<Loads>,
}

/// A store gadget, which stores the result register to the address in an argument register, and the load gadget
/// of the argument register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    load: Load,
    at: Address,
}

/// A load gadget. If the flag is true, the gadget pops rbx, too.
type Load = (Address, bool);

impl Store {
    /// Returns the words to which a call returns, so that its result is stored at `slot`. The store gadget returns
    /// to the address in the word above these words.
    pub(super) fn words(&self, slot: Address) -> impl Iterator<Item = u64> + use<> {
        let (load, pops_rbx) = self.load;
        let rbx = pops_rbx.then_some(0);
        [load.get(), slot.get()].into_iter().chain(rbx).chain([self.at.get()])
    }
}

/// Load gadgets, which pop registers off the stack and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Loads the first argument.
    pub first: Address,
    /// Loads the second argument.
    pub second: Address,
    /// Loads the third argument. If the flag is true, the gadget pops rbx, too.
    pub third: Option<Load>,
    /// Loads the system call number.
    pub number: Address,
}

#[derive(Default)]
struct Found {
    syscall_return: Option<Address>,
    restorer: Option<Address>,
    pivot: Option<Address>,
    /// Store gadgets for the address in the first, the second and the third argument register.
    stores: [Option<Address>; 3],
    first: Option<Address>,
    second: Option<Address>,
    number: Option<Address>,
    third: Option<Address>,
    third_and_rbx: Option<Address>,
    searched: u64,
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
        let (store, loads) = (found.store(), found.loads());
        match found {
            Found { syscall_return: Some(syscall_return), restorer: Some(restorer), pivot, .. } => {
                Ok(Self { syscall_return, restorer, pivot, store, loads })
            }
            _ => Err(RemoteError::NoGadget(memory.pid())),
        }
    }

    /// Reports whether the mappings that contain the gadgets are equal in both lists. The lists must be in
    /// ascending order.
    #[must_use]
    pub fn are_kept(&self, before: &[Mapping], now: &[Mapping]) -> bool {
        let loads = self.loads.into_iter().flat_map(|loads| [loads.first, loads.second, loads.number]);
        let third = self.loads.and_then(|loads| loads.third).map(|(at, _)| at);
        let store = self.store.into_iter().flat_map(|store| [store.load.0, store.at]);
        let needed = [self.syscall_return, self.restorer].into_iter();
        let mut all = needed.chain(self.pivot).chain(third).chain(loads).chain(store);
        let around = |mappings: &[Mapping], at: Address| {
            let index = mappings.partition_point(|mapping| mapping.range.end <= at);
            let mapping = mappings.get(index).filter(|mapping| mapping.range.start <= at)?;
            Some((mapping.range, mapping.protection, mapping.offset, mapping.backing.clone()))
        };
        all.all(|at| {
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
        for end in memchr::memchr_iter(RETURN, code) {
            self.match_patterns_at_end(start, &code[..=end]);
        }
        if self.restorer.is_none() {
            let found = arch::SIGNAL_RESTORERS.iter().find_map(|pattern| memmem::find(code, pattern));
            self.restorer = found.map(|at| start + ByteCount(at as u64));
        }
        self.searched += code.len() as u64;
        // The search is complete if all gadgets are found. The search also ends if remote calls are possible,
        // and `SEARCH_MAX` bytes were searched.
        self.is_complete() || self.can_call() && self.searched > SEARCH_MAX
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
            [.., 0x07, RETURN] => (arch::STORE_AT_FIRST_ARGUMENT, &mut self.stores[0]),
            [.., 0x06, RETURN] => (arch::STORE_AT_SECOND_ARGUMENT, &mut self.stores[1]),
            [.., 0x02, RETURN] => (arch::STORE_AT_THIRD_ARGUMENT, &mut self.stores[2]),
            _ => return,
        };
        if slot.is_none() && code.ends_with(pattern) {
            *slot = Some(start + ByteCount((code.len() - pattern.len()) as u64));
        }
    }

    fn loads(&self) -> Option<Loads> {
        Some(Loads { first: self.first?, second: self.second?, third: self.third(), number: self.number? })
    }

    fn third(&self) -> Option<Load> {
        let alone = self.third.map(|at| (at, false));
        alone.or(self.third_and_rbx.map(|at| (at, true)))
    }

    fn store(&self) -> Option<Store> {
        let alone = |at| (at, false);
        let loads = [self.first.map(alone), self.second.map(alone), self.third()];
        loads.into_iter().zip(self.stores).find_map(|(load, at)| Some(Store { load: load?, at: at? }))
    }

    fn is_complete(&self) -> bool {
        self.syscall_return.is_some()
            && self.restorer.is_some()
            && self.pivot.is_some()
            && self.loads().is_some_and(|loads| loads.third.is_some())
            && self.store().is_some()
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
            arch::STORE_AT_FIRST_ARGUMENT,
            arch::STORE_AT_SECOND_ARGUMENT,
            arch::STORE_AT_THIRD_ARGUMENT,
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
        assert_eq!(found.stores, [at(8), at(9), at(10)]);
        assert!(found.is_complete());
    }

    #[test]
    fn a_store_gadget_is_used_with_the_load_gadget_of_its_register() {
        let at = |address| Some(Address(address));
        let mut found =
            Found { first: at(1), second: at(2), stores: [None, None, at(30)], ..Found::default() };
        assert_eq!(found.store(), None);
        found.third_and_rbx = at(3);
        let words = |found: &Found| found.store().unwrap().words(Address(7)).collect::<Vec<_>>();
        assert_eq!(words(&found), [3, 7, 0, 30]);
        found.third = at(4);
        assert_eq!(words(&found), [4, 7, 30]);
        found.stores[1] = at(20);
        assert_eq!(words(&found), [2, 7, 20]);
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
