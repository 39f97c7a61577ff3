//! Where in a subject's memory a signal frame harms nothing.
//!
//! Owns: the choice between the thread's own stack and the unused part of the initial one.
//! Invariants: only memory below the red zone of a stack in use, or that the program never wrote, is chosen; a
//! heap block that serves as a stack (Go's, coroutines, alternate signal stacks) never is.
//! Does not: write there.

use model::{Address, AddressRange, ByteCount, PAGE_BYTES};
use sys::pagemap::Pagemap;
use sys::ptrace::{self, Registers};
use sys::{Errno, Error};

use super::{RemoteContext, RemoteError};
use crate::arch::x86_64 as arch;
use crate::memory::ProcessMemory;
use crate::thread::{Stopped, Thread};

/// Pages at the bottom of the initial stack that earlier sessions may have used; they left zeros there.
const REUSED_PAGES_MAX: u64 = 16;
/// How far below a leader that is deep in its stack another thread's frame is laid: so much may the leader use
/// before that thread has come home, should this program die.
const DISTANCE: ByteCount = ByteCount(64 * 1024);

/// The address below which `room` bytes may be used for a thread with these registers.
///
/// The leader on the initial stack uses what lies below its red zone. Everybody else uses the bottom of that
/// stack, far below the leader; if the leader runs elsewhere, pages that were never written.
pub(super) fn top(
    thread: &Thread<Stopped>,
    context: &RemoteContext<'_>,
    registers: &Registers,
    room: ByteCount,
) -> Result<Address, RemoteError> {
    let leader = thread.pid().leader();
    let initial = context.areas.iter().find(|area| area.name == "[stack]");
    let stack = initial.ok_or(RemoteError::NoStack(thread.tid()))?.range;
    let leader_at = if thread.tid() == leader {
        Some(Address(registers.rsp))
    } else {
        // Not stopped by us, or ended while its threads go on: then its place is not known.
        ptrace::registers(leader).ok().map(|registers| Address(registers.rsp))
    };
    match leader_at.filter(|at| stack.contains(*at)) {
        Some(at) if thread.tid() == leader => Ok(at - arch::RED_ZONE),
        Some(at) => Ok(far_below(at - arch::RED_ZONE, stack, room)),
        None => {
            let place = unwritten(context.memory, stack, room)?;
            // Pages below all that was ever used: the stack grows by them.
            Ok(place.unwrap_or(stack.start))
        }
    }
}

fn far_below(used: Address, stack: AddressRange, room: ByteCount) -> Address {
    let lowest = stack.start + room;
    if used > lowest + DISTANCE { lowest } else { Address(used.get() & !(PAGE_BYTES - 1)) - DISTANCE }
}

/// The end of `room` bytes in pages that hold nothing, with as much above that holds nothing either.
fn unwritten(
    memory: &ProcessMemory,
    stack: AddressRange,
    room: ByteCount,
) -> Result<Option<Address>, RemoteError> {
    let written = Pagemap::open(memory.pid())?.look(stack)?.private;
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
