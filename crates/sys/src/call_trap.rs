//! A seccomp filter that stops every system call of a traced process, and the trap of RDTSC.
//!
//! Owns: the classic BPF program, its data words, and the arguments of prctl(2) and seccomp(2) that set both up.
//! Invariants: each call of the process stops at its tracer. Without a tracer, each call fails with ENOSYS.
//! Does not: make the calls; the tracer lets the process make them.
//!
//! Man page: seccomp(2), prctl(2) PR_SET_TSC
//! Since: Linux 4.8 (SECCOMP_RET_TRACE before the filter of a system call that the tracer changes)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; replicated execution needs the stops

use crate::watch_filter::AUDIT_ARCH_X86_64;

/// Number of instructions of the program.
pub const INSTRUCTIONS: u16 = 4;

/// prctl(2) and its arguments: system calls gain no rights at execve(2). An unprivileged process needs this for a filter.
pub const NO_NEW_RIGHTS: [u64; 5] = [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0];
/// prctl(2) and its arguments: RDTSC and RDTSCP cause SIGSEGV.
pub const TRAP_TIME_STAMP: [u64; 2] = [libc::PR_SET_TSC as u64, libc::PR_TSC_SIGSEGV as u64];
/// The first argument of seccomp(2) that installs a filter.
pub const SET_FILTER: u64 = libc::SECCOMP_SET_MODE_FILTER as u64;

/// The event message of a stop at a call of another architecture, by `int 0x80`. An x32 call has a number of its own.
pub const FOREIGN: u64 = 1;

const ARCHITECTURE_AT: u32 = 4;

/// Returns the program in the layout of the kernel: 8 bytes for each instruction.
#[must_use]
pub fn program() -> Vec<u8> {
    let (load, jump_equal, ret) = (0x20_u16, 0x15_u16, 0x06_u16);
    let instructions: [(u16, u8, u8, u32); INSTRUCTIONS as usize] = [
        (load, 0, 0, ARCHITECTURE_AT),
        (jump_equal, 1, 0, AUDIT_ARCH_X86_64),
        (ret, 0, 0, libc::SECCOMP_RET_TRACE | FOREIGN as u32),
        (ret, 0, 0, libc::SECCOMP_RET_TRACE),
    ];
    let bytes = |(code, if_true, if_false, value): (u16, u8, u8, u32)| {
        let ([one, two], [a, b, c, d]) = (code.to_ne_bytes(), value.to_ne_bytes());
        [one, two, if_true, if_false, a, b, c, d]
    };
    instructions.into_iter().flat_map(bytes).collect()
}

/// Returns the `struct sock_fprog` of a program at an address.
#[must_use]
pub fn program_at(address: model::Address) -> Vec<u8> {
    let mut bytes = u64::from(INSTRUCTIONS).to_ne_bytes().to_vec();
    bytes.extend(address.get().to_ne_bytes());
    bytes
}

/// Reads the time stamp counter of this processor.
#[must_use]
pub fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction. The process has not forbidden it to itself.
    unsafe { std::arch::x86_64::_rdtsc() }
}

const _: () = assert!(size_of::<libc::sock_filter>() == 8);
const _: () = assert!(size_of::<libc::sock_fprog>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_eight_bytes_for_each_instruction() {
        assert_eq!(program().len(), 8 * usize::from(INSTRUCTIONS));
        assert_eq!(program_at(model::Address(0x10))[..9], [4, 0, 0, 0, 0, 0, 0, 0, 0x10]);
    }
}
