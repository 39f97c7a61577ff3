//! Hides the stops of a thread from the system calls that these stops interrupt.
//!
//! Owns: the inference of call numbers, the registers with which a thread in an interrupted call continues,
//! and the recorded waiting times.
//! Invariants: a number is inferred only for calls that the kernel resumes through restart_syscall(2). A stop
//! causes neither EINTR in the program nor an early timeout. Every timeout expires eventually, regardless of
//! the number of stops.
//! Does not: know the remaining time of a resumed call, which only the kernel knows. Handle timeouts that the
//! kernel itself continues (sleeps, poll, futex).
//!
//! If a stop interrupts a sleep, poll or futex wait with a timeout, the kernel resumes the call as restart_syscall(2).
//! The registers of the thread then contain the number of restart_syscall(2) instead of the original number. A restore
//! must start the original call again. A restore frame must do this, too. Therefore this module infers the original
//! number from the code and the arguments.
//!
//! Some other calls with a timeout, for example epoll_wait(2), end with EINTR at each stop. The kernel does
//! not report how long the call has waited, so the thread makes the call again with the whole timeout. This
//! module records the time when it first saw the thread in the call. When the timeout has passed since this
//! time, the module makes the call return as if the timeout had expired.

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use model::{Address, ByteCount, Fd, Pid, Tid};
use rustix::net::sockopt::{self, Timeout};
use sys::clock::Clock;
use sys::ptrace::{self, Registers};
use sys::{Result, pidfd, process_memory};

use crate::arch::numbers::{CLOCK_NANOSLEEP, FUTEX, NANOSLEEP, POLL, RESTART_SYSCALL};
use crate::arch::{self, WaitLimit};
use crate::memory::ProcessMemory;
use crate::procfs;

/// Calls that have a restart function in the kernel.
const RESUMED: [i64; 4] = [NANOSLEEP, POLL, FUTEX, CLOCK_NANOSLEEP];
/// Bytes of code before a call that are searched for the instruction that loads the call number.
const CODE_BYTES: u64 = 24;
/// `mov $number, %eax`.
const LOAD_NUMBER: u8 = 0xb8;
/// Lowest value that can be a pointer. No object has a lower address.
const LOWEST_POINTER: u64 = 4096;
/// FUTEX_WAIT and FUTEX_WAIT_BITSET, without the private and clock flags.
const FUTEX_WAITS: [u64; 2] = [0, 9];
const FUTEX_OPERATION: u64 = 0x7f;
const FUTEX_FLAGS: u64 = 0x180;
const NANOSECONDS: u64 = 1_000_000_000;
/// Longest plausible sleep in seconds: ten thousand years.
const LONGEST_SECONDS: u64 = 10_000 * 365 * 24 * 3600;

/// When this number of waits is recorded, expired records are removed. They can belong to threads that have
/// ended.
const SWEEP_AT: usize = 4096;
/// Number of voluntary context switches of a thread between its resumption and its next stop, if the thread
/// has only repeated the interrupted call.
const SLEEPS_OF_ONE_STOP: u64 = 2;

/// If the registers contain the number of restart_syscall(2), returns them with the number of the original
/// call.
#[must_use]
pub fn named(registers: &Registers, memory: &ProcessMemory) -> Registers {
    if registers.orig_rax as i64 != RESTART_SYSCALL {
        return *registers;
    }
    let number = by_code(registers, memory).unwrap_or_else(|| by_arguments(registers, memory));
    Registers { orig_rax: number as u64, ..*registers }
}

fn by_code(registers: &Registers, memory: &ProcessMemory) -> Option<i64> {
    let start = registers.rip.checked_sub(CODE_BYTES + arch::SYSCALL_BYTES)?;
    let code = memory.read_vec(Address(start), ByteCount(CODE_BYTES)).ok()?;
    code.windows(5).rev().filter(|window| window[0] == LOAD_NUMBER).find_map(|window| {
        let number = i64::from(u32::from_ne_bytes([window[1], window[2], window[3], window[4]]));
        RESUMED.contains(&number).then_some(number)
    })
}

fn by_arguments(registers: &Registers, memory: &ProcessMemory) -> i64 {
    let Registers { rdi, rsi, rdx, r10, .. } = *registers;
    if rdi < LOWEST_POINTER {
        let sleeps = rsi == 0 && is_time(memory, rdx);
        return if sleeps { CLOCK_NANOSLEEP } else { POLL };
    }
    let waits = rsi & !(FUTEX_OPERATION | FUTEX_FLAGS) == 0 && FUTEX_WAITS.contains(&(rsi & FUTEX_OPERATION));
    let has_value =
        || memory.read_vec(Address(rdi), ByteCount(4)).is_ok_and(|word| word == (rdx as u32).to_ne_bytes());
    if waits && is_time(memory, r10) && has_value() {
        return FUTEX;
    }
    let remainder_fits = rsi == 0 || rsi >= LOWEST_POINTER;
    if remainder_fits && is_time(memory, rdi) { NANOSLEEP } else { POLL }
}

