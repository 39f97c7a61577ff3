//! Instructions of a subject's own code that remote calls are made with.
//!
//! Owns: the search for them.
//! Invariants: what is found lies in one executable area, and was there when it was read; code that a program makes
//! while it runs is looked at only if it has no other.
//! Does not: execute anything.

use memchr::memmem;
use model::{Address, ByteCount};
use sys::Error;

use super::error::RemoteError;
use crate::arch::{self, Store};
use crate::memory::ProcessMemory;
use crate::procfs::{Area, Backing};

/// Code is searched in pieces of this size, in one buffer: to map and touch memory takes longer than to search it.
const SEARCH_BYTES: u64 = 32 * 1024;
/// Code that is searched for instructions that only save time: more than a C library has.
const SEARCH_MAX: u64 = 8 << 20;
/// Longest pattern searched for: pieces overlap by this.
const SEARCH_OVERLAP: u64 = arch::LONGEST_STORE as u64;

/// What `ret` ends with.
const RETURN: u8 = arch::RETURN[0];

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
    /// A store of the result register. Without it calls are made one by one, each with two stops.
    pub store: Option<(Address, Store)>,
    /// Loads of what a call needs. Without them a chain of calls goes through signal frames.
    pub loads: Option<Loads>,
}

/// Instructions that take a value off the stack and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Loads the first argument.
    pub first: Address,
    /// Loads the second.
    pub second: Address,
    /// Loads the third, and rbx as well if it says so.
    pub third: Option<(Address, bool)>,
    /// Loads the number of the call.
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
    /// Where only the best store was missing, no others were looked for than those of the register that compilers take
    /// first: most of a C library is searched for nothing else.
    passed_over: bool,
    is_thorough: bool,
}

impl Gadgets {
    /// Searches the executable areas of a process; the process may run.
    pub fn find(memory: &ProcessMemory, areas: &[Area]) -> Result<Self, RemoteError> {
        let mut found = Found::default();
        // Calls made with them, in a pause, ask for it.
        sys::xsave::prepare();
        for is_wanted in [is_steady as fn(&Area) -> bool, is_unsteady] {
            if !found.can_call() {
                found.search(memory, areas, is_wanted)?;
            }
        }
        if found.passed_over && !found.has_best_store() {
            (found.is_thorough, found.searched) = (true, 0);
            found.search(memory, areas, is_steady)?;
        }
        let loads = found.loads();
        match found {
            Found {
                syscall_return: Some(syscall_return), restorer: Some(restorer), pivot, store, ..
            } => Ok(Self { syscall_return, restorer, pivot, store, loads }),
            _ => Err(RemoteError::NoGadget(memory.pid())),
        }
    }

