//! Lays out the memory that a session (see `session`) uses in a subject.
//!
//! A *chain* is a sequence of system calls that the thread makes in one resumption.
//!
//! Owns: the addresses of the parts of this memory, and its previous contents. Also the search for an
//! alternate stack on which the thread runs a signal handler, and one word on this stack. The restore path of
//! the thread begins at this word.
//! Invariants: the parts are, from the lowest address up: chain, data, deferred closes, restore frame. The
//! word on an alternate stack is below the red zone of the stack pointer, where the kernel may write a frame
//! at each signal. The word is written only if a signal frame of the kernel names the alternate stack. Both
//! this signal frame and the stack pointer must be in the alternate stack.
//! Does not: choose the memory; `place` does. Find alternate stacks that are not in use, because only the
//! kernel knows their addresses.
//!
//! While a handler runs on an alternate stack (sigaltstack(2)), the kernel puts the frame of the next handler
//! below the stack pointer. If the stack pointer has left the alternate stack, the kernel puts this frame at
//! the top of the alternate stack. This would overwrite the frame through which the first handler returns.
//! Therefore all signals must be blocked before the stack pointer leaves an alternate stack. Normally, this
//! program blocks the signals of the thread. If this program dies before, the thread blocks the signals
//! itself, in the first call of its restore path.

use model::{Address, ByteCount};
use sys::Error;
use sys::ptrace::Registers;

use super::chain;
use super::error::RemoteError;
use super::gadgets::STORE_WORDS_MAX;
use super::known::{KnownThread, RemoteContext};
use crate::arch::{self, RestoreFrame};
use crate::interruption;
use crate::memory::ProcessMemory;
use crate::steps;

/// Maximum bytes of arguments and results of one call.
pub const DATA_BYTES: u64 = 4096;

/// Maximum number of descriptors that a session has open at a time.
const OPENED_MAX: usize = 4;
/// Maximum bytes of the words that store the result of a call.
const LINK_BYTES: u64 = 8 * STORE_WORDS_MAX as u64;
/// Bytes of one deferred close: the words that store the fd, then a signal frame.
pub(super) const DEFERRED_CLOSE_BYTES: u64 = LINK_BYTES + arch::FRAME_BYTES;

/// Number of bytes above the stack pointer that are searched for a signal frame. The search assumes that a
/// handler and the functions that it calls use no more stack.
const SEARCHED: ByteCount = ByteCount(64 * 1024);
/// Bytes that a signal frame may need below the word. With less space, the kernel could not run another
/// handler on the stack anyway.
const HANDLER_FRAME_BYTES: ByteCount = ByteCount(1024);
const WORD_BYTES: usize = 8;

const fn deferred_close_bytes(opened: usize) -> ByteCount {
    ByteCount(opened as u64 * DEFERRED_CLOSE_BYTES)
}

/// The capacity of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCapacity {
    /// Maximum number of calls in one chain. More calls need several chains.
    pub calls: usize,
    /// Bytes of arguments and results.
    pub data: ByteCount,
    /// Maximum number of descriptors that the session has open at a time.
    pub opened: usize,
}

impl SessionCapacity {
    /// The maximum capacity of a session.
    pub const MAX: Self = Self { calls: chain::LINKS_MAX, data: ByteCount(DATA_BYTES), opened: OPENED_MAX };

    /// Returns the maximum number of calls in one chain, at least 1.
    pub(super) const fn links(self) -> usize {
        match self.calls {
            0 => 1,
            calls if calls > chain::LINKS_MAX => chain::LINKS_MAX,
            calls => calls,
        }
    }

    /// Returns the bytes of a session below its restore frame, with padding for two alignments.
    pub(super) const fn bytes_below_restore_frame(self) -> ByteCount {
        let calls = chain::bytes_of(self.links()).get() + deferred_close_bytes(self.opened).get();
        ByteCount(calls + self.data.get() + 32)
    }

    /// Returns the bytes of subject memory that a session in this thread uses.
    #[must_use]
    pub fn bytes(self, known: &KnownThread) -> ByteCount {
        self.bytes_below_restore_frame() + arch::restore_frame_bytes(known.state_in_use())
    }
}

/// Previous contents of overwritten memory.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) at: Address,
    bytes: Vec<u8>,
}

/// Addresses of the parts of a session's memory.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    pub(super) memory: &'a ProcessMemory,
    pub(super) capacity: SessionCapacity,
    pub(super) chain: Address,
    pub(super) data: Address,
    pub(super) restore_frame: RestoreFrame,
    /// Previous contents, from the chain to the end of the restore frame.
    saved: Saved,
    /// The word where the restore path begins, for a thread in a handler on an alternate stack.
    pub(super) on_alternate: Option<Saved>,
}

