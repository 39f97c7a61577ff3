//! System calls that a replica makes for this program before its first instruction.
//!
//! Owns: the instructions that are written to the entry point of the program, and removed again.
//! Invariants: after the drop of [`EntryCalls`], code and registers of the process are as before.
//! Does not: make calls later; the replicas then make only their own calls.

use std::cell::RefCell;

use model::{Address, Signal};
use sys::Errno;
use sys::ptrace::{self, CallPhase, Registers, Stop, WaitStatus};

use crate::error::{ReplicaError, Result};
use crate::replicas::Replica;

/// `syscall`, and six bytes that trap.
const CODE: [u8; 8] = [0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];

/// A process that is stopped at the entry point of its program, and can make calls.
pub(crate) struct EntryCalls<'a> {
    replica: &'a Replica,
    registers: Registers,
    code: [u8; 8],
    /// Signals that came meanwhile. They are for the program, which has not begun.
    signals: RefCell<Vec<Signal>>,
}

impl<'a> EntryCalls<'a> {
    pub(crate) fn begin(replica: &'a Replica, registers: Registers) -> Result<Self> {
        let mut code = [0; 8];
        replica.memory.read(Address(registers.rip), &mut code)?;
        replica.memory.write(Address(registers.rip), &CODE)?;
        Ok(Self { replica, registers, code, signals: RefCell::default() })
    }

    /// Makes a call. Returns its result, and the pid of a process that the call has created.
    pub(crate) fn call(
        &self,
        name: &'static str,
        number: i64,
        arguments: &[u64],
    ) -> Result<(u64, Option<i32>)> {
        let tid = self.replica.tid();
        let argument = |place: usize| arguments.get(place).copied().unwrap_or(0);
        let registers = Registers {
            rax: number as u64,
            orig_rax: u64::MAX,
            rdi: argument(0),
            rsi: argument(1),
            rdx: argument(2),
            r10: argument(3),
            r8: argument(4),
            r9: argument(5),
            ..self.registers
        };
        ptrace::set_registers(tid, &registers)?;
        let mut created = None;
        loop {
            ptrace::resume_to_syscall(tid, None)?;
            match ptrace::wait(tid)? {
                WaitStatus::Stopped(Stop::Syscall) => {
                    if let CallPhase::Exit(result) = ptrace::call_phase(tid)? {
                        return finished(name, result).map(|result| (result, created));
                    }
                }
                WaitStatus::Stopped(Stop::Creation) => created = Some(ptrace::event_message(tid)? as i32),
                WaitStatus::Stopped(Stop::Event | Stop::Seccomp) => {}
                WaitStatus::Stopped(Stop::Delivery(signal)) => self.signals.borrow_mut().push(signal),
                other => return Err(ReplicaError::Unexpected(format!("{other:?} in {name}"))),
            }
        }
    }

    /// Restores code and registers, also of another process that was copied from this one.
    pub(crate) fn restore(&self, replica: &Replica) -> Result<()> {
        replica.memory.write(Address(self.registers.rip), &self.code)?;
        ptrace::set_registers(replica.tid(), &self.registers)?;
        let signals = std::mem::take(&mut *self.signals.borrow_mut());
        Ok(signals.into_iter().try_for_each(|signal| sys::signal::send(self.replica.pid(), signal))?)
    }
}

fn finished(call: &'static str, result: i64) -> Result<u64> {
    match result {
        -4095..0 => Err(ReplicaError::Remote { call, errno: Errno(-result as i32) }),
        _ => Ok(result as u64),
    }
}