    /// Whether the areas that they lie in are the same in both lists, which rise.
    #[must_use]
    pub fn are_kept(&self, before: &[Area], now: &[Area]) -> bool {
        let loads = self.loads.map(|loads| [Some(loads.first), Some(loads.second), Some(loads.number)]);
        let third = self.loads.and_then(|loads| loads.third).map(|(at, _)| at);
        let store = self.store.map(|(at, _)| at);
        let needed = [Some(self.syscall_return), Some(self.restorer), self.pivot, store, third];
        let all = needed.into_iter().chain(loads.into_iter().flatten()).flatten();
        let around = |areas: &[Area], at: Address| {
            let index = areas.partition_point(|area| area.range.end <= at);
            let area = areas.get(index).filter(|area| area.range.start <= at)?;
            Some((area.range, area.protection, area.offset, area.backing.clone()))
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
        areas: &[Area],
        is_wanted: fn(&Area) -> bool,
    ) -> Result<(), Error> {
        let mut buffer = vec![0; (SEARCH_BYTES + SEARCH_OVERLAP) as usize];
        for area in areas.iter().filter(|area| is_wanted(area)) {
            let mut start = area.range.start;
            while start < area.range.end {
                let length = (area.range.end - start).get().min(SEARCH_BYTES + SEARCH_OVERLAP);
                let code = &mut buffer[..length as usize];
                memory.read(start, code)?;
                if self.look(start, code) {
                    return Ok(());
                }
                start = start + ByteCount(SEARCH_BYTES);
            }
        }
        Ok(())
    }

    /// Looks through a piece of code; whether nothing more need be searched.
    fn look(&mut self, start: Address, code: &[u8]) -> bool {
        if self.has_all_but_store() && !self.is_thorough {
            self.passed_over = true;
            let found = memmem::find_iter(code, arch::FIRST_STORE)
                .find_map(|at| arch::store(&code[at..]).filter(Store::serves_pops).map(|store| (at, store)));
            if let Some((at, store)) = found {
                self.store = Some((start + ByteCount(at as u64), store));
            }
        } else {
            for end in memchr::memchr_iter(RETURN, code) {
                self.look_at_end(start, &code[..=end]);
            }
        }
        if self.restorer.is_none() {
            let found = arch::SIGNAL_RESTORERS.iter().find_map(|pattern| memmem::find(code, pattern));
            self.restorer = found.map(|at| start + ByteCount(at as u64));
        }
        self.searched += code.len() as u64;
        // What makes calls possible is there, and what makes them cheap is, too, or would have turned up by now.
        let is_all = self.has_all_but_store() && self.has_best_store();
        is_all || self.can_call() && self.searched > SEARCH_MAX
    }

    /// All but one of the patterns end with a return: it is looked back from these.
    fn look_at_end(&mut self, start: Address, code: &[u8]) {
        let (pattern, slot) = match *code {
            [.., 0x5f, RETURN] => (arch::POP_FIRST_ARGUMENT, &mut self.first),
            [.., 0x5e, RETURN] => (arch::POP_SECOND_ARGUMENT, &mut self.second),
            [.., 0x5a, RETURN] => (arch::POP_THIRD_ARGUMENT, &mut self.third),
            [.., 0x5a, 0x5b, RETURN] => (arch::POP_THIRD_ARGUMENT_AND_RBX, &mut self.third_and_rbx),
            [.., 0x58, RETURN] => (arch::POP_NUMBER, &mut self.number),
            [.., 0xc9, RETURN] => (arch::LEAVE_RETURN, &mut self.pivot),
            [.., 0x05, RETURN] => (arch::SYSCALL_RETURN, &mut self.syscall_return),
            _ => return self.look_for_store(start, code),
        };
        if slot.is_none() && code.ends_with(pattern) {
            *slot = Some(start + ByteCount((code.len() - pattern.len()) as u64));
        }
        self.look_for_store(start, code);
    }

    /// Looks for a store whose last byte is the last one of some code.
    fn look_for_store(&mut self, start: Address, code: &[u8]) {
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

/// Code of a file or of the kernel. No program changes its instructions between the search and the call.
fn is_steady(area: &Area) -> bool {
    is_code(area) && !area.protection.write && area.backing != Backing::Anonymous
}

/// Code that a program has made itself, and may make anew at any time. All that a packed program has.
fn is_unsteady(area: &Area) -> bool {
    is_code(area) && !is_steady(area)
}

fn is_code(area: &Area) -> bool {
    area.protection.execute && area.name != "[vsyscall]"
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
        found.look(Address(0x1000), &code);
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
        found.look(Address(0), &code[..1024]);
        assert!(!found.passed_over);
        found.look(Address(1024), &code[1024..]);
        assert!(found.passed_over && found.store.is_none());
        found.is_thorough = true;
        assert!(found.look(Address(0), &code));
        let (at, store) = found.store.unwrap();
        assert_eq!((at, store.words, store.base_word), (Address(2048), 3, Some(2)));
    }

    /// Just-in-time compilers write into such areas all the time: a call that went through a Java program's came back
    /// with SIGSEGV, one in forty under load.
    #[test]
    fn code_that_may_be_written_anew_comes_last() {
        let text = "7f0000000000-7f0000001000 rwxp 00000000 00:00 0 \n\
                    7f0000002000-7f0000003000 r-xp 00000000 00:00 0 \n\
                    7f0000004000-7f0000005000 r-xp 00001000 08:01 77 /usr/lib/libc.so.6\n\
                    7f0000006000-7f0000007000 rwxp 00001000 08:01 77 /usr/lib/libc.so.6\n\
                    7f0000008000-7f0000009000 rw-p 00000000 00:00 0 \n";
        let areas = crate::procfs::areas_in(text.as_bytes()).unwrap();
        let steady: Vec<bool> = areas.iter().map(is_steady).collect();
        assert_eq!(steady, [false, false, true, false, false]);
        let unsteady: Vec<bool> = areas.iter().map(is_unsteady).collect();
        assert_eq!(unsteady, [true, true, false, true, false]);
    }
}
