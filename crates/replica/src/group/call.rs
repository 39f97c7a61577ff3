//! Executes one system call of a program, at which all replicas are equal.
//!
//! Owns: who executes the call, and how the others get its result.
//! Does not: deliver signals; `delivery` does.

use model::{Address, ByteCount};
use sys::ptrace::{self, Registers};

use super::{End, Group, Next, refused};
use crate::calls::{self, Arguments, Class, Part, RefusedCall, Rule};
use crate::error::Result;
use crate::replicas::{Arrival, Mode};
use crate::report::Kind;
use crate::{parts, signals};

/// The results of calls that a signal has interrupted, and that the kernel executes again or turns into EINTR:
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK.
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
/// kill(2), tkill(2), tgkill(2).
const KILLS: [u64; 3] = [62, 200, 234];
/// The call that continues a call with a time limit.
const RESTART_SYSCALL: u64 = 219;

/// A call at which all replicas are stopped.
struct Call {
    registers: Registers,
    arguments: Arguments,
    rule: Rule,
}

impl Group {
    pub(super) fn call(&mut self, registers: &Registers) -> Result<Next> {
        let arguments = arguments(registers);
        let rule = match calls::decide(registers.orig_rax as i64, &arguments) {
            Ok(rule) => rule,
            Err(call) => return Ok(refused(call)),
        };
        if rule.makes_writable
            && parts::is_shared(&self.replicas[0], Address(arguments[0]), ByteCount(arguments[1]))?
        {
            let name = calls::name(registers.orig_rax as i64);
            return Ok(refused(RefusedCall { name, why: calls::SHARED }));
        }
        if let Some(what) = parts::compare(&self.replicas, &arguments, rule.inputs) {
            return Ok(Next::End(self.diverged((Kind::Input, self.in_call(registers, &what)))));
        }
        self.statistics.calls += 1;
        self.inject_into_buffer(&arguments, &rule)?;
        match rule.class {
            Class::Nobody(result) => self.skip(registers, result),
            Class::End => {
                self.resume_all(None)?;
                Ok(Next::Running)
            }
            Class::Local | Class::Same => self.execute_in_all(registers, rule.class),
            Class::Query | Class::Input | Class::Output => {
                self.execute_in_leader(&Call { registers: *registers, arguments, rule })
            }
        }
    }

    /// Lets no replica execute the call.
    fn skip(&mut self, registers: &Registers, result: i64) -> Result<Next> {
        for place in 0..self.replicas.len() {
            self.skip_in(place, registers)?;
        }
        match self.gather(0..self.replicas.len())? {
            Ok(_) => {}
            Err(missed) => return Ok(Next::End(self.missed(missed))),
        }
        let returned = Registers { rax: result as u64, ..*registers };
        for replica in &self.replicas {
            ptrace::set_registers(replica.tid(), &returned)?;
        }
        Ok(Next::Returned)
    }

    /// Makes a replica skip its call, and run to the return of the call.
    fn skip_in(&mut self, place: usize, registers: &Registers) -> Result<()> {
        let replica = &mut self.replicas[place];
        ptrace::set_registers(replica.tid(), &Registers { orig_rax: u64::MAX, ..*registers })?;
        replica.resume(Mode::ToReturn, None)
    }

    fn execute_in_all(&mut self, registers: &Registers, class: Class) -> Result<Next> {
        for replica in &mut self.replicas {
            replica.resume(Mode::ToReturn, None)?;
        }
        let arrivals = match self.gather(0..self.replicas.len())? {
            Ok(arrivals) => arrivals,
            Err(missed) => return Ok(Next::End(self.missed(missed))),
        };
        if class == Class::Local {
            if let Some((_, what)) = self.difference(&arrivals)? {
                return Ok(Next::End(self.diverged((Kind::Result, self.in_call(registers, &what)))));
            }
            return Ok(Next::Returned);
        }
        let Some(Arrival::Return(returned)) = arrivals.first() else {
            return Ok(Next::End(self.diverged((Kind::Stop, self.in_call(registers, "no return")))));
        };
        for replica in &self.replicas[1..] {
            ptrace::set_registers(replica.tid(), returned)?;
        }
        Ok(Next::Returned)
    }

