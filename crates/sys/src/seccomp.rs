//! Reads the seccomp filters of a stopped tracee.
//!
//! Owns: PTRACE_SECCOMP_GET_FILTER and PTRACE_SECCOMP_GET_METADATA.
//! Invariants: filters are only read. The thread must be a tracee of the calling thread.
//! Does not: install filters or interpret their code.
//!
//! Man page: ptrace(2), seccomp(2)
//! Since: Linux 4.4 (metadata 4.16; both with CONFIG_CHECKPOINT_RESTORE)
//! Probe: none; the requests need CAP_SYS_ADMIN and a caller without seccomp filters
//! Fallback: none; subjects (protected programs) with filters are refused

use std::mem::{offset_of, size_of};
use std::ptr;

use model::Tid;

use crate::error::{Errno, Error, Result};
pub use crate::watch_filter::INSTRUCTION_BYTES;
use crate::watch_filter::{OWN_INSTRUCTIONS_MAX, is_own};

const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_SECCOMP_GET_METADATA: libc::c_uint = 0x420d;
/// Most instructions of a classic BPF program (BPF_MAXINSNS).
const INSTRUCTIONS_MAX: usize = 4096;

#[repr(C)]
struct Metadata {
    filter_offset: u64,
    flags: u64,
}

const _: () = assert!(size_of::<Metadata>() == 16);
const _: () = assert!(offset_of!(Metadata, flags) == 8);
const _: () = assert!(size_of::<libc::sock_filter>() == INSTRUCTION_BYTES);

/// Reads the code of one filter of a thread. Index 0 is the oldest filter. Returns `None` if the index is too
/// large.
pub fn filter(tid: Tid, index: usize) -> Result<Option<Vec<u8>>> {
    let mut code = vec![0_u8; INSTRUCTIONS_MAX * INSTRUCTION_BYTES];
    // SAFETY: a classic filter has at most INSTRUCTIONS_MAX instructions, and `code` has room for all of these.
    let result = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid.get(), index, code.as_mut_ptr()) };
    if result < 0 {
        let errno = Errno::last();
        let error = Error::thread("read a seccomp filter", tid, errno);
        return if errno == Errno::ENOENT { Ok(None) } else { Err(error) };
    }
    code.truncate(result as usize * INSTRUCTION_BYTES);
    Ok(Some(code))
}

/// Reports whether the oldest filter of a thread is a filter by which this program watches its subjects. Allocates
/// nothing.
pub fn is_watched(tid: Tid) -> Result<bool> {
    let mut code = [0_u8; OWN_INSTRUCTIONS_MAX * INSTRUCTION_BYTES];
    // SAFETY: with a null pointer, the kernel returns the number of instructions and writes nothing.
    let length = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid.get(), 0, ptr::null_mut::<u8>()) };
    let length = match length {
        0.. => length as usize,
        // The thread has no filter with this index, or has no filters at all.
        _ if matches!(Errno::last(), Errno::ENOENT | Errno::EINVAL) => return Ok(false),
        _ => return Err(Error::thread("measure a seccomp filter", tid, Errno::last())),
    };
    if length > OWN_INSTRUCTIONS_MAX {
        return Ok(false);
    }
    // SAFETY: a filter never changes, so it still has `length` instructions. `code` has room for these
    // instructions.
    let result = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid.get(), 0, code.as_mut_ptr()) };
    Errno::check(result).map_err(|errno| Error::thread("read a seccomp filter", tid, errno))?;
    Ok(is_own(&code[..length * INSTRUCTION_BYTES]))
}

/// Reads the flags (SECCOMP_FILTER_FLAG_*) that one filter of a thread was installed with. The kernel does not
/// report every flag.
pub fn filter_flags(tid: Tid, index: usize) -> Result<u64> {
    let mut metadata = Metadata { filter_offset: index as u64, flags: 0 };
    // SAFETY: the kernel reads and writes at most the given size, which is the size of the live structure.
    let result = unsafe {
        libc::ptrace(PTRACE_SECCOMP_GET_METADATA, tid.get(), size_of::<Metadata>(), &raw mut metadata)
    };
    Errno::check(result).map_err(|errno| Error::thread("read the flags of a seccomp filter", tid, errno))?;
    Ok(metadata.flags)
}
