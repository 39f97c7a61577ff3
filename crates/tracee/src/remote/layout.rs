//! The memory of a subject that a session uses.
//!
//! Owns: which part lies where, and what was there before.
//! Invariants: from the lowest address up: the chain, the data, the closings of opened descriptors, the home frame.
//! Does not: choose the place; `place` does.

use model::{Address, ByteCount};
use sys::Error;

use super::{KnownThread, RemoteContext, RemoteError, alternate, chain, opened};
use crate::arch::{self, HomePlace};
use crate::interruption;
use crate::memory::ProcessMemory;
use crate::steps;

/// Bytes of arguments and results one call may need.
pub const DATA_BYTES: u64 = 4096;

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
    pub const MOST: Self =
        Self { calls: chain::LINKS_MAX, data: ByteCount(DATA_BYTES), opened: opened::OPENED_MAX };

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
        let calls = chain::bytes_of(self.links()).get() + opened::bytes_of(self.opened).get();
        ByteCount(calls + self.data.get() + 32)
    }

    /// Bytes of a subject's memory that a session in this thread takes.
    #[must_use]
    pub fn bytes(self, known: &KnownThread) -> ByteCount {
        self.bytes_below_home() + arch::home_frame_bytes(known.state_in_use())
    }
}

/// Bytes of the subject that were replaced.
#[derive(Debug)]
pub(super) struct Replaced {
    pub(super) at: Address,
    pub(super) bytes: Vec<u8>,
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
    replaced: Replaced,
    /// Where the way home begins in a handler on an alternate stack.
    pub(super) on_alternate: Option<Replaced>,
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
        let closings = home.frame_pointer() - opened::bytes_of(room.opened);
        let data = Address((closings.get() - room.data.get()) & !15);
        let chain = data - chain::bytes_of(room.links());
        debug_assert!(top - chain <= room.bytes(known), "a session fits its place");
        let replaced = Replaced { at: chain, bytes: memory.read_vec(chain, top - chain)? };
        memory.write(home.start, &frame)?;
        let on_alternate = alternate::lay(&known.resumed, home, context)?;
        steps::reach("frame written");
        Ok(Self { memory, room, chain, data, home, replaced, on_alternate })
    }

    /// Brings back what was there before.
    pub(super) fn put_back(&self) -> Result<(), Error> {
        let replaced = [Some(&self.replaced), self.on_alternate.as_ref()];
        replaced.into_iter().flatten().try_for_each(|old| self.memory.write(old.at, &old.bytes))
    }
}
