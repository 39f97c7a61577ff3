//! Memory of other processes, read and written from outside.
//!
//! Owns: process_vm_readv(2), process_vm_writev(2).
//! Invariants: a short transfer is an error or is continued, never silently accepted.
//! Does not: reach pages without access rights; `/proc/PID/mem` does (`tracee::memory`).
//!
//! Man page: process_vm_readv(2)
//! Since: Linux 3.2
//! Probe: `features::REGISTRY` entry "process-memory"
//! Fallback: `/proc/PID/mem`

use model::{Address, ByteCount, Pid};

use crate::error::{Errno, Error, Result};

/// Most bytes the kernel moves in one call: 2 GiB less a page.
const BYTES_PER_CALL: usize = (2 << 30) - 4096;

/// Most ranges of one scattered read (IOV_MAX).
pub const RANGES_PER_CALL: usize = 1024;

/// Fills `buffer` from `address` of a process.
pub fn read(pid: Pid, address: Address, buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let length = (buffer.len() - done).min(BYTES_PER_CALL);
        let at = address + ByteCount(done as u64);
        let local = libc::iovec { iov_base: buffer[done..].as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: length };
        // SAFETY: `local` covers `length` bytes of the exclusively borrowed buffer; `remote` names memory of
        // another process, which the kernel checks.
        let moved =
            unsafe { libc::process_vm_readv(pid.get(), &raw const local, 1, &raw const remote, 1, 0) };
        done += taken("read", pid, at, length, moved)?;
    }
    Ok(())
}

/// Fills `buffer` from several ranges of a process, one after the other; at most [`RANGES_PER_CALL`].
pub fn read_scattered(pid: Pid, ranges: &[(Address, ByteCount)], buffer: &mut [u8]) -> Result<()> {
    let total: u64 = ranges.iter().map(|(_, length)| length.get()).sum();
    let (Some((first, _)), true) = (ranges.first(), total as usize <= buffer.len()) else {
        return Ok(());
    };
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|(address, length)| libc::iovec {
            iov_base: address.get() as *mut libc::c_void,
            iov_len: length.get() as usize,
        })
        .collect();
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: total as usize };
    // SAFETY: `local` covers `total` bytes of the exclusively borrowed buffer, checked above; the kernel checks
    // the remote ranges.
    let moved = unsafe {
        libc::process_vm_readv(pid.get(), &raw const local, 1, remote.as_ptr(), remote.len() as u64, 0)
    };
    if moved < 0 {
        return Err(Error::memory("read", pid, *first, ByteCount(total), Errno::last()));
    }
    if moved as u64 == total {
        return Ok(());
    }
    let mut done = 0;
    for (address, length) in ranges {
        let length = length.get() as usize;
        read(pid, *address, &mut buffer[done..done + length])?;
        done += length;
    }
    Ok(())
}

/// Writes `bytes` to writable memory of a process.
pub fn write(pid: Pid, address: Address, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let length = (bytes.len() - done).min(BYTES_PER_CALL);
        let at = address + ByteCount(done as u64);
        let local = libc::iovec { iov_base: bytes[done..].as_ptr().cast_mut().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: length };
        // SAFETY: the kernel only reads `length` bytes of the borrowed slice; it checks the remote range.
        let moved =
            unsafe { libc::process_vm_writev(pid.get(), &raw const local, 1, &raw const remote, 1, 0) };
        done += taken("write", pid, at, length, moved)?;
    }
    Ok(())
}

/// Writes several pieces to writable memory of a process; at most [`RANGES_PER_CALL`] in one call, which is what
/// makes it faster than one by one.
pub fn write_scattered(pid: Pid, pieces: &[(Address, &[u8])]) -> Result<()> {
    for pieces in pieces.chunks(RANGES_PER_CALL) {
        let local: Vec<libc::iovec> = pieces
            .iter()
            .map(|(_, bytes)| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            })
            .collect();
        let remote: Vec<libc::iovec> = pieces
            .iter()
            .map(|(address, bytes)| libc::iovec {
                iov_base: address.get() as *mut libc::c_void,
                iov_len: bytes.len(),
            })
            .collect();
        let total: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        // SAFETY: the kernel only reads the borrowed slices that `local` names; it checks the remote ranges.
        let moved = unsafe {
            libc::process_vm_writev(
                pid.get(),
                local.as_ptr(),
                local.len() as u64,
                remote.as_ptr(),
                remote.len() as u64,
                0,
            )
        };
        if usize::try_from(moved).is_ok_and(|moved| moved == total) {
            continue;
        }
        // Short, too long for one call, or failed: the piece that it is says so itself.
        pieces.iter().try_for_each(|(address, bytes)| write(pid, *address, bytes))?;
    }
    Ok(())
}

fn taken(operation: &'static str, pid: Pid, at: Address, length: usize, moved: isize) -> Result<usize> {
    match moved {
        0 => Err(Error::memory(operation, pid, at, ByteCount(length as u64), Errno::SHORT)),
        moved if moved < 0 => Err(Error::memory(operation, pid, at, ByteCount(length as u64), Errno::last())),
        moved => Ok(moved as usize),
    }
}
