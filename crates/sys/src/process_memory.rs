//! Reads and writes the memory of another process.
//!
//! Owns: process_vm_readv(2) and process_vm_writev(2).
//! Invariants: a short transfer is continued or reported as an error, never accepted.
//! Does not: access pages that the process itself cannot access; `tracee::memory` does, through `/proc/PID/mem`.
//!
//! Man page: process_vm_readv(2)
//! Since: Linux 3.2
//! Probe: `features::REGISTRY` entry "process-memory"
//! Fallback: `/proc/PID/mem`

use model::{Address, ByteCount, Pid};

use crate::error::{Errno, Error, Result};

/// Most bytes that the kernel transfers in one call: 2 GiB minus one page.
const BYTES_PER_CALL: usize = (2 << 30) - 4096;

/// Most ranges in one scattered read or write (IOV_MAX).
pub const RANGES_PER_CALL: usize = 1024;

/// Fills `buffer` with the memory of a process from `address` on.
pub fn read(pid: Pid, address: Address, buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let length = (buffer.len() - done).min(BYTES_PER_CALL);
        let at = address + ByteCount(done as u64);
        let local = libc::iovec { iov_base: buffer[done..].as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: length };
        // SAFETY: `local` covers `length` bytes of the exclusively borrowed buffer. The kernel checks `remote`,
        // which names memory of another process.
        let moved =
            unsafe { libc::process_vm_readv(pid.get(), &raw const local, 1, &raw const remote, 1, 0) };
        done += taken("read", pid, at, length, moved)?;
    }
    Ok(())
}

/// Fills `buffer` with several ranges of a process, one after the other. `ranges` has at most [`RANGES_PER_CALL`]
/// entries.
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
    // SAFETY: `local` covers `total` bytes of the exclusively borrowed buffer, as checked above. The kernel checks
    // the remote ranges.
    let moved = unsafe {
        libc::process_vm_readv(pid.get(), &raw const local, 1, remote.as_ptr(), remote.len() as u64, 0)
    };
    Errno::check(moved).map_err(|errno| Error::memory("read", pid, *first, ByteCount(total), errno))?;
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

/// Writes `bytes` to the memory of a process at `address`. The memory must be writable.
pub fn write(pid: Pid, address: Address, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let length = (bytes.len() - done).min(BYTES_PER_CALL);
        let at = address + ByteCount(done as u64);
        let local = libc::iovec { iov_base: bytes[done..].as_ptr().cast_mut().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: at.get() as *mut libc::c_void, iov_len: length };
        // SAFETY: the kernel only reads `length` bytes of the borrowed slice, and checks the remote range.
        let moved =
            unsafe { libc::process_vm_writev(pid.get(), &raw const local, 1, &raw const remote, 1, 0) };
        done += taken("write", pid, at, length, moved)?;
    }
    Ok(())
}

/// Writes several pieces to writable memory of a process. One call writes up to [`RANGES_PER_CALL`] pieces, which
/// is faster than one call for each piece.
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
        // SAFETY: the kernel only reads the borrowed slices that `local` names, and checks the remote ranges.
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
        // The call was short, too long or failed. Writing each piece alone completes the transfer or reports the
        // error of a piece.
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
