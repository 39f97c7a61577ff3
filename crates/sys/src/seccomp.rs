//! The seccomp filters of a stopped tracee.
//!
//! Owns: PTRACE_SECCOMP_GET_FILTER and PTRACE_SECCOMP_GET_METADATA.
//! Invariants: reads only; the tracee is one of the calling thread.
//! Does not: install filters or understand their code.
//!
//! Man page: ptrace(2), seccomp(2)
//! Since: Linux 4.4 (metadata 4.16; both with CONFIG_CHECKPOINT_RESTORE)
//! Probe: none; it needs CAP_SYS_ADMIN and a caller without filters of its own
//! Fallback: none; subjects with filters are refused

use std::mem::{offset_of, size_of};
use std::ptr;

use model::Tid;

use crate::error::{Errno, Error, Result};
pub use crate::watch_filter::INSTRUCTION_BYTES;
use crate::watch_filter::{OWN_INSTRUCTIONS_MAX, is_own};

const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_SECCOMP_GET_METADATA: libc::c_uint = 0x420d;
/// BPF_MAXINSNS.
const INSTRUCTIONS_MAX: usize = 4096;

#[repr(C)]
struct Metadata {
    filter_offset: u64,
    flags: u64,
}

const _: () = assert!(size_of::<Metadata>() == 16);
const _: () = assert!(offset_of!(Metadata, flags) == 8);
const _: () = assert!(size_of::<libc::sock_filter>() == INSTRUCTION_BYTES);

/// The code of one filter of a thread, oldest first; `None` behind the last.
pub fn filter(tid: Tid, index: usize) -> Result<Option<Vec<u8>>> {
    let mut code = vec![0_u8; INSTRUCTIONS_MAX * INSTRUCTION_BYTES];
    // SAFETY: a classic filter has at most INSTRUCTIONS_MAX instructions, for all of which `code` has room.
    let result = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid.get(), index, code.as_mut_ptr()) };
    if result < 0 {
        let errno = Errno::last();
        let error = Error::thread("read a seccomp filter", tid, errno);
        return if errno == Errno::ENOENT { Ok(None) } else { Err(error) };
    }
    code.truncate(result as usize * INSTRUCTION_BYTES);
    Ok(Some(code))
}

/// Whether the oldest filter of a thread is the one by which this program watches its subjects. Allocates nothing.
pub fn is_watched(tid: Tid) -> Result<bool> {
    let mut code = [0_u8; OWN_INSTRUCTIONS_MAX * INSTRUCTION_BYTES];
    // SAFETY: without memory for the code, the kernel gives the number of its instructions and writes nothing.
    let length = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid.get(), 0, ptr::null_mut::<u8>()) };
    let length = match length {
        0.. => length as usize,
        // No such filter, or none at all.
        _ if matches!(Errno::last(), Errno::ENOENT | Errno::EINVAL) => return Ok(false),
        _ => return Err(Error::thread("measure a seccomp filter", tid, Errno::last())),
    };
    if length > OWN_INSTRUCTIONS_MAX {
        return Ok(false);
    }
    // SAFETY: filters do not change, so that this one has as many instructions as before, for which `code` has room.
    let result = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid.get(), 0, code.as_mut_ptr()) };
    if result < 0 {
        return Err(Error::thread("read a seccomp filter", tid, Errno::last()));
    }
    Ok(is_own(&code[..length * INSTRUCTION_BYTES]))
}

/// The flags (SECCOMP_FILTER_FLAG_*) that one filter of a thread was installed with, as far as the kernel tells.
pub fn filter_flags(tid: Tid, index: usize) -> Result<u64> {
    let mut metadata = Metadata { filter_offset: index as u64, flags: 0 };
    // SAFETY: the kernel reads and writes at most the size that is given, which is that of the live structure.
    let result = unsafe {
        libc::ptrace(PTRACE_SECCOMP_GET_METADATA, tid.get(), size_of::<Metadata>(), &raw mut metadata)
    };
    if result < 0 {
        return Err(Error::thread("read the flags of a seccomp filter", tid, Errno::last()));
    }
    Ok(metadata.flags)
}
