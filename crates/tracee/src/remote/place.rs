//! Where in a subject's memory a signal frame harms nothing.
//!
//! Owns: the choice of an unused part of the initial stack.
//! Invariants: only memory far below the leader's stack pointer, or that the program never wrote, is chosen; a
//! heap block that serves as a stack (Go's, coroutines, alternate signal stacks) never is. What is taken for
//! sessions that live at the same time does not overlap, nor does it overlap a frame by which a thread that an earlier
//! tracer has left may still come home.
//! Does not: write there, except zeros over data that is no longer needed.

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

/// Pages at the bottom of the initial stack that earlier sessions may have used; they left zeros there.
const REUSED_PAGES_MAX: u64 = 16;
/// How far below a leader that is deep in its stack a frame is laid: so much may the leader use, for signals that come
/// as well, before a thread has come home, should this program die.
const DISTANCE: ByteCount = ByteCount(64 * 1024);
/// What the sessions of several threads take together at most. Pages that they touch stay in the subject's memory.
const SEVERAL: ByteCount = ByteCount(REUSED_PAGES_MAX * PAGE_BYTES);
/// Enough for one session, whatever it is asked and whatever state the thread has.
const ONE: ByteCount = ByteCount(32 * 1024);
/// How far above a stack pointer a handler's signal frame is looked for.
const SEARCHED: ByteCount = ByteCount(64 * 1024);

/// Places for sessions in threads of one process.
#[derive(Debug)]
pub struct Places {
    /// From its end downwards.
    all: AddressRange,
    taken: Address,
}

impl Places {
    /// Finds room in a stopped process: the bottom of the initial stack, far below the leader; if the leader runs
    /// elsewhere, pages that were never written.
    pub fn find(pid: Pid, context: &RemoteContext<'_>) -> Result<Self, RemoteError> {
        let leader = pid.leader();
        let initial = context.areas.iter().find(|area| area.name == "[stack]");
        let stack = initial.ok_or(RemoteError::NoStack(leader))?.range;
        // Not stopped by us, or ended while its threads go on: then its place is not known.
        let leader_at = ptrace::registers(leader).ok().map(|registers| Address(registers.rsp));
        let mut all = match leader_at.filter(|at| stack.contains(*at)) {
            Some(at) => far_below(at - arch::RED_ZONE, stack),
            None => unwritten_or_below(context.memory, stack)?,
        };
        // One that begins below may reach into it.
        let near = AddressRange::new(stack.start.max(all.start - ONE), all.end);
        if !near.is_empty() && holds_home_frame(context.memory, near)? {
            if is_anybodys_way(pid, context, near) {
                all = below(stack);
            } else {
                forget(context.memory, all)?;
            }
        }
        Ok(Self { all, taken: all.end })
    }

    /// The end of room for a session; `None` when those that live must end first.
    pub fn take(&mut self, room: ByteCount) -> Option<Address> {
        let top = self.taken;
        // Alone, a session may go below: the stack grows by it.
        let fits = top == self.all.end || top - self.all.start >= room;
        fits.then(|| {
            self.taken = top - room;
            top
        })
    }

    /// All sessions have ended.
    pub fn reset(&mut self) {
        self.taken = self.all.end;
    }
}

/// Pages below all that was ever used: the stack grows by them.
fn below(stack: AddressRange) -> AddressRange {
    AddressRange::new(stack.start - ONE, stack.start)
}

/// Whether a tracer that died has left a frame there.
fn holds_home_frame(memory: &ProcessMemory, range: AddressRange) -> Result<bool, Error> {
    let mark = arch::home_frame_mark();
    let found = touched(memory, range)?.into_iter().any(|range| {
        let bytes = memory.read_vec(range.start, range.len());
        bytes.is_ok_and(|bytes| memmem::find(&bytes, &mark).is_some())
    });
    Ok(found)
}

/// Whether a thread may come home through there: one that is in a signal handler meanwhile has left the way in its
/// registers to the frame that the handler returns through. A thread that cannot be looked at may.
fn is_anybodys_way(pid: Pid, context: &RemoteContext<'_>, range: AddressRange) -> bool {
    let Ok(threads) = procfs::threads(pid) else { return true };
    let leads_there = |word: u64| range.start.get() <= word && word < range.end.get();
    threads.into_iter().any(|tid| {
        let Ok(Registers { rsp, rbp, .. }) = ptrace::registers(tid) else { return true };
        let Some(area) = context.areas.iter().find(|area| area.range.contains(Address(rsp))) else {
            return true;
        };
        let length = (area.range.end - Address(rsp)).min(SEARCHED);
        let Ok(bytes) = context.memory.read_vec(Address(rsp), length) else { return true };
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        leads_there(rsp) || leads_there(rbp) || words.into_iter().any(leads_there)
    })
}

/// Writes zeros over the remains of a tracer that has died.
fn forget(memory: &ProcessMemory, range: AddressRange) -> Result<(), Error> {
    for range in touched(memory, range)? {
        memory.write(range.start, &vec![0; range.len().get() as usize])?;
    }
    Ok(())
}

fn touched(memory: &ProcessMemory, range: AddressRange) -> Result<Vec<AddressRange>, Error> {
    Ok(Pagemap::open(memory.pid())?.look(range)?.private)
}

fn far_below(used: Address, stack: AddressRange) -> AddressRange {
    let bottom = |room: ByteCount| AddressRange::new(stack.start, stack.start + room);
    let fits = |range: &AddressRange| used > range.end + DISTANCE;
    let end = Address(used.get() & !(PAGE_BYTES - 1)) - DISTANCE;
    [SEVERAL, ONE].map(bottom).into_iter().find(fits).unwrap_or_else(|| AddressRange::new(end - ONE, end))
}

fn unwritten_or_below(memory: &ProcessMemory, stack: AddressRange) -> Result<AddressRange, RemoteError> {
    for room in [SEVERAL, ONE] {
        if let Some(end) = unwritten(memory, stack, room)? {
            return Ok(AddressRange::new(end - room, end));
        }
    }
    Ok(below(stack))
}

/// The end of `room` bytes in pages that hold nothing, with as much above that holds nothing either.
fn unwritten(
    memory: &ProcessMemory,
    stack: AddressRange,
    room: ByteCount,
) -> Result<Option<Address>, RemoteError> {
    let written = touched(memory, stack)?;
    let reused = Address(stack.start.get() + REUSED_PAGES_MAX * PAGE_BYTES);
    let mut start = stack.start;
    for range in written {
        if range.start - start >= ByteCount(2 * room.get()) {
            break;
        }
        if range.end > reused || !is_zero(memory, range)? {
            start = range.end;
        }
    }
    let found = start < stack.end && stack.end - start >= ByteCount(2 * room.get());
    Ok(found.then(|| start + room))
}

fn is_zero(memory: &ProcessMemory, range: AddressRange) -> Result<bool, Error> {
    match memory.read_vec(range.start, range.len()) {
        Ok(bytes) => Ok(bytes.iter().all(|byte| *byte == 0)),
        Err(error) if error.errno == Errno::SHORT => Ok(false),
        Err(error) => Err(error),
    }
}
