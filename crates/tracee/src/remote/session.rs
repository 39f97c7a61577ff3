//! Makes one stopped thread execute system calls, one at a time, and restores the thread afterwards.
//!
//! Owns: the position of the thread, the sequence of stops around one call, and the restoration of the
//! thread.
//! Invariants: no stop that is used here becomes a signal if the tracer dies. A single-step stop would become
//! a SIGTRAP, so single-stepping is not used.
//! Does not: make several calls with one resumption; `batch` does.
//!
//! A *restore frame* is a signal frame with the whole context of the thread. The *restore path* is the
//! sequence of returns by which the thread reaches its restore frame and runs rt_sigreturn(2) on it. If this
//! program dies, the thread follows this path without help.

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
    /// Number of opened descriptors. The restore path runs one deferred close(2) for each.
    pub(super) opened: usize,
    /// The thread may have seccomp filters. The session has then tried to suspend them.
    is_filtered: bool,
    /// Signals that the thread blocks at present.
    current_mask: u64,
    /// Signals that arrived from elsewhere, and were delivered although the thread normally blocks them. The
    /// session sends them again when the thread is restored.
    pub(super) intercepted: Vec<Intercepted>,
}

/// The position of the thread of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// In the event stop where the session started.
    Found,
    /// The thread has left the first event stop. It is stopped, or runs to the next stop of a single call.
    Moved,
    /// The thread runs through a chain.
    Running,
    /// Stopped at the signal that ends a chain. Registers and mask can be changed here as in an event stop.
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
    /// path. The session has room for the maximum of calls, data and descriptors.
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

    /// Begins a session in a thread that was already read, with its memory below the unused address `top`.
    /// `is_filtered` is false if the status file of the thread reports no seccomp filter; then no filter is
    /// suspended.
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
            // Suspending the filters needs CAP_SYS_ADMIN. Without it, a call that a filter refuses returns an
            // error as any other call does.
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

    /// Sets registers that start the restore path from the thread's own stack pointer. If a signal arrives,
    /// the kernel then puts the handler's frame where it would be without the session. With another stack
    /// pointer, the kernel would restart an alternate stack that is in use.
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
                // SIGSTOP is delivered, so that the process stops as without a tracer. Only this thread
                // continues.
                Stop::Delivery(STOP) => injected = Some(STOP),
                // The kernel has forced a signal, for example SIGSEGV because the code of the gadgets is
                // gone. The session restores the thread without the result.
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

    /// Restores the thread in an event stop. There, the kernel still restarts the call that the first stop
    /// interrupted.
    fn restore_in_event_stop(&mut self) -> Result<(), RemoteError> {
        let tid = self.thread.tid();
        if self.opened > 0 {
            // The thread is restored even if this fails.
            let _ = self.close_remaining();
        }
        // A group stop (a signal has stopped all threads of the process) is visible only in an event stop.
        // The tracer can also wait for its end only there.
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
            // If suspending the filters failed, the options have not changed, and this has no effect.
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
            // A thread that runs through a chain reaches the stop without a resumption.
            if self.position != Position::Running {
                ptrace::resume(tid, injected.take())?;
            }
            match self.next_stop()? {
                Stop::Event => return Ok(None),
                Stop::Group(signal) => return Ok(Some(signal)),
                Stop::Delivery(STOP) => injected = Some(STOP),
                // Another stop, for example the syscall stop of an unfinished call.
                _ => {}
            }
        }
    }
}

impl Drop for RemoteSession<'_> {
    fn drop(&mut self) {
        // An error means that the thread has died, and then there is nothing to restore.
        let _ = self.restore();
    }
}
