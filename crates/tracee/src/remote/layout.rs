//! The memory of a subject that a session uses.
//!
//! Owns: which part lies where, and what was there before; recognising threads inside a signal handler that runs on an
//! alternate stack, and a word on that stack through which such a thread comes home.
//! Invariants: from the lowest address up: the chain, the data, the closings of opened descriptors, the home frame.
//! A word is written only below the red zone of a stack that a signal frame of the kernel names, and that both the frame
//! and the stack pointer lie on; there the kernel may write whenever a signal comes.
//! Does not: choose the place; `place` does. Find alternate stacks that are not in use: nothing in user space knows them.
//!
//! While a handler runs on an alternate stack, a signal whose handler wants that stack is handled below it. With the
//! stack pointer anywhere else, the kernel begins the stack anew at its top, over the frame that the first handler
//! returns through. So a thread like that must not leave its stack before all signals are held back; should this
//! program die before it has seen to that, the thread does it itself.

use model::{Address, ByteCount};
use sys::Error;
use sys::ptrace::Registers;

use super::chain;
use super::error::RemoteError;
use super::known::{KnownThread, RemoteContext};
use crate::arch::{self, HomePlace};
use crate::interruption;
use crate::memory::ProcessMemory;
use crate::steps;

/// Bytes of arguments and results one call may need.
pub const DATA_BYTES: u64 = 4096;

/// Most descriptors that are open at a time.
const OPENED_MAX: usize = 4;
/// Bytes of the longest store with the words that it takes.
const LINK_BYTES: u64 = 8 * (1 + arch::STORE_WORDS_MAX as u64);
/// Bytes of one closing: what leads through the store, then the frame.
pub(super) const CLOSING_BYTES: u64 = LINK_BYTES + arch::FRAME_BYTES;

/// How far above the stack pointer a signal frame is looked for: what a handler and its callees take.
const SEARCHED: ByteCount = ByteCount(64 * 1024);
/// Room that a signal frame may need below the word; without it, no signal could be handled there either.
const ROOM: ByteCount = ByteCount(1024);
const WORD_BYTES: usize = 8;

/// Room for the closings of so many descriptors.
const fn closings_bytes(opened: usize) -> ByteCount {
    ByteCount(opened as u64 * CLOSING_BYTES)
}

/// What a session has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Calls of one chain; more go in several.
    pub calls: usize,
    /// Bytes of their arguments and results.
    pub data: ByteCount,
    /// Descriptors that it has opened at a time.
    pub opened: usize,
}

impl Room {
    /// Room for whatever a session may be asked.
    pub const MOST: Self = Self { calls: chain::LINKS_MAX, data: ByteCount(DATA_BYTES), opened: OPENED_MAX };

    /// Calls of its longest chain.
    pub(super) const fn links(self) -> usize {
        match self.calls {
            0 => 1,
            calls if calls > chain::LINKS_MAX => chain::LINKS_MAX,
            calls => calls,
        }
    }

    /// Bytes of a session below its home frame, and as much as the two alignments can take.
    pub(super) const fn bytes_below_home(self) -> ByteCount {
        let calls = chain::bytes_of(self.links()).get() + closings_bytes(self.opened).get();
        ByteCount(calls + self.data.get() + 32)
    }

    /// Bytes of a subject's memory that a session in this thread takes.
    #[must_use]
    pub fn bytes(self, known: &KnownThread) -> ByteCount {
        self.bytes_below_home() + arch::home_frame_bytes(known.state_in_use())
    }
}

/// Bytes as they were before something was written over them.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) at: Address,
    bytes: Vec<u8>,
}

/// Where the parts are.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    pub(super) memory: &'a ProcessMemory,
    pub(super) room: Room,
    pub(super) chain: Address,
    pub(super) data: Address,
    pub(super) home: HomePlace,
    /// What was there, from the chain on.
    saved: Saved,
    /// Where the way home begins in a handler on an alternate stack.
    pub(super) on_alternate: Option<Saved>,
}

