//! One stopped thread that makes system calls, one at a time, and is restored afterwards.
//!
//! Owns: the position of the thread; the sequence of stops around one call, and undoing all of it.
//! Invariants: no stop used here becomes a signal when the tracer dies. (Single-stepping would: it leaves a SIGTRAP.)
//! Does not: make several calls with one resumption; `batch` does.

use std::time::Duration;

use model::{Address, ByteCount, Signal, Tid};
use sys::Errno;
use sys::ptrace::{self, Options, Registers, Stop};
use sys::signal;

use super::error::RemoteError;
use super::gadgets::Gadgets;
use super::known::{KnownThread, RemoteContext};
use super::layout::{Layout, Room};
use super::place::Places;
use crate::arch::numbers::{GETPID, RT_SIGPROCMASK};
use crate::arch::{self, HomePlace};
use crate::steps;
use crate::thread::{Stopped, Thread};
use crate::tracer::await_stop;

/// How long one remote call may take; none of those used here blocks.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The code segment of 64-bit programs.
const CODE_SEGMENT_64: u64 = 0x33;
/// `how` of rt_sigprocmask(2), and the size of its sets.
const SIG_SETMASK: u64 = 2;
const SIGNAL_SET_BYTES: u64 = 8;
/// SIGSTOP: the one stop signal that no mask holds back.
pub(super) const STOP: Signal = Signal(19);

/// A stopped thread that is set up to make system calls; dropping it brings everything back.
#[derive(Debug)]
pub struct RemoteSession<'a> {
    pub(super) thread: &'a mut Thread<Stopped>,
    pub(super) position: Position,
    /// Its registers and signal mask when it was found.
    pub(super) original: Registers,
    pub(super) mask: u64,
    pub(super) gadgets: Gadgets,
    pub(super) layout: Layout<'a>,
    /// Descriptors that the way home leads through the closings of.
    pub(super) opened: usize,
    /// The thread may have seccomp filters, which are suspended.
    is_filtered: bool,
    /// The signals that are blocked now.
    held_back: u64,
    /// Signals of others that got through although the thread blocks them: its own once it is brought back.
    pub(super) intercepted: Vec<Intercepted>,
}

/// Where the thread of a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// In the event stop that it was found in.
    Found,
    /// It has left that, and is stopped, or runs to the next stop of a single call.
    Moved,
    /// It runs through a chain.
    Running,
    /// Stopped at the signal that ends a chain, where registers and mask can be changed as in an event stop.
    AtSignal,
    /// Brought back, or ended.
    Over,
}

/// A signal that was meant for the subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intercepted {
    pub(super) signal: Signal,
    /// It was sent to this very thread.
    pub(super) is_own: bool,
}

impl<'a> RemoteSession<'a> {
    /// Prepares a stopped thread: lays the way home, then points its registers at it.
    pub fn begin(thread: &'a mut Thread<Stopped>, context: &RemoteContext<'a>) -> Result<Self, RemoteError> {
        Self::begin_with(thread, context, Room::MOST)
    }

    /// The same for a session that is asked no more than it has room for.
    pub fn begin_with(
        thread: &'a mut Thread<Stopped>,
        context: &RemoteContext<'a>,
        room: Room,
    ) -> Result<Self, RemoteError> {
        let known = KnownThread::read(thread.tid(), context.memory)?;
        let mut places = Places::find(thread.pid(), context)?;
        let top = places.take(room.bytes(&known)).ok_or(RemoteError::NoStack(thread.tid()))?;
        Self::begin_at(thread, context, &known, top, room, true)
    }

    /// The same for a thread that is known already, below an otherwise unused address. Where its status file
    /// says that it has no seccomp filter, none is suspended.
    pub fn begin_at(
        thread: &'a mut Thread<Stopped>,
        context: &RemoteContext<'a>,
        known: &KnownThread,
        top: Address,
        room: Room,
        is_filtered: bool,
    ) -> Result<Self, RemoteError> {
        if known.resumed.cs != CODE_SEGMENT_64 {
            return Err(RemoteError::Foreign(thread.tid()));
        }
        let session = Self {
            layout: Layout::write(context, known, top, room)?,
            thread,
            position: Position::Found,
            original: known.resumed,
            mask: known.signal_mask,
            gadgets: context.gadgets,
            opened: 0,
            is_filtered,
            held_back: known.signal_mask,
            intercepted: Vec::new(),
        };
        if is_filtered {
            // Suspending the filters needs CAP_SYS_ADMIN; where they stay, a refused call gives its error as any other.
            let options = session.thread.options.with(Options::SUSPEND_SECCOMP);
            let _ = session.thread.set_options(options);
        }
        // From here on the registers lead home; only then may the mask change.
        session.point_home()?;
        steps::reach("pointed home");
        Ok(session)
    }

    pub(super) fn hold_back(&mut self, signals: u64) -> Result<(), RemoteError> {
        if self.held_back != signals {
            ptrace::set_signal_mask(self.tid(), signals)?;
            self.held_back = signals;
            steps::reach("mask set");
        }
        Ok(())
    }

    /// The thread.
    pub fn tid(&self) -> Tid {
        self.thread.tid()
    }

    /// Address of the room for arguments and results.
    pub fn data(&self) -> Address {
        self.layout.data
    }

    /// Writes argument bytes to the start of the data.
    pub fn write_data(&self, bytes: &[u8]) -> Result<(), RemoteError> {
        debug_assert!(bytes.len() as u64 <= self.layout.room.data.get(), "arguments fit the data area");
        Ok(self.layout.memory.write(self.layout.data, bytes)?)
    }

    /// Reads result bytes from the start of the data.
    pub fn read_data(&self, length: ByteCount) -> Result<Vec<u8>, RemoteError> {
        Ok(self.layout.memory.read_vec(self.layout.data, length)?)
    }

