//! Makes one stopped thread execute system calls, one at a time, and restores the thread afterwards.
//!
//! A *session* lasts from the first change of the thread until its restoration. If this program dies, the thread
//! follows the restore path and restores itself.
//!
//! Owns: the position of the thread, the sequence of stops around one call, and the restoration of the
//! thread.
//! Invariants: if the tracer dies while the thread is in a stop of a session, the stop does not become a
//! signal. A single-step stop would become a SIGTRAP, so sessions do not use single-stepping.
//! Does not: make several calls with one resumption; `batch` does.

use std::time::Duration;

use model::{Address, ByteCount, Signal, Tid};
use sys::Errno;
use sys::ptrace::{self, Options, Registers, Stop};
use sys::signal;

use super::error::RemoteError;
use super::gadgets::Gadgets;
use super::known::{KnownThread, RemoteContext};
use super::layout::{Layout, SessionCapacity};
use super::place::Places;
use crate::arch::numbers::{GETPID, RT_SIGPROCMASK};
use crate::arch::{self, RestoreFrame};
use crate::steps;
use crate::thread::{Stopped, Thread};
use crate::tracer::await_stop;

/// Timeout of one remote call. The calls that are used here do not block.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Code segment selector of 64-bit programs.
const CODE_SEGMENT_64: u64 = 0x33;
/// `how` argument of rt_sigprocmask(2), and the size of a signal set in bytes.
const SIG_SETMASK: u64 = 2;
const SIGNAL_SET_BYTES: u64 = 8;
/// SIGSTOP, the only stop signal that a thread cannot block.
pub(super) const STOP: Signal = Signal(19);

/// A stopped thread that can make remote system calls. Dropping the session restores the thread.
#[derive(Debug)]
pub struct RemoteSession<'a> {
    pub(super) thread: &'a mut Thread<Stopped>,
    pub(super) position: Position,
    /// Registers and signal mask of the thread before the session.
    pub(super) original: Registers,
    pub(super) mask: u64,
    pub(super) gadgets: Gadgets,
    pub(super) layout: Layout<'a>,
    /// Number of descriptors that the session has opened in the subject. For each descriptor, the restore
    /// path contains a call of close(2).
    pub(super) opened: usize,
    /// The thread may have seccomp filters, and the session has tried to suspend them.
    is_filtered: bool,
    /// Signals that the thread blocks at present.
    current_mask: u64,
    /// Signals from other senders that the thread blocks outside the session, but that a chain had unblocked.
    /// The session sends these signals again after it has restored the thread.
    pub(super) intercepted: Vec<Intercepted>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// The thread is in the event stop in which the session started.
    Found,
    /// The thread has left the first event stop. It is stopped, or runs to the next stop of a single call.
    Moved,
    /// The thread runs through a chain (several calls in one resumption).
    Running,
    /// The thread is stopped at the signal that ends a chain. As in an event stop, its registers and mask can
    /// be changed.
    AtSignal,
    /// The thread is restored, or has ended.
    Over,
}

/// A signal that was sent to the subject from outside the session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intercepted {
    pub(super) signal: Signal,
    /// The signal was sent to this thread, not to the process.
    pub(super) is_own: bool,
}

impl<'a> RemoteSession<'a> {
    /// Begins a session in a stopped thread: writes the restore frame, then sets the registers to the restore
    /// path. The session has the maximum capacity for calls, data and descriptors.
    pub fn begin(thread: &'a mut Thread<Stopped>, context: &RemoteContext<'a>) -> Result<Self, RemoteError> {
        Self::begin_with(thread, context, SessionCapacity::MAX)
    }

    /// Begins a session that uses at most the calls, data and descriptors of `capacity`.
    pub fn begin_with(
        thread: &'a mut Thread<Stopped>,
        context: &RemoteContext<'a>,
        capacity: SessionCapacity,
    ) -> Result<Self, RemoteError> {
        let known = KnownThread::read(thread.tid(), context.memory)?;
        let mut places = Places::find(thread.pid(), context)?;
        let top = places.take(capacity.bytes(&known)).ok_or(RemoteError::NoStack(thread.tid()))?;
        Self::begin_at(thread, context, &known, top, capacity, true)
    }

    /// Begins a session in a thread whose state is in `known`. The session uses the memory below `top`, which
    /// must be unused. `is_filtered` is false if the status file of the thread reports no seccomp filter. If
    /// `is_filtered` is true, the session tries to suspend seccomp filters.
    pub fn begin_at(
        thread: &'a mut Thread<Stopped>,
        context: &RemoteContext<'a>,
        known: &KnownThread,
        top: Address,
        capacity: SessionCapacity,
        is_filtered: bool,
    ) -> Result<Self, RemoteError> {
        if known.resumed.cs != CODE_SEGMENT_64 {
            return Err(RemoteError::Foreign(thread.tid()));
        }
        let session = Self {
            layout: Layout::write(context, known, top, capacity)?,
            thread,
            position: Position::Found,
            original: known.resumed,
            mask: known.signal_mask,
            gadgets: context.gadgets,
            opened: 0,
            is_filtered,
            current_mask: known.signal_mask,
            intercepted: Vec::new(),
        };
        if is_filtered {
            // The request needs CAP_SYS_ADMIN. If the filters are not suspended, a filter can refuse a remote
            // call, which returns an error.
            let options = session.thread.options.with(Options::SUSPEND_SECCOMP);
            let _ = session.thread.set_options(options);
        }
        // The signal mask may change only after the registers are set to the restore path.
        session.point_at_restore_path()?;
        steps::reach("pointed home");
        Ok(session)
    }