/// Reports whether the address contains a `struct timespec` with a valid sleep time.
fn is_time(memory: &ProcessMemory, at: u64) -> bool {
    let mut bytes = [0_u8; 16];
    if at < LOWEST_POINTER || memory.read(Address(at), &mut bytes).is_err() {
        return false;
    }
    let [seconds, nanoseconds] = words(bytes);
    (seconds != 0 || nanoseconds != 0) && seconds < LONGEST_SECONDS && nanoseconds < NANOSECONDS
}

/// Returns the two words of a `struct timespec`.
fn words(bytes: [u8; 16]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1].map(|index| u64::from_ne_bytes(words[index]))
}

struct Wait {
    /// Number, arguments, instruction pointer and stack pointer of the call.
    call: [u64; 9],
    began: Instant,
    limit: Duration,
    /// Number of voluntary context switches of the thread, read before it was resumed.
    sleeps: u64,
}

/// The calls that a tracer has interrupted, by thread.
#[derive(Default)]
pub(crate) struct TimedCalls {
    clock: Clock,
    waits: HashMap<Tid, Wait>,
}

impl TimedCalls {
    /// Changes the registers of a thread that has just reached an event stop, so that the program does not
    /// notice the stop.
    pub(crate) fn hide_stop(&mut self, pid: Pid, tid: Tid) -> Result<()> {
        let registers = ptrace::registers(tid)?;
        let Some(broken_off) = arch::broken_off(&registers) else {
            // The thread has left the recorded wait. Its next call is a new wait.
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

    /// Records that a thread is about to be resumed.
    pub(crate) fn before_resume(&mut self, pid: Pid, tid: Tid) {
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

/// Returns the number of voluntary context switches of a thread.
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
    let [seconds, nanoseconds] = words(bytes);
    Some(Duration::new(seconds, u32::try_from(nanoseconds).ok()?))
}

fn socket_limit(pid: Pid, fd: Fd, which: Timeout) -> Option<Duration> {
    let handle = pidfd::open(pid).ok()?;
    let socket = pidfd::duplicate(handle.as_fd(), pid, fd).ok()?;
    // This fails for a descriptor that is no socket. Such a descriptor has no timeout.
    sockopt::socket_timeout(&socket, which).ok()?
}

#[cfg(test)]
mod tests {
    use model::Pid;

    use super::*;

    fn ours() -> ProcessMemory {
        ProcessMemory::open(Pid(std::process::id() as i32)).unwrap()
    }

    fn at<T>(value: &T) -> u64 {
        std::ptr::from_ref(value) as u64
    }

    fn resumed(rdi: u64, rsi: u64, rdx: u64, r10: u64) -> Registers {
        Registers { orig_rax: RESTART_SYSCALL as u64, rdi, rsi, rdx, r10, ..Registers::default() }
    }

    #[test]
    fn the_arguments_tell_the_call() {
        let (time, word, polled, memory) = ([5_u64, 7], 42_u32, [3_u64, 0], ours());
        let number = |registers| named(&registers, &memory).orig_rax as i64;
        assert_eq!(number(resumed(at(&time), at(&word), 0, 0)), NANOSLEEP);
        assert_eq!(number(resumed(at(&time), 0, 0, 0)), NANOSLEEP);
        assert_eq!(number(resumed(1, 0, at(&time), at(&word))), CLOCK_NANOSLEEP);
        assert_eq!(number(resumed(0, 0, 500, 0)), POLL);
        assert_eq!(number(resumed(at(&polled), 1, 500, 0)), POLL);
        assert_eq!(number(resumed(at(&word), 0x189, 42, at(&time))), FUTEX);
        assert_eq!(number(resumed(at(&word), 128, 42, at(&time))), FUTEX);
    }

    #[test]
    fn the_instruction_before_the_call_tells_it_better() {
        let mut code = [0x90_u8; 32];
        code[20..25].copy_from_slice(&[LOAD_NUMBER, POLL as u8, 0, 0, 0]);
        let registers = Registers { rip: at(&code) + 29, ..resumed(at(&[9_u64, 9]), 0, 0, 0) };
        assert_eq!(named(&registers, &ours()).orig_rax as i64, POLL);
    }

    #[test]
    fn other_calls_keep_their_number() {
        let registers = Registers { orig_rax: 0, ..Registers::default() };
        assert_eq!(named(&registers, &ours()), registers);
    }
}
