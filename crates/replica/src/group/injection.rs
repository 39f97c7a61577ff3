//! Injects the planned fault at its position.
//!
//! Owns: the way to the position: calls are counted, then instructions are executed one by one.
//! Does not: choose the bit; `fault` does.

use model::{AddressRange, Signal};
use sys::clock::{Deadline, Stopwatch};
use sys::ptrace::{self, Registers, Stop, WaitStatus};

use super::Group;
use crate::calls::{Arguments, Class, Part, Rule};
use crate::error::Result;
use crate::fault::{Fault, Target};
use crate::parts;

/// The flag with which the processor executes a single instruction.
const TRAP_FLAG: u64 = 0x100;

impl Group {
    /// Flips the bit of the planned fault if its call has just returned.
    pub(super) fn inject_after_call(&mut self) -> Result<()> {
        let calls = self.statistics.calls;
        let is_due = |fault: &mut Fault| fault.call == calls && fault.target != Target::Buffer;
        let Some(fault) = self.fault.take_if(is_due) else { return Ok(()) };
        if fault.replica >= self.replicas.len() {
            return Ok(());
        }
        // The way to the position takes long on a loaded machine, and is no time of the program.
        let left = self.deadline.map(Deadline::left);
        let outcome = self.inject(&fault);
        self.deadline = left.map(Deadline::after);
        self.since = Stopwatch::start();
        outcome
    }

    /// Executes the instructions before the position of the fault, and flips the bit.
    fn inject(&mut self, fault: &Fault) -> Result<()> {
        let tid = self.replicas[fault.replica].tid();
        for _ in 0..fault.steps {
            ptrace::single_step(tid)?;
            match ptrace::wait(tid)? {
                WaitStatus::Stopped(Stop::Delivery(Signal(5))) => {}
                status => {
                    // The replica has reached its next meeting: the position lies behind it. The system call has saved
                    // the trap flag.
                    let registers = ptrace::registers(tid);
                    if let (Ok(registers), WaitStatus::Stopped(Stop::Seccomp)) = (registers, status) {
                        let r11 = registers.r11 & !TRAP_FLAG;
                        ptrace::set_registers(tid, &Registers { r11, ..registers })?;
                    }
                    if let Ok(Some(arrival)) = self.arrival(fault.replica, status)? {
                        self.early = Some((fault.replica, arrival));
                    }
                    return Ok(());
                }
            }
        }
        self.injected = fault.flip(&self.replicas[fault.replica])?;
        Ok(())
    }

    /// Flips a bit in the buffer of an output, between its comparison and its execution.
    pub(super) fn inject_into_buffer(&mut self, arguments: &Arguments, rule: &Rule) -> Result<()> {
        let calls = self.statistics.calls;
        let is_due = |fault: &mut Fault| {
            fault.call < calls
                && fault.target == Target::Buffer
                && rule.class == Class::Output
                // A path is no output.
                && rule.inputs.iter().any(|part| !matches!(part, Part::Text(_)))
        };
        let Some(fault) = self.fault.take_if(is_due) else { return Ok(()) };
        let Some(replica) = self.replicas.get(fault.replica) else { return Ok(()) };
        let ranges = parts::input_ranges(replica, arguments, rule.inputs);
        let ranges: Vec<_> =
            ranges.into_iter().map(|(start, length)| AddressRange { start, end: start + length }).collect();
        self.injected = fault.flip_in(replica, &ranges)?;
        Ok(())
    }
}
