//! The memory of one process, through `/proc/PID/mem`.
//!
//! Owns: reads and writes that ignore page protection (PROT_NONE, read-only).
//! Invariants: transfers are whole or an error.
//! Does not: move bulk data; `sys::process_memory` is faster where protection allows.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use model::{Address, ByteCount, Pid};
use sys::{Errno, Error, Result};

const EIO: i32 = 5;

/// An open view of a process's memory; it stays with that process's address space until the process execs.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of a process; needs the right to trace it.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Fills `buffer` from an address.
    pub fn read(&self, address: Address, buffer: &mut [u8]) -> Result<()> {
        match self.file.read_exact_at(buffer, address.get()) {
            // A page that a userfaultfd is still to bring: this way does not wait for it, that one does.
            Err(error) if error.raw_os_error() == Some(EIO) => {
                sys::process_memory::read(self.pid, address, buffer)
            }
            outcome => outcome.map_err(|error| self.failed("read", address, buffer.len(), error)),
        }
    }

    /// Reads `length` bytes from an address.
    pub fn read_vec(&self, address: Address, length: ByteCount) -> Result<Vec<u8>> {
        let mut buffer = vec![0; length.get() as usize];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    /// Writes bytes to an address, whatever the protection of a private page.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<()> {
        match self.file.write_all_at(bytes, address.get()) {
            // A page whose writes a userfaultfd holds up: this way does not wait for them, that one does.
            Err(error) if error.raw_os_error() == Some(EIO) => {
                sys::process_memory::write(self.pid, address, bytes)
            }
            outcome => outcome.map_err(|error| self.failed("write", address, bytes.len(), error)),
        }
    }

    /// A transfer of nothing means that the address space is gone with its process.
    fn failed(
        &self,
        operation: &'static str,
        address: Address,
        length: usize,
        error: std::io::Error,
    ) -> Error {
        let gone = matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::WriteZero);
        let errno = if gone { Errno::ESRCH } else { error.into() };
        Error::memory(operation, self.pid, address, ByteCount(length as u64), errno)
    }
}
