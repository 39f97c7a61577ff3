//! Finds unused memory in a subject for *restore frames* (signal frames with the whole context of a thread).
//!
//! The memory is in or below the initial stack, on which the *leader* begins. A *session* makes remote calls in one
//! thread, and needs memory until it ends.
//!
//! Owns: the choice of an unused part of the initial stack.
//! Invariants: the memory is either far below the leader's stack pointer, or was never written by the
//! program. A heap block that serves as a stack (goroutines, coroutines, alternate signal stacks) is never
//! chosen. Two active sessions never use the same memory. If an earlier tracer has died, sessions do not
//! overwrite its restore frames as long as a thread may use them.
//! Does not: write to this memory. The only exception: if no thread needs the restore frames of a dead
//! tracer, zeros are written over them.

use memchr::memmem;
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::pagemap::Pagemap;
use sys::ptrace::{self, Registers};
use sys::{Errno, Error};

use super::error::RemoteError;
use super::known::RemoteContext;
use crate::arch;
use crate::memory::ProcessMemory;
use crate::procfs;

/// Number of pages at the bottom of the initial stack that earlier sessions may have used. If such a page
/// contains only zeros, it counts as unused.
const REUSED_PAGES_MAX: u64 = 16;
/// Distance in bytes between the used part of the leader's stack and a restore frame. If this program dies,
/// the leader can use this distance, also for signal handlers, before the thread of the session has restored
/// itself.
const DISTANCE: ByteCount = ByteCount(64 * 1024);
/// Maximum memory that the sessions of several threads use together. Pages that the sessions touch stay
/// allocated in the subject.
const SEVERAL: ByteCount = ByteCount(REUSED_PAGES_MAX * PAGE_BYTES);
/// Memory for one session. This size is enough for every `SessionCapacity` and every size of extended state.
const ONE: ByteCount = ByteCount(32 * 1024);
/// Range above a stack pointer that is searched for the signal frame of a handler.
const SEARCHED: ByteCount = ByteCount(64 * 1024);

/// Memory for sessions in the threads of one process.
#[derive(Debug)]
pub struct Places {
    /// All usable memory. Sessions take parts of this memory, from the end downwards.
    all: AddressRange,
    taken: Address,
}

impl Places {
    /// Finds memory in a stopped process. If the leader runs on the initial stack, the memory is at the
    /// bottom of this stack, far below the leader's stack pointer. If the leader runs elsewhere, the memory
    /// is a range of pages that were never written.
    pub fn find(pid: Pid, context: &RemoteContext<'_>) -> Result<Self, RemoteError> {
        let leader = pid.leader();
        let initial = context.mappings.iter().find(|mapping| mapping.name == "[stack]");
        let stack = initial.ok_or(RemoteError::NoStack(leader))?.range;
        // The stack pointer is unknown if this tracer has not stopped the leader, or if the leader has ended
        // before the other threads.
        let leader_at = ptrace::registers(leader).ok().map(|registers| Address(registers.rsp));
        let mut all = match leader_at.filter(|at| stack.contains(*at)) {
            Some(at) => far_below(at - arch::RED_ZONE, stack),
            None => unwritten_or_below(context.memory, stack)?,
        };
        // A frame that begins below the range may extend into the range.
        let near = AddressRange::new(stack.start.max(all.start - ONE), all.end);
        if !near.is_empty() && holds_restore_frame(context.memory, near)? {
            if has_thread_on_restore_path(pid, context, near) {
                all = below(stack);
            } else {
                forget(context.memory, all)?;
            }
        }
        Ok(Self { all, taken: all.end })
    }

    /// Returns the upper end of memory for a session. Returns `None` if the active sessions leave too little
    /// memory.
    pub fn take(&mut self, length: ByteCount) -> Option<Address> {
        let top = self.taken;
        // The first session may exceed the range, because the stack mapping grows downwards on access.
        let fits = top == self.all.end || top - self.all.start >= length;
        fits.then(|| {
            self.taken = top - length;
            top
        })
    }

    /// Makes all memory available again. All sessions must have ended.
    pub fn reset(&mut self) {
        self.taken = self.all.end;
    }
}

