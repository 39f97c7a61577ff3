//! Clearing the soft-dirty bits of a process.
//!
//! Owns: `/proc/PID/clear_refs`.
//! Invariants: opened once, so that clearing allocates nothing.
//! Does not: read the bits; the page map has them.
//!
//! Man page: proc_pid_clear_refs(5)
//! Since: Linux 3.11, with CONFIG_MEM_SOFT_DIRTY
//! Probe: `features::REGISTRY` entry "soft-dirty"
//! Fallback: other trackers

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use model::Pid;

use crate::error::{Error, Result};

/// The request to clear soft-dirty bits.
const SOFT_DIRTY: &[u8] = b"4";

/// The file of one process, held open.
#[derive(Debug)]
pub struct ClearRefs {
    pid: Pid,
    file: File,
}

impl ClearRefs {
    /// Opens the file of a process; needs the right to write its memory.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/clear_refs");
        let file = OpenOptions::new().write(true).open(&path);
        let file = file.map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file })
    }

    /// Clears every soft-dirty bit. A write between reading the bits and this is never seen: the process must
    /// stand still.
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
        // Kernels without the bits take the request too.
        ClearRefs::open(Pid(std::process::id() as i32)).unwrap().clear_soft_dirty().unwrap();
    }
}
