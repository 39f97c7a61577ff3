//! Whether the mappings of a process have changed.
//!
//! Owns: the list of mappings as the kernel prints it, compared as text.
//! Invariants: allocates only when the list becomes longer than ever before; parses nothing.
//! Does not: notice mappings that were replaced by equal ones; trackers do, because the new ones are not watched.

use std::fs::File;
use std::os::unix::fs::FileExt;

use model::Pid;
use sys::{Error, Result};

/// Bytes of the list there is room for from the start: some 600 areas.
const ROOM: usize = 64 * 1024;

/// The list of one process's areas, held open.
#[derive(Debug)]
pub struct Layout {
    pid: Pid,
    file: File,
    before: Vec<u8>,
    now: Vec<u8>,
}

impl Layout {
    /// Opens the list of a process; the first look at it says that it has changed.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/maps");
        let file = File::open(&path).map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file, before: Vec::with_capacity(ROOM), now: Vec::with_capacity(ROOM) })
    }

    /// Whether the list differs from what it was at the last look.
    pub fn changed(&mut self) -> Result<bool> {
        self.read()?;
        std::mem::swap(&mut self.before, &mut self.now);
        Ok(self.before != self.now)
    }

    /// The list as it was at the last look.
    #[must_use]
    pub fn listed(&self) -> &[u8] {
        &self.before
    }

    fn read(&mut self) -> Result<()> {
        let mut done = 0;
        loop {
            // Bytes behind `done` are room; the kernel fills a page at most in one read.
            if self.now.len() < done + 4096 {
                let room = self.now.capacity().max(done + 4096);
                self.now.resize(room, 0);
            }
            let read = self.file.read_at(&mut self.now[done..], done as u64);
            match read.map_err(|error| Error::process("list the areas", self.pid, error))? {
                0 => break,
                count => done += count,
            }
        }
        self.now.truncate(done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use model::PageCount;
    use sys::scratch::Scratch;

    use super::*;

    #[test]
    fn a_new_mapping_is_a_change_and_then_no_longer() {
        // A child of our own: other tests map memory in this process all the time.
        let child = std::process::Command::new("sleep").arg("20").spawn();
        let mut child = child.expect("sleep is on every system");
        let mut layout = Layout::open(Pid(child.id() as i32)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(layout.changed().unwrap());
        assert!(!layout.changed().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut own = Layout::open(Pid(std::process::id() as i32)).unwrap();
        let _ = own.changed();
        let scratch = Scratch::new(PageCount(4)).unwrap();
        assert!(own.changed().unwrap());
        drop(scratch);
    }
}
