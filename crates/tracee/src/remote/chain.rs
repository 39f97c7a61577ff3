//! Builds *chains*: sequences of system calls that a thread makes with one resumption.
//!
//! A *link* is the part of a chain that makes one call.
//!
//! Owns: the layout of the chain on the thread's stack.
//! Invariants: every link returns to the next link, and the last link returns to the restore path. While a
//! chain runs, all signals except the ending signal are blocked. If this program dies, the thread makes the
//! remaining calls and restores itself.
//! Does not: decide when a chain may run; the session does.
//!
//! A chain is a [ROP chain](https://en.wikipedia.org/wiki/Return-oriented_programming). Load gadgets, which pop
//! registers and return, load the arguments and the number of the call. The call returns into a load gadget, which
//! loads the address of the result. This gadget returns to a store gadget, which stores the result register and
//! returns to the next link. No rt_sigreturn(2) runs between the calls: it would make the kernel discard the state
//! for resuming an interrupted sleep.
//!
//! The last link sends the *ending signal* to the thread itself. A traced thread stops at each signal, so the
//! tracer detects the end of the chain. The program has no handler for the ending signal, and the default
//! action is to ignore the signal. Therefore the ending signal has no effect without a tracer. If possible,
//! the ending signal is a signal that the thread does not block. If the thread blocks the signal, the chain
//! unblocks it while the chain runs. If another process sends the signal in this time, the session sends the
//! signal again afterwards.

use model::{Address, ByteCount, Signal, Tid};
use sys::Error;
use sys::ptrace::Registers;

use super::gadgets::{Gadgets, STORE_WORDS_MAX};
use crate::arch::numbers::TKILL;
use crate::arch::{self, RestoreFrame};
use crate::memory::ProcessMemory;
use crate::procfs::SignalSets;

/// Maximum number of calls in one chain. More calls need several chains.
pub(super) const LINKS_MAX: usize = 24;
/// Maximum words that make one call: three load gadgets with their values, the second word that a load gadget for
/// the third argument may pop, the load gadget and the number of the call, and `syscall; ret`.
const CALL_WORDS_MAX: usize = 10;
const LINK_BYTES: u64 = 8 * (CALL_WORDS_MAX + STORE_WORDS_MAX) as u64;
const SLOT_BYTES: u64 = 8;
pub(super) const fn bytes_of(calls: usize) -> ByteCount {
    // The call that sends the ending signal needs a link, too.
    ByteCount((calls as u64 + 1) * (LINK_BYTES + SLOT_BYTES))
}

/// Value of a slot (the memory for one result) before the call is made. No system call returns this value.
/// The low 32 bits of the value (-1) are no valid fd.
pub(super) const UNSET: u64 = 0x8000_0000_ffff_ffff;

/// SIGURG, SIGWINCH and SIGCHLD. By default, these signals have no effect.
pub(super) const ENDING_SIGNALS: [Signal; 3] = [Signal(23), Signal(28), Signal(17)];

/// One system call to make.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Number of the system call.
    pub number: i64,
    /// Arguments of the system call.
    pub arguments: [u64; 6],
}

/// A chain that is ready to be written and begun.
#[derive(Debug)]
pub(super) struct Chain {
    /// Bytes to write at the start of the memory for the chain.
    pub(super) bytes: Vec<u8>,
    pub(super) first: Registers,
    /// The ending signal: the thread stops at this signal at the end of the chain.
    pub(super) signal: Signal,
    pub(super) slots: Slots,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) first: Address,
    /// Distance in bytes between two results.
    pub(super) stride: ByteCount,
}

pub(super) struct Plan<'a> {
    pub(super) thread: Tid,
    /// Registers of the thread before the session. The registers for each call are derived from them.
    pub(super) original: &'a Registers,
    pub(super) gadgets: &'a Gadgets,
    pub(super) start: Address,
    /// The restore path to which the last link returns.
    pub(super) restore_frame: RestoreFrame,
    pub(super) signal: Signal,
    /// Locations of the results. With `None`, the results are at the start of the chain.
    pub(super) slots: Option<Slots>,
}

