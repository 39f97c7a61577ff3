//! Accesses the memory of one process through `/proc/PID/mem`.
//!
//! Owns: reads and writes that ignore page protection (PROT_NONE, read-only).
//! Invariants: a transfer is complete, or it is an error.
//! Does not: transfer large amounts of data; `sys::process_memory` is faster where the protection permits.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use model::{Address, ByteCount, Pid};
use sys::{Errno, Error, Result};

const EIO: i32 = 5;

/// An open `/proc/PID/mem`. It refers to the address space that the process had at the opening, and no longer
/// to the process after an exec(2).
#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of a process. This needs the permission to trace the process.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file })
    }

    /// Returns the pid of the process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reads bytes from an address until `buffer` is full.
    pub fn read(&self, address: Address, buffer: &mut [u8]) -> Result<()> {
        match self.file.read_exact_at(buffer, address.get()) {
            // EIO can mean that a userfaultfd must supply the page. `/proc/PID/mem` does not wait for the
            // page, but `sys::process_memory` does.
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

    /// Writes bytes to an address, regardless of the protection of a private page.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<()> {
        match self.file.write_all_at(bytes, address.get()) {
            // EIO can mean that a userfaultfd must permit the write. `/proc/PID/mem` does not wait for this,
            // but `sys::process_memory` does.
            Err(error) if error.raw_os_error() == Some(EIO) => {
                sys::process_memory::write(self.pid, address, bytes)
            }
            outcome => outcome.map_err(|error| self.failed("write", address, bytes.len(), error)),
        }
    }

    /// Returns the error of a transfer. If no bytes could be transferred, the process and its address space
    /// no longer exist, and the error is ESRCH.
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