impl<'a> Layout<'a> {
    /// Writes the restore frame of a thread below `top`. The registers of the thread are not changed yet.
    pub(super) fn write(
        context: &RemoteContext<'a>,
        known: &KnownThread,
        top: Address,
        capacity: SessionCapacity,
    ) -> Result<Self, RemoteError> {
        let (memory, restorer) = (context.memory, context.gadgets.restorer);
        let resumed = arch::restarted(&interruption::named(&known.resumed, memory));
        let (restore_frame, frame) =
            arch::restore_frame(top, &resumed, known.signal_mask, known.state_in_use(), restorer);
        let deferred_closes = restore_frame.frame_pointer() - deferred_close_bytes(capacity.opened);
        let data = Address((deferred_closes.get() - capacity.data.get()) & !15);
        let chain = data - chain::bytes_of(capacity.links());
        debug_assert!(top - chain <= capacity.bytes(known), "a session fits its place");
        let saved = Saved { at: chain, bytes: memory.read_vec(chain, top - chain)? };
        memory.write(restore_frame.start, &frame)?;
        let on_alternate = write_on_alternate(&known.resumed, restore_frame, context)?;
        steps::reach("frame written");
        Ok(Self { memory, capacity, chain, data, restore_frame, saved, on_alternate })
    }

    /// Restores the previous contents of the memory.
    pub(super) fn put_back(&self) -> Result<(), Error> {
        let mut saved = [&self.saved].into_iter().chain(&self.on_alternate);
        saved.try_for_each(|saved| self.memory.write(saved.at, &saved.bytes))
    }

    /// Returns the start of the restore path that includes the deferred closes of `opened` descriptors.
    pub(super) fn restore_path(&self, opened: usize) -> RestoreFrame {
        if opened == 0 {
            return self.restore_frame;
        }
        // The deferred closes are below the word that `leave` pops into rbp.
        let start = self.restore_frame.frame_pointer() - deferred_close_bytes(opened) + ByteCount(LINK_BYTES);
        RestoreFrame { start, ..self.restore_frame }
    }

    /// Returns the address of the fd argument in the deferred close of the `count`th descriptor, counted from
    /// 1.
    pub(super) fn fd_address(&self, count: usize) -> Address {
        self.restore_path(count).start + ByteCount(arch::FRAME_FIRST_ARGUMENT)
    }

    pub(super) fn fd_of(&self, count: usize) -> Result<Option<u64>, RemoteError> {
        let mut bytes = [0; 4];
        self.memory.read(self.fd_address(count), &mut bytes)?;
        // The initial value and the errors of a call are negative as an i32, so they give `None`.
        Ok(u64::try_from(i32::from_ne_bytes(bytes)).ok())
    }
}

/// Prepares the call of rt_sigprocmask(2) with which a thread on an alternate stack blocks all signals.
/// Writes the argument of the call, the full signal set, to the word that `leave` pops. Writes the return
/// address of the call, `leave; ret`, to a word on the alternate stack. Returns the address and the previous
/// contents of the word on the alternate stack.
fn write_on_alternate(
    original: &Registers,
    restore_frame: arch::RestoreFrame,
    context: &RemoteContext<'_>,
) -> Result<Option<Saved>, RemoteError> {
    let (Some(pivot), Some(word)) = (context.gadgets.pivot, word_below(original, context)) else {
        return Ok(None);
    };
    let bytes = context.memory.read_vec(word, ByteCount(WORD_BYTES as u64))?;
    context.memory.write(restore_frame.frame_pointer(), &u64::MAX.to_ne_bytes())?;
    context.memory.write(word, &pivot.get().to_ne_bytes())?;
    Ok(Some(Saved { at: word, bytes }))
}

/// If a thread with these registers runs on an alternate stack, returns the address for a word on this stack.
/// Returns `None` if no alternate stack is found, or if too little space is left on the stack.
fn word_below(registers: &Registers, context: &RemoteContext<'_>) -> Option<Address> {
    let at = Address(registers.rsp);
    let mapping = context.mappings.iter().find(|mapping| mapping.range.contains(at))?;
    // fs_base is the address of the thread control block. A C library puts this block at the end of the
    // normal stack of a thread. Therefore a mapping that contains this block is no alternate stack.
    if mapping.name == "[stack]" || mapping.range.contains(Address(registers.fs_base)) {
        return None;
    }
    let length = (mapping.range.end - at).min(SEARCHED);
    let bytes = context.memory.read_vec(at, length).ok()?;
    let stack = (0..bytes.len()).step_by(WORD_BYTES).find_map(|offset| {
        let head = bytes.get(offset..)?.first_chunk::<{ arch::RESTORE_FRAME_HEAD_BYTES }>()?;
        let stack = arch::alternate_stack(head)?;
        let holds = |at: Address| stack.start < at && at <= stack.end;
        (holds(at) && holds(at + ByteCount(offset as u64))).then_some(stack)
    })?;
    let word = Address((at.get() - arch::RED_ZONE.get() - WORD_BYTES as u64) & !15);
    (word >= stack.start + HANDLER_FRAME_BYTES).then_some(word)
}
