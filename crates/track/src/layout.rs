//! Detects changes of the mappings of a process.
//!
//! Owns: the text of `/proc/PID/maps`, compared with its previous version.
//! Invariants: memory is allocated only when the text is longer than ever before. The text is not parsed.
//! Does not: detect that a mapping was replaced by an equal one. The trackers detect this, because the new
//! mapping is not watched.

use std::fs::File;
use std::os::unix::fs::FileExt;

use model::Pid;
use sys::{Error, Result};

/// Initial capacity in bytes, enough for about 150 mappings.
const ROOM: usize = 16 << 10;

/// The open list of mappings of one process.
#[derive(Debug)]
pub struct Layout {
    pid: Pid,
    file: File,
    before: Listed,
    now: Listed,
}

/// A text in a buffer that is as long as the longest text so far, so that it is not cleared for each text.
#[derive(Debug)]
struct Listed {
    buffer: Vec<u8>,
    length: usize,
}

impl Listed {
    fn new() -> Self {
        Self { buffer: vec![0; ROOM], length: 0 }
    }

    fn text(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Layout {
    /// Opens the list of mappings of a process. The first call of [`Self::changed`] returns true.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/maps");
        let file = File::open(&path).map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file, before: Listed::new(), now: Listed::new() })
    }

    /// Reads the list of mappings, and reports whether it differs from the previous list.
    pub fn changed(&mut self) -> Result<bool> {
        self.read()?;
        std::mem::swap(&mut self.before, &mut self.now);
        Ok(self.before.text() != self.now.text())
    }

    /// Returns the list that the last call of [`Self::changed`] has read.
    #[must_use]
    pub fn listed(&self) -> &[u8] {
        self.before.text()
    }

    fn read(&mut self) -> Result<()> {
        let Listed { buffer, length } = &mut self.now;
        *length = 0;
        loop {
            // The bytes beyond `length` are free. One read returns at most a page.
            if buffer.len() < *length + 4096 {
                buffer.resize(2 * buffer.len(), 0);
            }
            let read = self.file.read_at(&mut buffer[*length..], *length as u64);
            match read.map_err(|error| Error::process("list the areas", self.pid, error))? {
                0 => return Ok(()),
                count => *length += count,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use model::PageCount;
    use sys::scratch::Scratch;

    use super::*;

    #[test]
    fn a_new_mapping_is_a_change_and_then_no_longer() {
        // The test uses a child process, because other tests change the mappings of this process at the same
        // time.
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
