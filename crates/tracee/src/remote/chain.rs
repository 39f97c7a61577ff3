//! Many calls with one resumption: a chain on the thread's stack, each link of which leads to the next call.
//!
//! Owns: the layout of the chain.
//! Invariants: every link of it leads on, and the last one leads home, with all signals but one held back that does
//! nothing; should this program die, the thread makes the calls that are left and comes home by itself.
//! Does not: decide when a chain may run; the session does.
//!
//! Of stack words: instruction sequences of the program take the first two arguments and the number of the call off
//! the stack, the call returns into one that stores the result register, and that returns to the next link. Of signal
//! frames, where the program lacks those sequences: the store returns into the signal restorer, and rt_sigreturn loads
//! the registers of the next call from the frame there; it makes the kernel forget how to resume a sleep.
//! The last link sends a signal to the thread itself that it does not handle and that does nothing by default: the
//! thread stops there for the tracer, and without one nothing happens. One that the thread blocks is second choice: it
//! gets through for as long as the chain runs, and the session sends it again if another process has sent it meanwhile.

use model::{Address, ByteCount, Pid, Signal, Tid};
use sys::Error;
use sys::ptrace::Registers;

use super::gadgets::Gadgets;
use crate::arch::numbers::{TGKILL, TKILL};
use crate::arch::{self, HomePlace, Preserved};
use crate::memory::ProcessMemory;
use crate::procfs::SignalSets;

/// Most calls of one chain; more go in several.
pub(super) const LINKS_MAX: usize = 24;
/// Bytes of one link: the store's address, words that it takes, the frame.
const LINK_BYTES: u64 = 8 * (1 + arch::STORE_WORDS_MAX as u64) + arch::FRAME_BYTES;
/// Bytes of a result.
const SLOT_BYTES: u64 = 8;
/// Room for a chain of so many calls, however it is built.
pub(super) const fn bytes_of(calls: usize) -> ByteCount {
    // The call that ends it takes a link of its own.
    ByteCount((calls as u64 + 1) * (LINK_BYTES + SLOT_BYTES))
}

/// What a slot holds until its call has been made; no call returns it, and as a descriptor it is none.
pub(super) const UNSET: u64 = 0x8000_0000_ffff_ffff;

/// SIGURG, SIGWINCH, SIGCHLD: they do nothing by default.
pub(super) const HARMLESS: [Signal; 3] = [Signal(23), Signal(28), Signal(17)];

/// One call to be made.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// A chain, ready to be written and begun.
#[derive(Debug)]
pub(super) struct Chain {
    /// What to write at the start of the room.
    pub(super) bytes: Vec<u8>,
    /// Registers to begin with.
    pub(super) first: Registers,
    /// The signal at which the thread stops in the end.
    pub(super) signal: Signal,
    /// Where the results are.
    pub(super) slots: Slots,
    /// Signals held back while it runs; its frames may hold back more.
    pub(super) mask: u64,
}

/// Where the results of a chain go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// Where the first one goes.
    pub(super) first: Address,
    /// From one to the next.
    pub(super) stride: ByteCount,
}

/// What a chain is built from.
pub(super) struct Plan<'a> {
    /// The process's number and the thread's.
    pub(super) thread: (Pid, Tid),
    /// Registers that calls start from.
    pub(super) original: &'a Registers,
    /// Instructions found before.
    pub(super) gadgets: &'a Gadgets,
    /// Where the chain goes.
    pub(super) start: Address,
    /// The end of the way.
    pub(super) home: HomePlace,
    /// The signal to end with.
    pub(super) signal: Signal,
    /// Where the results go; `None` for the start of the chain.
    pub(super) slots: Option<Slots>,
}

/// A signal that a thread with this mask can end a chain with; better one that it does not block, since no sigwait(3)
/// takes that.
pub(super) fn harmless(sets: SignalSets, mask: u64) -> Option<Signal> {
    let used = sets.caught | sets.pending;
    let is_free = |signal: &Signal, used: u64| used & bit(*signal) == 0;
    let open = HARMLESS.into_iter().find(|signal| is_free(signal, used | mask));
    open.or_else(|| HARMLESS.into_iter().find(|signal| is_free(signal, used)))
}

