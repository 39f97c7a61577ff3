//! System calls executed by a stopped thread of a subject, with a way home.
//!
//! Owns: where the signal frame goes, the sequence of stops around one call, and undoing all of it.
//! Invariants: before the first register changes, a signal frame with the thread's whole context lies in
//! memory the thread does not use, and the return address leads to its own rt_sigreturn; whenever this program
//! dies, the thread runs the call to its end and comes back by itself. No stop used here turns into a signal
//! when the tracer dies (single-stepping would: it leaves a SIGTRAP).
//! Does not: build new processes; `stub` does, without the need for a way home.

use std::time::Duration;

use model::{Address, AddressRange, ByteCount, Pid, Signal, Tid};
use sys::pagemap::Pagemap;
use sys::ptrace::{self, Registers, WaitStatus, XSTATE_BYTES_MAX};
use sys::{Errno, Error};

use crate::arch::x86_64 as arch;
use crate::memory::ProcessMemory;
use crate::procfs::{Area, Backing};
use crate::thread::{EVENT_STOP, SYSCALL_STOP, Stopped, Thread};

/// Bytes of arguments and results one call may need.
pub const DATA_BYTES: u64 = 4096;
/// Code is searched in pieces of this size.
const SEARCH_BYTES: u64 = 256 * 1024;
/// Longest pattern searched for, less one: pieces overlap by this.
const SEARCH_OVERLAP: u64 = 8;
/// How long one remote call may take; none of those used here blocks.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Why a remote call did not give a result.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The kernel refused the call itself.
    #[error("system call {number} in thread {tid} failed: {errno}")]
    Refused {
        /// The thread that made it.
        tid: Tid,
        /// The number of the call.
        number: i64,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The program's code has no instruction sequence to make a call with and come back.
    #[error("pid {0} has no `syscall; ret` and signal restorer in its code")]
    NoGadget(Pid),
    /// There is no memory that is provably unused.
    #[error("thread {0} has no unused stack for a signal frame")]
    NoStack(Tid),
    /// The thread ended.
    #[error("thread {0} ended during a remote system call")]
    Ended(Tid),
    /// A tracing step failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// Instructions of the program's own code that remote calls are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `syscall; ret`.
    pub syscall_return: Address,
    /// The code that signal handlers return to.
    pub restorer: Address,
}

impl Gadgets {
    /// Searches the executable areas of a process; the process may run.
    pub fn find(memory: &ProcessMemory, areas: &[Area]) -> Result<Self, RemoteError> {
        let mut syscall_return = None;
        let mut restorer = None;
        for area in areas.iter().filter(|area| area.protection.execute && area.name != "[vsyscall]") {
            search(memory, area.range, |at, code| {
                if syscall_return.is_none() {
                    syscall_return = position(code, arch::SYSCALL_RETURN).map(|offset| at + offset);
                }
                if restorer.is_none() {
                    restorer = arch::SIGNAL_RESTORERS
                        .iter()
                        .find_map(|pattern| position(code, pattern))
                        .map(|offset| at + offset);
                }
                syscall_return.is_some() && restorer.is_some()
            })?;
            if let (Some(syscall_return), Some(restorer)) = (syscall_return, restorer) {
                return Ok(Self { syscall_return, restorer });
            }
        }
        Err(RemoteError::NoGadget(memory.pid()))
    }
}

fn search(
    memory: &ProcessMemory,
    range: AddressRange,
    mut found: impl FnMut(Address, &[u8]) -> bool,
) -> Result<(), Error> {
    let mut start = range.start;
    while start < range.end {
        let length = (range.end - start).get().min(SEARCH_BYTES + SEARCH_OVERLAP);
        let code = memory.read_vec(start, ByteCount(length))?;
        if found(start, &code) {
            return Ok(());
        }
        start = start + ByteCount(SEARCH_BYTES);
    }
    Ok(())
}