impl<'a> Layout<'a> {
    /// Writes the home frame of a thread below `top`; nothing leads there yet.
    pub(super) fn write(
        context: &RemoteContext<'a>,
        known: &KnownThread,
        top: Address,
        room: Room,
    ) -> Result<Self, RemoteError> {
        let (memory, restorer) = (context.memory, context.gadgets.restorer);
        let resumed = arch::restarted(&interruption::named(&known.resumed, memory));
        let (home, frame) =
            arch::home_frame(top, &resumed, known.signal_mask, known.state_in_use(), restorer);
        let closings = home.frame_pointer() - closings_bytes(room.opened);
        let data = Address((closings.get() - room.data.get()) & !15);
        let chain = data - chain::bytes_of(room.links());
        debug_assert!(top - chain <= room.bytes(known), "a session fits its place");
        let saved = Saved { at: chain, bytes: memory.read_vec(chain, top - chain)? };
        memory.write(home.start, &frame)?;
        let on_alternate = lay_on_alternate(&known.resumed, home, context)?;
        steps::reach("frame written");
        Ok(Self { memory, room, chain, data, home, saved, on_alternate })
    }

    /// Brings back what was there before.
    pub(super) fn put_back(&self) -> Result<(), Error> {
        let mut saved = [&self.saved].into_iter().chain(&self.on_alternate);
        saved.try_for_each(|saved| self.memory.write(saved.at, &saved.bytes))
    }

    /// The way home through the closings of so many descriptors.
    pub(super) fn way(&self, opened: usize) -> HomePlace {
        if opened == 0 {
            return self.home;
        }
        // Below the word that the home frame has for the frame pointer.
        let start = self.home.frame_pointer() - closings_bytes(opened) + ByteCount(LINK_BYTES);
        HomePlace { start, ..self.home }
    }

    /// Where the closing of the descriptor that was opened as the `count`th has its number.
    pub(super) fn number_at(&self, count: usize) -> Address {
        self.way(count).start + ByteCount(arch::FRAME_FIRST_ARGUMENT)
    }

    pub(super) fn number_of(&self, count: usize) -> Result<Option<u64>, RemoteError> {
        let mut bytes = [0; 4];
        self.memory.read(self.number_at(count), &mut bytes)?;
        // What no call has returned is no descriptor, nor is an error.
        Ok(u64::try_from(i32::from_ne_bytes(bytes)).ok())
    }
}

/// Lays what a thread on an alternate stack needs to hold back all signals by itself: the set of them where its way
/// home takes a frame pointer from, and on its stack the way there. Gives the place on its stack and what was there.
fn lay_on_alternate(
    original: &Registers,
    home: arch::HomePlace,
    context: &RemoteContext<'_>,
) -> Result<Option<Saved>, RemoteError> {
    let (Some(pivot), Some(word)) = (context.gadgets.pivot, word_below(original, context)) else {
        return Ok(None);
    };
    let bytes = context.memory.read_vec(word, ByteCount(WORD_BYTES as u64))?;
    context.memory.write(home.frame_pointer(), &u64::MAX.to_ne_bytes())?;
    context.memory.write(word, &pivot.get().to_ne_bytes())?;
    Ok(Some(Saved { at: word, bytes }))
}

/// The place for a word on the alternate stack that a thread with these registers is on.
fn word_below(registers: &Registers, context: &RemoteContext<'_>) -> Option<Address> {
    let at = Address(registers.rsp);
    let area = context.areas.iter().find(|area| area.range.contains(at))?;
    // What C libraries keep of a thread lies at the end of the stack that they gave it.
    if area.name == "[stack]" || area.range.contains(Address(registers.fs_base)) {
        return None;
    }
    let length = (area.range.end - at).min(SEARCHED);
    let bytes = context.memory.read_vec(at, length).ok()?;
    let stack = (0..bytes.len()).step_by(WORD_BYTES).find_map(|offset| {
        let head = bytes.get(offset..)?.first_chunk::<{ arch::HOME_FRAME_HEAD_BYTES }>()?;
        let stack = arch::alternate_stack(head)?;
        let holds = |at: Address| stack.start < at && at <= stack.end;
        (holds(at) && holds(at + ByteCount(offset as u64))).then_some(stack)
    })?;
    let word = Address((at.get() - arch::RED_ZONE.get() - WORD_BYTES as u64) & !15);
    (word >= stack.start + ROOM).then_some(word)
}
