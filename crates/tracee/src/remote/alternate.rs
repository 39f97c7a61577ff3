//! Threads inside a signal handler that runs on an alternate stack.
//!
//! Owns: recognising them, and a word on that stack through which such a thread comes home.
//! Invariants: a word is written only below the red zone of a stack that a signal frame of the kernel names, and that
//! both the frame and the stack pointer lie on; there the kernel may write whenever a signal comes.
//! Does not: find alternate stacks that are not in use; nothing in user space knows them.
//!
//! While a handler runs on an alternate stack, a signal whose handler wants that stack is handled below it. With the
//! stack pointer anywhere else, the kernel begins the stack anew at its top, over the frame that the first handler
//! returns through. So a thread like that must not leave its stack before all signals are held back; should this
//! program die before it has seen to that, the thread does it itself.

use model::{Address, ByteCount};
use sys::ptrace::Registers;

use super::error::RemoteError;
use super::known::RemoteContext;
use crate::arch;
use crate::memory::Saved;

/// How far above the stack pointer a signal frame is looked for: what a handler and its callees take.
const SEARCHED: ByteCount = ByteCount(64 * 1024);
/// Room that a signal frame may need below the word; without it, no signal could be handled there either.
const ROOM: ByteCount = ByteCount(1024);
const WORD_BYTES: usize = 8;

/// Lays what a thread on an alternate stack needs to hold back all signals by itself: the set of them where its way
/// home takes a frame pointer from, and on its stack the way there. Gives the place on its stack and what was there.
pub(super) fn lay(
    original: &Registers,
    home: arch::HomePlace,
    context: &RemoteContext<'_>,
) -> Result<Option<Saved>, RemoteError> {
    let (Some(pivot), Some(word)) = (context.gadgets.pivot, word_below(original, context)) else {
        return Ok(None);
    };
    let saved = context.memory.save(word, ByteCount(WORD_BYTES as u64))?;
    context.memory.write(home.frame_pointer(), &u64::MAX.to_ne_bytes())?;
    context.memory.write(word, &pivot.get().to_ne_bytes())?;
    Ok(Some(saved))
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