fn position(code: &[u8], pattern: &[u8]) -> Option<ByteCount> {
    code.windows(pattern.len()).position(|window| window == pattern).map(|offset| ByteCount(offset as u64))
}

/// What a session needs to know of the process, gathered before any thread changes.
#[derive(Debug)]
pub struct RemoteContext<'a> {
    /// The process's memory.
    pub memory: &'a ProcessMemory,
    /// Its areas, rising.
    pub areas: &'a [Area],
    /// Instructions found before.
    pub gadgets: Gadgets,
}

/// A stopped thread that is set up to make system calls; dropping it brings everything back.
#[derive(Debug)]
pub struct RemoteSession<'a> {
    thread: &'a mut Thread<Stopped>,
    memory: &'a ProcessMemory,
    gadgets: Gadgets,
    original: Registers,
    mask: u64,
    data: Address,
    stack_pointer: Address,
    saved: Vec<u8>,
    deferred: Vec<Signal>,
    ended: bool,
}

impl<'a> RemoteSession<'a> {
    /// Prepares a stopped thread: lays the way home, then points its registers at it.
    pub fn begin(thread: &'a mut Thread<Stopped>, context: &RemoteContext<'a>) -> Result<Self, RemoteError> {
        let tid = thread.tid();
        let original = ptrace::registers(tid)?;
        let mask = ptrace::signal_mask(tid)?;
        let mut state = [0_u8; XSTATE_BYTES_MAX];
        let state_bytes = ptrace::extended_state(tid, &mut state)?;
        let state = &state[..state_bytes];
        let room = ByteCount(DATA_BYTES + arch::home_frame_bytes(state).get());
        let top = frame_top(thread, context, &original, room)?;
        let frame = arch::home_frame(top, &original, mask, state, context.gadgets.restorer);
        let data = Address((frame.start.get() - DATA_BYTES) & !15);
        let saved = context.memory.read_vec(data, top - data)?;
        context.memory.write(frame.start, &frame.bytes)?;
        let session = Self {
            thread,
            memory: context.memory,
            gadgets: context.gadgets,
            original,
            mask,
            data,
            stack_pointer: frame.stack_pointer,
            saved,
            deferred: Vec::new(),
            ended: false,
        };
        // From here on the registers lead home; only then may the mask change.
        session.point(GETPID, [0; 6])?;
        ptrace::set_signal_mask(tid, u64::MAX)?;
        Ok(session)
    }

    /// Address of [`DATA_BYTES`] bytes for arguments and results.
    pub fn data(&self) -> Address {
        self.data
    }

    /// Writes argument bytes to the start of the data.
    pub fn write_data(&self, bytes: &[u8]) -> Result<(), RemoteError> {
        debug_assert!(bytes.len() as u64 <= DATA_BYTES, "arguments fit the data area");
        Ok(self.memory.write(self.data, bytes)?)
    }

    /// Reads result bytes from the start of the data.
    pub fn read_data(&self, length: ByteCount) -> Result<Vec<u8>, RemoteError> {
        Ok(self.memory.read_vec(self.data, length)?)
    }

