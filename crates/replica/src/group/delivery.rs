//! Delivers signals to all replicas, and emulates instructions that trap.
//!
//! Owns: the order of signals at the return of a call.
//! Does not: receive signals; `wait` does.

use model::Signal;
use sys::call_trap;
use sys::ptrace::{self, Registers, SiginfoBytes, SignalQueue};

use super::{End, Group, Next};
use crate::error::Result;
use crate::replicas::{Arrival, Mode};
use crate::report::Kind;
use crate::signals;

const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

impl Group {
    /// Ends a call: delivers a signal that waits, injects a fault, or resumes the replicas.
    pub(super) fn leave(&mut self) -> Result<Option<End>> {
        self.inject_after_call()?;
        if self.early.is_some() {
            // A replica is at its next meeting already. Signals wait for the return of the next call.
            self.resume_all(None)?;
            return Ok(None);
        }
        let next = match self.pending_in_leader()? {
            Some(information) => {
                let signal = signals::number(&information);
                self.delivering = Some(signal);
                self.replicas[0].resume(Mode::ToMeeting, None)?;
                match self.gather(0..1)? {
                    Ok(arrived) => match arrived.into_iter().next() {
                        Some(Arrival::Signal { information, .. }) => {
                            self.deliver(signal, &information, true)?
                        }
                        other => {
                            let stop = other.map_or_else(String::new, |other| other.shown());
                            let what = format!("the leader {stop}, instead of getting signal {signal}");
                            return Ok(Some(self.diverged((Kind::Stop, what))));
                        }
                    },
                    Err(missed) => return Ok(Some(self.missed(missed))),
                }
            }
            None => match self.next_held()? {
                Some(information) => self.deliver(signals::number(&information), &information, false)?,
                None => {
                    self.resume_all(None)?;
                    Next::Running
                }
            },
        };
        Ok(if let Next::End(end) = next { Some(end) } else { None })
    }

    /// Delivers a signal to all replicas, which are stopped at the same place. `leader_has_it`: the leader is already
    /// stopped at the delivery.
    pub(super) fn deliver(
        &mut self,
        signal: Signal,
        information: &SiginfoBytes,
        leader_has_it: bool,
    ) -> Result<Next> {
        self.statistics.signals += 1;
        self.delivering = Some(signal);
        let first = usize::from(leader_has_it);
        for replica in &mut self.replicas[first..] {
            sys::signal::send_to_thread(replica.pid(), replica.tid(), signal)?;
            replica.resume(Mode::ToMeeting, None)?;
        }
        let arrived = self.gather(first..self.replicas.len())?;
        self.delivering = None;
        match arrived {
            Err(missed) => return Ok(Next::End(self.missed(missed))),
            Ok(arrived) => {
                let is_it =
                    |one: &Arrival| matches!(one, Arrival::Signal { signal: it, .. } if *it == signal);
                if !arrived.iter().all(is_it) {
                    return Ok(Next::End(
                        self.diverged((Kind::Stop, format!("signal {signal} did not arrive"))),
                    ));
                }
            }
        }
        for replica in &self.replicas {
            ptrace::set_signal_information(replica.tid(), information)?;
        }
        self.resume_all(Some(signal))?;
        Ok(Next::Running)
    }

    /// Handles a signal that an instruction of the program has caused.
    pub(super) fn fault(&mut self, signal: Signal, registers: &Registers) -> Result<Next> {
        if signal == signals::SEGMENT_FAULT
            && let Some(length) = self.time_stamp_length(registers)
        {
            let value = call_trap::time_stamp();
            let (low, high) = (value & 0xffff_ffff, value >> 32);
            // RDTSCP also returns the number of the processor, which could differ.
            let rcx = if length == RDTSCP.len() as u64 { 0 } else { registers.rcx };
            let after = Registers { rax: low, rdx: high, rcx, rip: registers.rip + length, ..*registers };
            for replica in &self.replicas {
                ptrace::set_registers(replica.tid(), &after)?;
            }
            self.resume_all(None)?;
            return Ok(Next::Running);
        }
        self.resume_all(Some(signal))?;
        Ok(Next::Running)
    }

    /// Returns the length of the instruction if it reads the time stamp counter.
    fn time_stamp_length(&self, registers: &Registers) -> Option<u64> {
        let mut code = [0; 3];
        let at = model::Address(registers.rip);
        // The last instruction of a page can be shorter than three bytes.
        if self.replicas[0].memory.read(at, &mut code).is_err() {
            self.replicas[0].memory.read(at, &mut code[..2]).ok()?;
        }
        [&RDTSC[..], &RDTSCP[..]].iter().find(|bytes| code.starts_with(bytes)).map(|bytes| bytes.len() as u64)
    }

    /// Returns the first signal that is pending in the leader and not blocked.
    pub(super) fn pending_in_leader(&self) -> Result<Option<SiginfoBytes>> {
        let tid = self.replicas[0].tid();
        let mask = ptrace::signal_mask(tid)?;
        let mut all = ptrace::pending_signals(tid, SignalQueue::Thread)?;
        all.extend(ptrace::pending_signals(tid, SignalQueue::Process)?);
        let is_open = |information: &SiginfoBytes| {
            let signal = signals::number(information);
            !signals::is_stop(signal) && mask >> (signal.get() - 1) & 1 == 0
        };
        Ok(all.into_iter().find(is_open))
    }

    /// Takes the first signal that waits and is not blocked.
    fn next_held(&mut self) -> Result<Option<SiginfoBytes>> {
        if self.held.is_empty() {
            return Ok(None);
        }
        let mask = ptrace::signal_mask(self.replicas[0].tid())?;
        let is_open = |information: &SiginfoBytes| mask >> (signals::number(information).get() - 1) & 1 == 0;
        let place = self.held.iter().position(is_open);
        Ok(place.and_then(|place| self.held.remove(place)))
    }
}
