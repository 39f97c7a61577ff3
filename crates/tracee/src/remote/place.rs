//! Where in a subject's memory a signal frame harms nothing.
//!
//! Owns: the choice between the thread's own stack and the unused part of the initial one.
//! Invariants: only memory below the red zone of a stack in use, or that the program never wrote, is chosen; a
//! heap block that serves as a stack (Go's, coroutines, alternate signal stacks) never is. What is taken for
//! sessions that live at the same time does not overlap.
//! Does not: write there.

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid, Tid};
use sys::pagemap::Pagemap;
use sys::ptrace;
use sys::{Errno, Error};

use super::{RemoteContext, RemoteError};
use crate::arch::x86_64 as arch;
use crate::memory::ProcessMemory;

/// Pages at the bottom of the initial stack that earlier sessions may have used; they left zeros there.
const REUSED_PAGES_MAX: u64 = 16;
/// How far below a leader that is deep in its stack another thread's frame is laid: so much may the leader use
/// before that thread has come home, should this program die.
const DISTANCE: ByteCount = ByteCount(64 * 1024);
/// What the sessions of several threads take together at most. Pages that they touch stay in the subject's memory.
const SEVERAL: ByteCount = ByteCount(REUSED_PAGES_MAX * PAGE_BYTES);
/// Enough for one session, whatever it is asked and whatever state the thread has.
const ONE: ByteCount = ByteCount(32 * 1024);

/// Places for sessions in threads of one process.
#[derive(Debug)]
pub struct Places {
    leader: Tid,
    /// Below the leader's red zone, if that lies on the initial stack.
    of_leader: Option<Address>,
    /// For all others, from its end downwards.
    of_others: AddressRange,
    taken: Address,
}

impl Places {
    /// Finds room in a stopped process.
    ///
    /// The leader on the initial stack uses what lies below its red zone. Everybody else uses the bottom of that
    /// stack, far below the leader; if the leader runs elsewhere, pages that were never written.
    pub fn find(pid: Pid, context: &RemoteContext<'_>) -> Result<Self, RemoteError> {
        let leader = pid.leader();
        let initial = context.areas.iter().find(|area| area.name == "[stack]");
        let stack = initial.ok_or(RemoteError::NoStack(leader))?.range;
        // Not stopped by us, or ended while its threads go on: then its place is not known.
        let leader_at = ptrace::registers(leader).ok().map(|registers| Address(registers.rsp));
        let of_leader = leader_at.filter(|at| stack.contains(*at)).map(|at| at - arch::RED_ZONE);
        let of_others = match of_leader {
            Some(used) => far_below(used, stack),
            None => unwritten_or_below(context.memory, stack)?,
        };
        Ok(Self { leader, of_leader, of_others, taken: of_others.end })
    }

    /// The end of room for a session in a thread; `None` when those that live must end first.
    pub fn take(&mut self, tid: Tid, room: ByteCount) -> Option<Address> {
        if tid == self.leader
            && let Some(top) = self.of_leader
        {
            return Some(top);
        }
        let top = self.taken;
        // Alone, a session may go below: the stack grows by it.
        let fits = top == self.of_others.end || top - self.of_others.start >= room;
        fits.then(|| {
            self.taken = top - room;
            top
        })
    }

    /// All sessions have ended.
    pub fn reset(&mut self) {
        self.taken = self.of_others.end;
    }
}

fn far_below(used: Address, stack: AddressRange) -> AddressRange {
    let bottom = |room: ByteCount| AddressRange::new(stack.start, stack.start + room);
    let fits = |range: &AddressRange| used > range.end + DISTANCE;
    let below = Address(used.get() & !(PAGE_BYTES - 1)) - DISTANCE;
    [SEVERAL, ONE].map(bottom).into_iter().find(fits).unwrap_or_else(|| AddressRange::new(below - ONE, below))
}

fn unwritten_or_below(memory: &ProcessMemory, stack: AddressRange) -> Result<AddressRange, RemoteError> {
    for room in [SEVERAL, ONE] {
        if let Some(end) = unwritten(memory, stack, room)? {
            return Ok(AddressRange::new(end - room, end));
        }
    }
    // Pages below all that was ever used: the stack grows by them.
    Ok(AddressRange::new(stack.start - ONE, stack.start))
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