    /// Makes one system call in the thread.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
        let call = self.registers_for(number, arguments, self.layout.way(self.opened).start);
        self.make(number, &call)
    }

    /// Registers for a call that returns to what lies at `stack`.
    pub(super) fn registers_for(&self, number: i64, arguments: [u64; 6], stack: Address) -> Registers {
        let call = arch::with_syscall(&self.original, self.gadgets.syscall_return, number, arguments);
        Registers { rsp: stack.get(), ..call }
    }

    pub(super) fn make(&mut self, number: i64, call: &Registers) -> Result<u64, RemoteError> {
        let tid = self.thread.tid();
        self.hold_back(u64::MAX)?;
        ptrace::set_registers(tid, call)?;
        self.position = Position::Moved;
        steps::reach("pointed at the call");
        self.reach_syscall_stop()?;
        steps::reach("call entered");
        self.reach_syscall_stop()?;
        steps::reach("call left");
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

    /// Registers that lead home on the thread's own stack pointer, so that a signal is handled where it would have
    /// been: an alternate stack that is in use is not begun anew.
    fn point_home(&self) -> Result<(), RemoteError> {
        let Some(pivot) = self.gadgets.pivot else { return self.point_at(self.layout.home) };
        let rbp = self.layout.home.frame_pointer().get();
        let registers = match &self.layout.on_alternate {
            // Holds back all signals before it leaves that stack.
            Some(word) => {
                let arguments = [SIG_SETMASK, rbp, 0, SIGNAL_SET_BYTES, 0, 0];
                Registers { rbp, ..self.registers_for(RT_SIGPROCMASK, arguments, word.at) }
            }
            None => Registers { rip: pivot.get(), rbp, orig_rax: u64::MAX, ..self.original },
        };
        Ok(ptrace::set_registers(self.tid(), &registers)?)
    }

    /// Registers of a call without effect, from which the thread returns through a home frame.
    pub(super) fn point_at(&self, home: HomePlace) -> Result<(), RemoteError> {
        let call = self.registers_for(GETPID, [0; 6], home.start);
        Ok(ptrace::set_registers(self.tid(), &call)?)
    }

    fn reach_syscall_stop(&mut self) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        let mut injected = None;
        loop {
            ptrace::resume_to_syscall(tid, injected.take())?;
            match self.next_stop()? {
                Stop::Syscall => return Ok(()),
                // The process is stopped by it as ever; the thread then goes on for us alone.
                Stop::Delivery(STOP) => injected = Some(STOP),
                // A fault: the code of the gadgets is gone. The thread is brought back without it.
                Stop::Delivery(signal) => return Err(RemoteError::Signalled { tid, signal }),
                _ => {}
            }
        }
    }

    pub(super) fn next_stop(&mut self) -> Result<Stop, RemoteError> {
        let thread = (self.thread.pid(), self.thread.tid());
        let Some(stop) = await_stop(thread, CALL_LIMIT, "finish a remote system call")? else {
            self.position = Position::Over;
            return Err(RemoteError::Ended(thread.1));
        };
        self.position = Position::Moved;
        Ok(stop)
    }

    fn restore(&mut self) -> Result<(), RemoteError> {
        if self.position == Position::Over {
            return Ok(());
        }
        let outcome = self.bring_back();
        self.position = Position::Over;
        outcome
    }

    /// The thread goes back into an event stop, where the kernel still restarts what the first stop broke off.
    fn bring_back(&mut self) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        if self.opened > 0 {
            // Whatever comes of it, the thread is brought back.
            let _ = self.give_up_opened();
        }
        // What holds the whole process shows, and can be waited for, in an event stop alone.
        let may_stay = match self.position {
            Position::Found => true,
            Position::AtSignal => self.thread.group_stop().is_none(),
            _ => false,
        };
        if !may_stay {
            let group_stop = self.reach_event_stop()?;
            self.thread.state.group_stop = group_stop;
        }
        steps::reach("event stop reached");
        self.point_home()?;
        steps::reach("pointed home again");
        ptrace::set_signal_mask(tid, self.mask)?;
        steps::reach("mask brought back");
        ptrace::set_registers(tid, &self.original)?;
        steps::reach("registers brought back");
        if self.is_filtered {
            // It may be that it was never changed; then it is the same again.
            let options = self.thread.options.without(Options::SUSPEND_SECCOMP);
            let _ = self.thread.set_options(options);
        }
        self.layout.put_back()?;
        steps::reach("memory brought back");
        for Intercepted { signal, is_own } in std::mem::take(&mut self.intercepted) {
            let pid = self.thread.pid();
            if is_own { signal::send_to_thread(pid, tid, signal)? } else { signal::send(pid, signal)? }
        }
        Ok(())
    }

    /// Runs the thread into the stop that was asked for; the stop signal, if one holds the process.
    pub(super) fn reach_event_stop(&mut self) -> Result<Option<Signal>, RemoteError> {
        let tid = self.thread.tid();
        let mut injected = None;
        loop {
            ptrace::interrupt(tid)?;
            steps::reach("event stop asked for");
            // One that runs through a chain comes to the stop by itself.
            if self.position != Position::Running {
                ptrace::resume(tid, injected.take())?;
            }
            match self.next_stop()? {
                Stop::Event => return Ok(None),
                Stop::Group(signal) => return Ok(Some(signal)),
                Stop::Delivery(STOP) => injected = Some(STOP),
                // A call that was broken off half-way.
                _ => {}
            }
        }
    }
}

impl Drop for RemoteSession<'_> {
    fn drop(&mut self) {
        // A thread that has died meanwhile needs nothing brought back.
        let _ = self.restore();
    }
}
