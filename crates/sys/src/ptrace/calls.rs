//! Says which system call a stopped tracee enters or leaves.
//!
//! Owns: the kernel's layout of `struct ptrace_syscall_info`.
//! Does not: count stops. The kernel itself knows whether a stop is an entry or an exit.
//!
//! Man page: ptrace(2)
//! Since: Linux 5.4 (PTRACE_GET_SYSCALL_INFO 5.3)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; all supported kernels have the request

use model::Tid;

use super::requests::request;
use crate::error::Result;

const PTRACE_GET_SYSCALL_INFO: libc::c_uint = 0x420e;
/// The operation, the instruction and stack pointers, and the union: 88 bytes.
const WORDS: usize = 11;
/// The word where the union begins: the call number, or the result.
const UNION_AT: usize = 3;
const ENTRY: u8 = 1;
const EXIT: u8 = 2;
const SECCOMP: u8 = 3;

/// The place of a stopped tracee in a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallPhase {
    /// The tracee is not in a stop of a system call.
    Outside,
    /// The tracee enters the system call with this number.
    Entry(i64),
    /// The tracee leaves a system call with this result. Errors are negative.
    Exit(i64),
    /// A seccomp filter has stopped the system call with this number.
    Seccomp(i64),
}

/// Returns the place of a stopped tracee in a system call.
pub fn call_phase(tid: Tid) -> Result<CallPhase> {
    let mut words = [0_u64; WORDS];
    let bytes = size_of_val(&words);
    request("read the system call", PTRACE_GET_SYSCALL_INFO, tid, bytes, words.as_mut_ptr() as usize)?;
    let value = words[UNION_AT] as i64;
    Ok(match words[0].to_ne_bytes()[0] {
        ENTRY => CallPhase::Entry(value),
        EXIT => CallPhase::Exit(value),
        SECCOMP => CallPhase::Seccomp(value),
        _ => CallPhase::Outside,
    })
}