    pub(super) fn set_mask(&mut self, signals: u64) -> Result<(), RemoteError> {
        if self.current_mask != signals {
            ptrace::set_signal_mask(self.tid(), signals)?;
            self.current_mask = signals;
            steps::reach("mask set");
        }
        Ok(())
    }

    /// Returns the tid of the thread.
    pub fn tid(&self) -> Tid {
        self.thread.tid()
    }

    /// Returns the address of the memory for arguments and results.
    pub fn data(&self) -> Address {
        self.layout.data
    }

    /// Writes argument bytes to the start of the data memory.
    pub fn write_data(&self, bytes: &[u8]) -> Result<(), RemoteError> {
        debug_assert!(bytes.len() as u64 <= self.layout.capacity.data.get(), "arguments fit the data area");
        Ok(self.layout.memory.write(self.layout.data, bytes)?)
    }

    /// Reads result bytes from the start of the data memory.
    pub fn read_data(&self, length: ByteCount) -> Result<Vec<u8>, RemoteError> {
        Ok(self.layout.memory.read_vec(self.layout.data, length)?)
    }

    /// Makes one system call in the thread, and returns its result.
    pub fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
        let call = self.registers_for(number, arguments, self.layout.restore_path(self.opened).start);
        self.make(number, &call)
    }

    /// Returns registers for a call after which the thread returns to the address in the word at `stack`.
    pub(super) fn registers_for(&self, number: i64, arguments: [u64; 6], stack: Address) -> Registers {
        let call = arch::with_syscall(&self.original, self.gadgets.syscall_return, number, arguments);
        Registers { rsp: stack.get(), ..call }
    }

    pub(super) fn make(&mut self, number: i64, call: &Registers) -> Result<u64, RemoteError> {
        let tid = self.thread.tid();
        self.set_mask(u64::MAX)?;
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

    /// Restores registers, signal mask and memory, and reports an error if this fails.
    pub fn end(mut self) -> Result<(), RemoteError> {
        self.restore()
    }

    /// Sets the registers to the start of the restore path. If the program has the pivot gadget, the stack
    /// pointer stays in the present stack of the thread. The kernel then puts the frame of a signal handler
    /// below the stack pointer, as without a session. If the stack pointer left an alternate stack that is in
    /// use, the kernel would put the frame at the top of this stack.
    fn point_at_restore_path(&self) -> Result<(), RemoteError> {
        let Some(pivot) = self.gadgets.pivot else { return self.point_at(self.layout.restore_frame) };
        let rbp = self.layout.restore_frame.frame_pointer().get();
        let registers = match &self.layout.on_alternate {
            // This call blocks all signals before the thread leaves the alternate stack.
            Some(word) => {
                let arguments = [SIG_SETMASK, rbp, 0, SIGNAL_SET_BYTES, 0, 0];
                Registers { rbp, ..self.registers_for(RT_SIGPROCMASK, arguments, word.at) }
            }
            None => Registers { rip: pivot.get(), rbp, orig_rax: u64::MAX, ..self.original },
        };
        Ok(ptrace::set_registers(self.tid(), &registers)?)
    }

    /// Sets registers for a call of getpid(2), after which the thread returns to the start of
    /// `restore_frame`.
    pub(super) fn point_at(&self, restore_frame: RestoreFrame) -> Result<(), RemoteError> {
        let call = self.registers_for(GETPID, [0; 6], restore_frame.start);
        Ok(ptrace::set_registers(self.tid(), &call)?)
    }

    fn reach_syscall_stop(&mut self) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        let mut injected = None;
        loop {
            ptrace::resume_to_syscall(tid, injected.take())?;
            match self.next_stop()? {
                Stop::Syscall => return Ok(()),
                // SIGSTOP is delivered, so that the process stops as without a tracer. Of its threads, only
                // this thread continues.
                Stop::Delivery(STOP) => injected = Some(STOP),
                // The kernel has forced a signal, for example SIGSEGV because the code of the gadgets is
                // gone. The call has no result, and the session restores the thread.
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
        let outcome = self.restore_in_event_stop();
        self.position = Position::Over;
        outcome
    }

    /// Restores the thread in an event stop. When the thread leaves an event stop, the kernel restarts the
    /// system call that the first stop of the session has interrupted.
    fn restore_in_event_stop(&mut self) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        if self.opened > 0 {
            // The thread is restored even if a close fails.
            let _ = self.close_remaining();
        }
        // In a group stop, a signal has stopped all threads of the process. The tracer can detect a group
        // stop and wait for its end only if the thread is in an event stop.
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
        self.point_at_restore_path()?;
        steps::reach("pointed home again");
        ptrace::set_signal_mask(tid, self.mask)?;
        steps::reach("mask brought back");
        ptrace::set_registers(tid, &self.original)?;
        steps::reach("registers brought back");
        if self.is_filtered {
            // If the session could not suspend the filters, this request does not change the options.
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

    /// Runs the thread to an event stop. Returns the stop signal if the process is in a group stop.
    pub(super) fn reach_event_stop(&mut self) -> Result<Option<Signal>, RemoteError> {
        let tid = self.thread.tid();
        let mut injected = None;
        loop {
            ptrace::interrupt(tid)?;
            steps::reach("event stop asked for");
            // A thread that runs through a chain is not stopped, and needs no resumption.
            if self.position != Position::Running {
                ptrace::resume(tid, injected.take())?;
            }
            match self.next_stop()? {
                Stop::Event => return Ok(None),
                Stop::Group(signal) => return Ok(Some(signal)),
                Stop::Delivery(STOP) => injected = Some(STOP),
                // This is another stop, for example the syscall stop of an unfinished call.
                _ => {}
            }
        }
    }
}

impl Drop for RemoteSession<'_> {
    fn drop(&mut self) {
        // An error means that the thread has died. A dead thread needs no restoration.
        let _ = self.restore();
    }
}
