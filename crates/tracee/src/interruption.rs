//! Which call a thread was in that the kernel has already resumed once after a stop.
//!
//! Owns: the inference of its number.
//! Invariants: a number is given only for calls that the kernel resumes through restart_syscall(2).
//! Does not: know how much of the call's time was left; nothing in user space does.
//!
//! A sleep, poll or futex wait with a timeout that a stop broke off is resumed as restart_syscall(2): the thread's
//! registers then hold that number, and the kernel alone knows the call behind it. Whoever must enter the call anew
//! (a restore, or a thread that comes home by its signal frame) has to find it from the code and the arguments.

use model::{Address, ByteCount};
use sys::ptrace::Registers;

use crate::arch::numbers::{CLOCK_NANOSLEEP, FUTEX, NANOSLEEP, POLL, RESTART_SYSCALL};
use crate::memory::ProcessMemory;

/// Calls with a restart function of their own in the kernel.
const RESUMED: [i64; 4] = [NANOSLEEP, POLL, FUTEX, CLOCK_NANOSLEEP];
/// Code before a call that is searched for the instruction that loads its number.
const CODE_BYTES: u64 = 24;
/// Length of `syscall`.
const SYSCALL_BYTES: u64 = 2;
/// `mov $number, %eax`.
const LOAD_NUMBER: u8 = 0xb8;
/// No object lies below this address.
const LOWEST_POINTER: u64 = 4096;
/// FUTEX_WAIT and FUTEX_WAIT_BITSET, without the private and clock flags.
const FUTEX_WAITS: [u64; 2] = [0, 9];
const FUTEX_OPERATION: u64 = 0x7f;
const FUTEX_FLAGS: u64 = 0x180;
const NANOSECONDS: u64 = 1_000_000_000;
/// Longest sleep that is believed, in seconds: ten thousand years.
const LONGEST_SECONDS: u64 = 10_000 * 365 * 24 * 3600;

/// The same registers with the number of the call itself where the kernel has put restart_syscall's.
#[must_use]
pub fn named(registers: &Registers, memory: &ProcessMemory) -> Registers {
    if registers.orig_rax as i64 != RESTART_SYSCALL {
        return *registers;
    }
    let number = by_code(registers, memory).unwrap_or_else(|| by_arguments(registers, memory));
    Registers { orig_rax: number as u64, ..*registers }
}

fn by_code(registers: &Registers, memory: &ProcessMemory) -> Option<i64> {
    let start = registers.rip.checked_sub(CODE_BYTES + SYSCALL_BYTES)?;
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
    if waits && is_time(memory, r10) && word(memory, rdi).is_some_and(|word| word == rdx as u32) {
        return FUTEX;
    }
    let remainder_fits = rsi == 0 || rsi >= LOWEST_POINTER;
    if remainder_fits && is_time(memory, rdi) { NANOSLEEP } else { POLL }
}

fn word(memory: &ProcessMemory, at: u64) -> Option<u32> {
    let mut bytes = [0_u8; 4];
    memory.read(Address(at), &mut bytes).ok()?;
    Some(u32::from_ne_bytes(bytes))
}

/// Whether a `struct timespec` lies there that one can sleep for.
fn is_time(memory: &ProcessMemory, at: u64) -> bool {
    let mut bytes = [0_u8; 16];
    if at < LOWEST_POINTER || memory.read(Address(at), &mut bytes).is_err() {
        return false;
    }
    let (seconds, nanoseconds) = bytes.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(u64::MAX, u64::from_ne_bytes);
    let (seconds, nanoseconds) = (number(seconds), number(nanoseconds));
    (seconds != 0 || nanoseconds != 0) && seconds < LONGEST_SECONDS && nanoseconds < NANOSECONDS
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