/// Returns pages directly below the stack mapping. These pages were never used. When they are written, the
/// stack mapping grows.
fn below(stack: AddressRange) -> AddressRange {
    AddressRange::new(stack.start - ONE, stack.start)
}

/// Reports whether the range contains a frame that a dead tracer has left.
fn holds_restore_frame(memory: &ProcessMemory, range: AddressRange) -> Result<bool, Error> {
    let mark = arch::restore_frame_mark();
    let found = touched(memory, range)?.into_iter().any(|range| {
        let bytes = memory.read_vec(range.start, range.len());
        bytes.is_ok_and(|bytes| memmem::find(&bytes, &mark).is_some())
    });
    Ok(found)
}

/// Reports whether a thread may still use a restore frame in the range. The stack pointer or rbp of such a
/// thread points into the range. If the thread runs a signal handler, these two registers are in the signal
/// frame of the handler, so the stack is searched, too. If a thread cannot be inspected, the result is true.
fn has_thread_on_restore_path(pid: Pid, context: &RemoteContext<'_>, range: AddressRange) -> bool {
    let Ok(threads) = procfs::threads(pid) else { return true };
    let leads_there = |word: u64| range.start.get() <= word && word < range.end.get();
    threads.into_iter().any(|tid| {
        let Ok(Registers { rsp, rbp, .. }) = ptrace::registers(tid) else { return true };
        let Some(mapping) = context.mappings.iter().find(|mapping| mapping.range.contains(Address(rsp)))
        else {
            return true;
        };
        let length = (mapping.range.end - Address(rsp)).min(SEARCHED);
        let Ok(bytes) = context.memory.read_vec(Address(rsp), length) else { return true };
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        leads_there(rsp) || leads_there(rbp) || words.into_iter().any(leads_there)
    })
}

/// Writes zeros over the frames of a dead tracer.
fn forget(memory: &ProcessMemory, range: AddressRange) -> Result<(), Error> {
    for range in touched(memory, range)? {
        memory.write(range.start, &vec![0; range.len().get() as usize])?;
    }
    Ok(())
}

fn touched(memory: &ProcessMemory, range: AddressRange) -> Result<Vec<AddressRange>, Error> {
    Ok(Pagemap::open(memory.pid())?.scan_range(range)?.private)
}

fn far_below(used: Address, stack: AddressRange) -> AddressRange {
    let bottom = |length: ByteCount| AddressRange::new(stack.start, stack.start + length);
    let fits = |range: &AddressRange| used > range.end + DISTANCE;
    let end = Address(used.get() & !(PAGE_BYTES - 1)) - DISTANCE;
    [SEVERAL, ONE].map(bottom).into_iter().find(fits).unwrap_or_else(|| AddressRange::new(end - ONE, end))
}

fn unwritten_or_below(memory: &ProcessMemory, stack: AddressRange) -> Result<AddressRange, RemoteError> {
    for length in [SEVERAL, ONE] {
        if let Some(end) = unwritten(memory, stack, length)? {
            return Ok(AddressRange::new(end - length, end));
        }
    }
    Ok(below(stack))
}

/// Finds `2 * length` bytes of unwritten pages in the stack, and returns the end of the lower half.
fn unwritten(
    memory: &ProcessMemory,
    stack: AddressRange,
    length: ByteCount,
) -> Result<Option<Address>, RemoteError> {
    let written = touched(memory, stack)?;
    let reused = Address(stack.start.get() + REUSED_PAGES_MAX * PAGE_BYTES);
    let mut start = stack.start;
    for range in written {
        if range.start - start >= ByteCount(2 * length.get()) {
            break;
        }
        if range.end > reused || !is_zero(memory, range)? {
            start = range.end;
        }
    }
    let found = start < stack.end && stack.end - start >= ByteCount(2 * length.get());
    Ok(found.then(|| start + length))
}

fn is_zero(memory: &ProcessMemory, range: AddressRange) -> Result<bool, Error> {
    match memory.read_vec(range.start, range.len()) {
        Ok(bytes) => Ok(bytes.iter().all(|byte| *byte == 0)),
        Err(error) if error.errno == Errno::SHORT => Ok(false),
        Err(error) => Err(error),
    }
}