/// Returns a signal that can end a chain in a thread with this mask. A signal that the thread does not block
/// is preferred. A thread that blocks a signal may wait for this signal, for example in sigwait(3).
pub(super) fn ending_signal(sets: SignalSets, mask: u64) -> Option<Signal> {
    let used = sets.caught | sets.pending;
    let is_free = |signal: &Signal, used: u64| used & bit(*signal) == 0;
    let open = ENDING_SIGNALS.into_iter().find(|signal| is_free(signal, used | mask));
    open.or_else(|| ENDING_SIGNALS.into_iter().find(|signal| is_free(signal, used)))
}

impl Plan<'_> {
    /// Builds a chain, or returns `None` if the program lacks the gadgets. All calls must have the same fourth
    /// argument, and zero as fifth and sixth argument.
    pub(super) fn build(&self, queries: &[Query]) -> Option<Chain> {
        debug_assert!(queries.len() <= LINKS_MAX, "a chain fits its room");
        let (store, pivot) = (self.gadgets.store?, self.gadgets.pivot?);
        let fourth = queries.first()?.arguments[3];
        let (slots, mut words) = match self.slots {
            Some(slots) => (slots, Vec::new()),
            None => (Slots { first: self.start, stride: ByteCount(SLOT_BYTES) }, vec![UNSET; queries.len()]),
        };
        let links = words.len();
        for (index, query) in queries.iter().enumerate() {
            if query.arguments[3..] != [fourth, 0, 0] {
                return None;
            }
            self.push_call(&mut words, query)?;
            words.extend(store.words(slots.at(index)));
        }
        let (tid, signal) = (self.thread.get() as u64, self.signal.get() as u64);
        let end = Query { number: TKILL, arguments: [tid, signal, 0, 0, 0, 0] };
        self.push_call(&mut words, &end)?;
        words.push(pivot.get());
        let nothing = arch::with_syscall(self.original, Address(0), 0, [0, 0, 0, fourth, 0, 0]);
        let first = Registers {
            rip: words[links],
            rsp: (self.start + ByteCount(8 * (links as u64 + 1))).get(),
            rbp: self.restore_frame.frame_pointer().get(),
            ..nothing
        };
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Some(Chain { bytes, first, signal: self.signal, slots })
    }

    fn push_call(&self, words: &mut Vec<u64>, query: &Query) -> Option<()> {
        let loads = self.gadgets.loads?;
        let [first, second, third, ..] = query.arguments;
        match loads.third {
            Some((at, false)) => words.extend([at.get(), third]),
            Some((at, true)) => words.extend([at.get(), third, 0]),
            // The third argument register is already zero at the start of the chain.
            None if third == 0 => {}
            None => return None,
        }
        words.extend([loads.first.get(), first, loads.second.get(), second]);
        words.extend([loads.number.get(), query.number as u64, self.gadgets.syscall_return.get()]);
        Some(())
    }
}

/// Reports whether a thread that is stopped at a signal has sent this signal to itself, as the last link of a
/// chain does.
pub(super) fn has_sent_ending_signal(registers: &Registers) -> bool {
    registers.orig_rax as i64 == TKILL
}

pub(super) fn bit(signal: Signal) -> u64 {
    1 << (signal.get() - 1)
}

impl Slots {
    fn at(&self, index: usize) -> Address {
        self.first + ByteCount(index as u64 * self.stride.get())
    }

    /// Reads the results of `count` calls. `None` means that the call was not made.
    pub(super) fn read(&self, count: usize, memory: &ProcessMemory) -> Result<Vec<Option<i64>>, Error> {
        let length = self.at(count) - self.first;
        let bytes = memory.read_vec(self.first, length)?;
        let words = bytes.chunks_exact(self.stride.get() as usize).filter_map(|slot| slot.first_chunk());
        let results = words.map(|word| u64::from_ne_bytes(*word));
        Ok(results.map(|word| (word != UNSET).then_some(word as i64)).collect())
    }
}
