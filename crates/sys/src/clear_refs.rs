//! Clears the soft-dirty bits of a process. The kernel sets the bit of a page when the process writes to the page.
//!
//! Owns: `/proc/PID/clear_refs`.
//! Invariants: the file is opened once, so that clearing does not allocate memory.
//! Does not: read the bits; `pagemap` does.
//!
//! Man page: proc_pid_clear_refs(5)
//! Since: Linux 3.11, with CONFIG_MEM_SOFT_DIRTY
//! Probe: `features::REGISTRY` entry "soft-dirty"
//! Fallback: trackers (components that find written pages) that do not use soft-dirty bits

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use model::Pid;

use crate::error::{Error, Result};

/// The request to clear soft-dirty bits.
const SOFT_DIRTY: &[u8] = b"4";

/// The open file `/proc/PID/clear_refs` of one process.
#[derive(Debug)]
pub struct ClearRefs {
    pid: Pid,
    file: File,
}

impl ClearRefs {
    /// Opens the file of a process. The caller needs permission to write to the memory of the process.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/clear_refs");
        let file = OpenOptions::new().write(true).open(&path);
        let file = file.map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file })
    }

    /// Clears every soft-dirty bit. All threads of the process must be stopped: a page that is written between
    /// reading and clearing the bits would be missed.
    pub fn clear_soft_dirty(&self) -> Result<()> {
        self.file
            .write_all_at(SOFT_DIRTY, 0)
            .map_err(|error| Error::process("clear the soft-dirty bits", self.pid, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_bits_can_be_cleared() {
        // Kernels without soft-dirty bits accept the request, too.
        ClearRefs::open(Pid(std::process::id() as i32)).unwrap().clear_soft_dirty().unwrap();
    }
}