    fn execute_in_leader(&mut self, call: &Call) -> Result<Next> {
        let registers = &call.registers;
        let returned = loop {
            self.replicas[0].resume(Mode::ToReturn, None)?;
            let arrived = match self.gather(0..1)? {
                Ok(arrived) => arrived.into_iter().next(),
                Err(missed) => return Ok(Next::End(self.missed(missed))),
            };
            match arrived {
                Some(Arrival::Return(returned)) if RESTARTS.contains(&(returned.rax as i64)) => {
                    match self.interrupted(call)? {
                        Some(next) => return Ok(next),
                        None => continue,
                    }
                }
                Some(Arrival::Return(returned)) => break returned,
                // The program has killed itself.
                Some(Arrival::Killed(signal)) if KILLS.contains(&registers.orig_rax) => {
                    return Ok(Next::End(End::Killed(signal)));
                }
                other => {
                    let what =
                        other.map_or_else(String::new, |other| format!("the leader {}", other.shown()));
                    return Ok(Next::End(self.diverged((Kind::Stop, self.in_call(registers, &what)))));
                }
            }
        };
        // What the call itself has changed can differ now.
        let is_only_read = |part: &&Part| !call.rule.outputs.contains(part);
        let read: Vec<Part> = call.rule.inputs.iter().filter(is_only_read).copied().collect();
        if call.rule.class == Class::Output
            && let Some(what) = parts::compare(&self.replicas, &call.arguments, &read)
        {
            return Ok(Next::End(self.diverged((Kind::Escaped, self.in_call(registers, &what)))));
        }
        Ok(match self.return_in_followers(call, &returned)? {
            Some(end) => Next::End(end),
            None => Next::Returned,
        })
    }

    /// Lets the followers return from a call that the leader has executed, with the registers and the outputs of the leader.
    fn return_in_followers(&mut self, call: &Call, returned: &Registers) -> Result<Option<End>> {
        for place in 1..self.replicas.len() {
            self.skip_in(place, &call.registers)?;
        }
        if let Err(missed) = self.gather(1..self.replicas.len())? {
            return Ok(Some(self.missed(missed)));
        }
        let (leader, followers) = self.replicas.split_at(1);
        for follower in followers {
            ptrace::set_registers(follower.tid(), returned)?;
            let result = returned.rax as i64;
            parts::copy(&leader[0], follower, (&call.arguments, result), call.rule.outputs)?;
        }
        Ok(None)
    }

    /// Handles a call of the leader that a signal has interrupted. Returns `None` if the leader begins the call again: the
    /// signal was none for the program.
    fn interrupted(&mut self, call: &Call) -> Result<Option<Next>> {
        let registers = &call.registers;
        self.delivering = self.pending_in_leader()?.map(|information| signals::number(&information));
        self.replicas[0].resume(Mode::ToMeeting, None)?;
        let arrived = match self.gather(0..1)? {
            Ok(arrived) => arrived.into_iter().next(),
            Err(missed) => return Ok(Some(Next::End(self.missed(missed)))),
        };
        self.delivering = None;
        match arrived {
            Some(Arrival::Call { registers: again, .. })
                if [registers.orig_rax, RESTART_SYSCALL].contains(&again.orig_rax) =>
            {
                Ok(None)
            }
            Some(Arrival::Signal { signal, information, registers: at_signal }) => {
                if let Some(end) = self.return_in_followers(call, &at_signal)? {
                    return Ok(Some(Next::End(end)));
                }
                self.deliver(signal, &information, true).map(Some)
            }
            other => {
                let what = other.map_or_else(String::new, |other| format!("the leader {}", other.shown()));
                Ok(Some(Next::End(self.diverged((Kind::Stop, self.in_call(registers, &what))))))
            }
        }
    }
}

fn arguments(registers: &Registers) -> Arguments {
    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9]
}