impl Plan<'_> {
    /// The chain of some calls on stack words, if the program has the instructions for it. The calls have no fifth
    /// argument, and the same fourth.
    pub(super) fn build_of_words(&self, queries: &[Query]) -> Option<Chain> {
        debug_assert!(queries.len() <= LINKS_MAX, "a chain fits its room");
        let (store_at, store) = self.gadgets.store.filter(|(_, store)| store.serves_pops())?;
        let pivot = self.gadgets.pivot?;
        let fourth = queries.first()?.arguments[3];
        let (slots, mut words) = self.slots(queries.len());
        let slot = |index: usize| slots.at(index);
        let links = words.len();
        for (index, query) in queries.iter().enumerate() {
            if query.arguments[3..] != [fourth, 0, 0] {
                return None;
            }
            let rbx = if store.base == Preserved::Rbx { slot(index) } else { Address(0) };
            self.push_call(&mut words, query, rbx)?;
            words.push(store_at.get());
            words.extend((0..store.words).map(|word| match store.base_word == Some(word) {
                true => slot(index + 1).get(),
                // One of them may be for the frame pointer, by which the way goes home.
                false => self.home.frame_pointer().get(),
            }));
        }
        let (tid, signal) = (self.thread.1.get() as u64, self.signal.get() as u64);
        let end = Query { number: TKILL, arguments: [tid, signal, 0, 0, 0, 0] };
        self.push_call(&mut words, &end, Address(0))?;
        words.push(pivot.get());
        let nothing = arch::with_syscall(self.original, Address(0), 0, [0, 0, 0, fourth, 0, 0]);
        let first = Registers {
            rip: words[links],
            rsp: (self.start + ByteCount(8 * (links as u64 + 1))).get(),
            rbp: self.home.frame_pointer().get(),
            ..nothing
        };
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let first = arch::with_preserved(&first, store.base, slot(0));
        Some(Chain { bytes, first, signal: self.signal, slots, mask: !bit(self.signal) })
    }

    /// Where so many results go, and what lies at the start of the chain for it.
    fn slots(&self, count: usize) -> (Slots, Vec<u64>) {
        match self.slots {
            Some(slots) => (slots, Vec::new()),
            None => (Slots { first: self.start, stride: ByteCount(SLOT_BYTES) }, vec![UNSET; count]),
        }
    }

    /// The words that make a call; `rbx` is what that register must hold afterwards.
    fn push_call(&self, words: &mut Vec<u64>, query: &Query, rbx: Address) -> Option<()> {
        let loads = self.gadgets.loads?;
        let [first, second, third, ..] = query.arguments;
        match loads.third {
            Some((at, false)) => words.extend([at.get(), third]),
            Some((at, true)) => words.extend([at.get(), third, rbx.get()]),
            // It is zero from the start.
            None if third == 0 => {}
            None => return None,
        }
        words.extend([loads.first.get(), first, loads.second.get(), second]);
        words.extend([loads.number.get(), query.number as u64, self.gadgets.syscall_return.get()]);
        Some(())
    }

    /// The chain of some calls on signal frames, if the program has the instructions for it.
    pub(super) fn build_of_frames(&self, queries: &[Query]) -> Option<Chain> {
        debug_assert!(queries.len() <= LINKS_MAX, "a chain fits its room");
        let (store_at, store) = self.gadgets.store?;
        let link_bytes = ByteCount(8 * (1 + store.words as u64) + arch::FRAME_BYTES);
        let (slots, unset) = self.slots(queries.len());
        let links = self.start + ByteCount(8 * unset.len() as u64);
        let link_at = |index: usize| links + ByteCount(index as u64 * link_bytes.get());
        let registers_of = |index: usize| match queries.get(index) {
            Some(query) => {
                let call = self.at_gadget(query.number, query.arguments, link_at(index));
                arch::with_preserved(&call, store.base, slots.at(index))
            }
            None => {
                let (pid, tid) = self.thread;
                let arguments = [pid.get() as u64, tid.get() as u64, self.signal.get() as u64, 0, 0, 0];
                self.at_gadget(TGKILL, arguments, self.home.start)
            }
        };
        let mut bytes: Vec<u8> = Vec::with_capacity(bytes_of(queries.len()).get() as usize);
        bytes.extend(unset.iter().flat_map(|word| word.to_ne_bytes()));
        for index in 1..=queries.len() {
            bytes.extend(store_at.get().to_ne_bytes());
            bytes.resize(bytes.len() + 8 * store.words, 0);
            let mask = if index == queries.len() { !bit(self.signal) } else { u64::MAX };
            let restorer = self.gadgets.restorer;
            bytes.extend(arch::frame(&registers_of(index), mask, self.home.state, restorer));
        }
        Some(Chain { bytes, first: registers_of(0), signal: self.signal, slots, mask: u64::MAX })
    }

    fn at_gadget(&self, number: i64, arguments: [u64; 6], stack: Address) -> Registers {
        let call = arch::with_syscall(self.original, self.gadgets.syscall_return, number, arguments);
        Registers { rsp: stack.get(), ..call }
    }
}

/// Whether a thread that stands at a signal has just sent it to itself, as the last link does.
pub(super) fn stands_at_end(registers: &Registers) -> bool {
    [TKILL, TGKILL].contains(&(registers.orig_rax as i64))
}

pub(super) fn bit(signal: Signal) -> u64 {
    1 << (signal.get() - 1)
}

impl Slots {
    fn at(&self, index: usize) -> Address {
        self.first + ByteCount(index as u64 * self.stride.get())
    }

    /// The results of so many calls; `None` where a call has not been made.
    pub(super) fn read(&self, count: usize, memory: &ProcessMemory) -> Result<Vec<Option<i64>>, Error> {
        let length = self.at(count) - self.first;
        let bytes = memory.read_vec(self.first, length)?;
        let words = bytes.chunks_exact(self.stride.get() as usize).filter_map(|slot| slot.first_chunk());
        let results = words.map(|word| u64::from_ne_bytes(*word));
        Ok(results.map(|word| (word != UNSET).then_some(word as i64)).collect())
    }
}
