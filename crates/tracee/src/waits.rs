//! Calls with a timeout that stops break off, again and again.
//!
//! Owns: what such a thread goes on with, and how long each has been seen waiting.
//! Invariants: a program sees no EINTR for the sake of a stop, no timeout early, and every timeout at last, however
//! often it is stopped.
//! Does not: serve calls that the kernel itself resumes with what is left of their time (sleeps, poll, futex).
//!
//! The kernel ends these calls with EINTR at any stop, and nothing tells how long they have waited. They are entered
//! again with their whole timeout; once the time since they were first seen waiting exceeds it, they return as if
//! it had just passed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::{Address, Fd, Pid, Tid};
use rustix::net::sockopt::{self, Timeout};
use sys::clock::Clock;
use sys::ptrace::{self, Registers};
use sys::{Result, pidfd, process_memory};

use crate::arch::{self, WaitLimit};
use crate::procfs;

/// Waits remembered before those that are over are swept out; threads end without saying so.
const SWEEP_AT: usize = 4096;
/// A thread that went on, entered the call again and was stopped there has slept twice since.
const SLEEPS_OF_ONE_STOP: u64 = 2;

struct Wait {
    /// Number, arguments and place of the call.
    call: [u64; 9],
    began: Instant,
    limit: Duration,
    /// How often the thread had slept when it went on.
    sleeps: u64,
}

/// The calls that a tracer has broken off, by thread.
#[derive(Default)]
pub(crate) struct TimedCalls {
    clock: Clock,
    waits: HashMap<Tid, Wait>,
}

impl TimedCalls {
    /// Changes the registers of a thread that has just come to an event stop, so that the stop remains unnoticed.
    pub(crate) fn hide_stop(&mut self, pid: Pid, tid: Tid) -> Result<()> {
        let registers = ptrace::registers(tid)?;
        let Some(broken_off) = arch::broken_off(&registers) else {
            // Whatever it does next is another wait.
            self.waits.remove(&tid);
            return match arch::entered_again_without_loss(&registers) {
                Some(changed) => ptrace::set_registers(tid, &changed),
                None => Ok(()),
            };
        };
        let late = match limit(pid, broken_off.limit) {
            Some(limit) => self.is_late(pid, tid, &registers, limit),
            None => false,
        };
        let changed = if late {
            arch::returned(&registers, broken_off.result_late)
        } else {
            arch::entered_again(&registers)
        };
        ptrace::set_registers(tid, &changed)
    }

    /// Notes that a thread goes on.
    pub(crate) fn goes_on(&mut self, pid: Pid, tid: Tid) {
        if let Some(wait) = self.waits.get_mut(&tid) {
            match sleeps(pid, tid) {
                Some(sleeps) => wait.sleeps = sleeps,
                None => drop(self.waits.remove(&tid)),
            }
        }
    }

    fn is_late(&mut self, pid: Pid, tid: Tid, registers: &Registers, limit: Duration) -> bool {
        let Registers { orig_rax, rip, rsp, rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
        let call = [orig_rax, rip, rsp, rdi, rsi, rdx, r10, r8, r9];
        let known = self.waits.remove(&tid).filter(|wait| {
            let same_call = wait.call == call && wait.limit == limit;
            same_call && sleeps(pid, tid) == Some(wait.sleeps + SLEEPS_OF_ONE_STOP)
        });
        let now = self.clock.now();
        let began = known.map_or(now, |wait| wait.began);
        if now - began >= limit {
            return true;
        }
        if self.waits.len() >= SWEEP_AT {
            self.waits.retain(|_, wait| now - wait.began < wait.limit);
        }
        self.waits.insert(tid, Wait { call, began, limit, sleeps: 0 });
        false
    }
}

/// How often a thread has given up the processor of its own accord.
fn sleeps(pid: Pid, tid: Tid) -> Option<u64> {
    let text = procfs::read_text(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

fn limit(pid: Pid, limit: WaitLimit) -> Option<Duration> {
    match limit {
        WaitLimit::None => None,
        WaitLimit::Milliseconds(count) => Some(Duration::from_millis(u64::from(count))),
        WaitLimit::Timespec(at) => timespec(pid, at),
        WaitLimit::Receive(fd) => socket_limit(pid, fd, Timeout::Recv),
        WaitLimit::Send(fd) => socket_limit(pid, fd, Timeout::Send),
    }
}

fn timespec(pid: Pid, at: Address) -> Option<Duration> {
    let mut bytes = [0_u8; 16];
    process_memory::read(pid, at, &mut bytes).ok()?;
    let (seconds, nanoseconds) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    Some(Duration::new(number(seconds)?, u32::try_from(number(nanoseconds)?).ok()?))
}

fn socket_limit(pid: Pid, fd: Fd, which: Timeout) -> Option<Duration> {
    use std::os::fd::AsFd;
    let handle = pidfd::open(pid).ok()?;
    let socket = pidfd::duplicate(handle.as_fd(), pid, fd).ok()?;
    // Anything but a socket has no such limit.
    sockopt::socket_timeout(&socket, which).ok()?
}