    /// Makes one system call in the thread.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
        let tid = self.thread.tid();
        self.point(number, arguments)?;
        self.reach_syscall_stop()?;
        self.reach_syscall_stop()?;
        let result = ptrace::registers(tid)?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(RemoteError::Refused { tid, number, errno: Errno(-result as i32) });
        }
        Ok(result as u64)
    }

    /// Brings registers, mask and memory back, and reports when that failed.
    pub fn end(mut self) -> Result<(), RemoteError> {
        self.restore()
    }

    fn point(&self, number: i64, arguments: [u64; 6]) -> Result<(), RemoteError> {
        let mut registers =
            arch::with_syscall(&self.original, self.gadgets.syscall_return, number, arguments);
        registers.rsp = self.stack_pointer.get();
        Ok(ptrace::set_registers(self.thread.tid(), &registers)?)
    }

    fn reach_syscall_stop(&mut self) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        loop {
            ptrace::resume_to_syscall(tid)?;
            match self.next_stop()? {
                (SYSCALL_STOP, 0) => return Ok(()),
                (_, EVENT_STOP) => {}
                // SIGSTOP cannot be blocked; it is sent again when the session is over.
                (signal, 0) => self.deferred.push(signal),
                _ => {}
            }
        }
    }

    fn next_stop(&mut self) -> Result<(Signal, i32), RemoteError> {
        let tid = self.thread.tid();
        let mut waiter = crate::thread::Waiter::new(CALL_LIMIT);
        loop {
            match ptrace::poll(tid)? {
                Some(WaitStatus::Stopped { signal, event }) => return Ok((signal, event)),
                Some(_) => {
                    self.ended = true;
                    return Err(RemoteError::Ended(tid));
                }
                None if waiter.pause() => {}
                None => return Err(Error::thread("finish a remote system call", tid, Errno(110)).into()),
            }
        }
    }

    /// The thread goes back into an event stop, where the kernel still restarts what the first stop broke off.
    fn restore(&mut self) -> Result<(), RemoteError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let tid = self.thread.tid();
        ptrace::set_signal_mask(tid, self.mask)?;
        loop {
            ptrace::interrupt(tid)?;
            ptrace::resume(tid, None)?;
            match self.next_stop()? {
                (_, EVENT_STOP) => break,
                (signal, 0) if signal != SYSCALL_STOP => self.deferred.push(signal),
                _ => {}
            }
        }
        ptrace::set_registers(tid, &self.original)?;
        self.memory.write(self.data, &self.saved)?;
        for signal in self.deferred.drain(..) {
            sys::signal::send_to_thread(self.thread.pid(), tid, signal)?;
        }
        Ok(())
    }
}

impl Drop for RemoteSession<'_> {
    fn drop(&mut self) {
        // A thread that has died meanwhile needs nothing brought back.
        let _ = self.restore();
    }
}

const GETPID: i64 = 39;

/// The address below which a signal frame of `room` bytes harms nothing.
///
/// The leader on its own stack uses what lies below its red zone. Everybody else (threads, and programs such as
/// Go's whose stacks lie in the heap and may be smaller than the frame) uses pages of the initial stack that
/// were never touched.
fn frame_top(
    thread: &Thread<Stopped>,
    context: &RemoteContext<'_>,
    registers: &Registers,
    room: ByteCount,
) -> Result<Address, RemoteError> {
    let below = Address(registers.rsp) - arch::RED_ZONE;
    let fits = |area: &Area| area.range.contains(below) && (below - area.range.start) >= room;
    let initial = context.areas.iter().find(|area| area.name == "[stack]");
    let leader = thread.tid() == thread.pid().leader();
    if let (Some(stack), true) = (initial, leader)
        && fits(stack)
    {
        return Ok(below);
    }
    if let Some(stack) = initial
        && let Some(top) = untouched_top(context.memory.pid(), stack.range, room)?
    {
        return Ok(top);
    }
    let own = context.areas.iter().find(|area| fits(area) && is_stack_like(area));
    own.map(|_| below).ok_or(RemoteError::NoStack(thread.tid()))
}

fn is_stack_like(area: &Area) -> bool {
    area.backing == Backing::Anonymous && area.protection.write && !area.protection.shared
}

fn untouched_top(pid: Pid, stack: AddressRange, room: ByteCount) -> Result<Option<Address>, Error> {
    let mut touched = Vec::new();
    Pagemap::open(pid)?.private_pages(stack, &mut touched)?;
    let first = touched.first().map_or(stack.end, |range| range.start);
    // Twice the room: the leader may grow into the upper half while a frame lies in the lower.
    let needed = ByteCount(2 * room.get());
    Ok(((first - stack.start) >= needed).then(|| stack.start + room + ByteCount(64)))
}
