//! Waits for threads that a dead tracer has left on their restore path.
//!
//! Owns: detecting such threads, and running them to the end of the path before another session uses the same
//! memory.
//! Invariants: a thread counts as such only if its stack pointer, the frame there and its current code agree.
//! If this program dies here, the thread continues on its restore path as before.
//! Does not: know the purpose of the earlier session.

use model::Address;
use sys::ptrace::{self, Registers, Stop};
use sys::{Errno, Error, process_memory};

use super::chain;
use super::gadgets::STORE_WORDS_MAX;
use super::layout::SessionCapacity;
use super::session::{CALL_LIMIT, STOP};
use crate::arch;
use crate::thread::{Stopped, Thread};
use crate::tracer::await_stop;

/// Maximum number of stops of one thread. Each call of a chain has two stops, each frame has four, and a restore path
/// has fewer than 64 calls and frames.
const STOPS_MAX: usize = 4 * 64;

/// Maximum distance in bytes from the restore frame down to a thread in a chain.
const WORDS_BELOW_MAX: u64 = SessionCapacity::MAX.bytes_below_restore_frame().get();

/// SIGKILL and SIGSTOP, which cannot be blocked.
const NEVER_BLOCKED: u64 = 1 << 8 | 1 << 18;

/// Runs a stopped thread to the end of its restore path, if the thread is on one. Afterwards the thread is in
/// an event stop again.
pub(crate) fn finish_restore(thread: &Thread<Stopped>) -> Result<(), Error> {
    let tid = thread.tid();
    if !is_on_restore_path(thread, &ptrace::registers(tid)?) {
        return Ok(());
    }
    // Signals that arrive meanwhile stay pending until the restore frame restores the thread's own mask.
    if !blocks_nearly_all(ptrace::signal_mask(tid)?) {
        ptrace::set_signal_mask(tid, u64::MAX)?;
    }
    let mut injected = None;
    for _ in 0..STOPS_MAX {
        ptrace::resume_to_syscall(tid, injected)?;
        // The signal that ends a chain is discarded. SIGSTOP is delivered, because it is meant for the whole
        // process.
        injected = next_stop(thread)?.carried().filter(|signal| *signal == STOP);
        if !is_on_restore_path(thread, &ptrace::registers(tid)?) {
            break;
        }
    }
    loop {
        ptrace::interrupt(tid)?;
        ptrace::resume(tid, injected)?;
        match next_stop(thread)? {
            Stop::Event | Stop::Group(_) => return Ok(()),
            stop => injected = stop.carried().filter(|signal| *signal == STOP),
        }
    }
}

fn next_stop(thread: &Thread<Stopped>) -> Result<Stop, Error> {
    let ended = || Error::thread("come home", thread.tid(), Errno::ESRCH);
    await_stop((thread.pid(), thread.tid()), CALL_LIMIT, "come home")?.ok_or_else(ended)
}

/// Reports whether the mask blocks all signals, except those that can end a chain.
fn blocks_nearly_all(mask: u64) -> bool {
    let ends = chain::ENDING_SIGNALS.iter().fold(0, |set, signal| set | chain::bit(*signal));
    mask | NEVER_BLOCKED | ends == u64::MAX
}

fn is_on_restore_path(thread: &Thread<Stopped>, registers: &Registers) -> bool {
    let Registers { rip, rsp, rbp, .. } = *registers;
    let code_is = |at: u64, pattern: &[u8]| {
        let mut code = [0_u8; arch::LONGEST_RESTORER];
        let code = &mut code[..pattern.len()];
        process_memory::read(thread.pid(), Address(at), code).is_ok() && code == pattern
    };
    // Before the return to the restorer, the stack pointer is at the frame. After the return, it is eight
    // bytes higher.
    if restorer_of_frame(thread, rsp).is_some() {
        return code_is(rip, arch::SYSCALL_RETURN) || code_is(rip, arch::RETURN);
    }
    if let Some(restorer) = restorer_of_frame(thread, rsp.wrapping_sub(8)) {
        return (0..=arch::LONGEST_RESTORER as u64).contains(&rip.wrapping_sub(restorer.get()))
            && arch::SIGNAL_RESTORERS.iter().any(|pattern| code_is(restorer.get(), pattern));
    }
    let rbp_leads_to_frame =
        || restorer_of_frame(thread, rbp.wrapping_add(arch::FRAME_POINTER_BYTES)).is_some();
    // The thread is on an alternate stack and blocks all signals there. The word at the stack pointer leads
    // to the restore path.
    let returns_to_pivot = || word_at(thread, rsp).is_some_and(|word| code_is(word, arch::LEAVE_RETURN));
    let is_at_return = code_is(rip, arch::SYSCALL_RETURN) || code_is(rip, arch::RETURN);
    if is_at_return && returns_to_pivot() && rbp_leads_to_frame() {
        return true;
    }
    if code_is(rip, arch::LEAVE_RETURN) {
        return rbp_leads_to_frame();
    }
    let Ok(mask) = ptrace::signal_mask(thread.tid()) else { return false };
    // Inside a chain, three conditions hold. The frame pointer is always the one of the restore
    // path. The words are below it. At most the ending signals are unblocked.
    if blocks_nearly_all(mask) && rbp.wrapping_sub(rsp) <= WORDS_BELOW_MAX && rbp_leads_to_frame() {
        return true;
    }
    // Before a deferred close, the frame of its call is a few words above the stack pointer.
    mask | NEVER_BLOCKED == u64::MAX
        && (0..=STORE_WORDS_MAX as u64).any(|words| {
            let start = rsp.wrapping_add(8 * words);
            let next = restorer_of_frame(thread, start)
                .and_then(|_| word_at(thread, start + arch::FRAME_INSTRUCTION));
            next.is_some_and(|next| code_is(next, arch::SYSCALL_RETURN))
        })
}

fn word_at(thread: &Thread<Stopped>, at: u64) -> Option<u64> {
    let mut word = [0_u8; 8];
    process_memory::read(thread.pid(), Address(at), &mut word).ok()?;
    Some(u64::from_ne_bytes(word))
}

fn restorer_of_frame(thread: &Thread<Stopped>, start: u64) -> Option<Address> {
    let mut head = [0_u8; arch::RESTORE_FRAME_HEAD_BYTES];
    process_memory::read(thread.pid(), Address(start), &mut head).ok()?;
    arch::restore_frame_restorer(&head)
}
