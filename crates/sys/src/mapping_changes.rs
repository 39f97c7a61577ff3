//! Reports whether a process may have changed its mappings, or the flags of mappings.
//!
//! The kernel takes a lock on the address space for each change of a mapping: mmap(2), munmap(2), mprotect(2), and
//! those requests of madvise(2) and mlock(2) that change a flag. It counts how often the lock was taken, so that page
//! faults notice a change. If the count has not changed, the mappings have not changed either.
//!
//! Owns: the reader of the count.
//! Invariants: a count is only compared, not interpreted. The opposite conclusion is invalid: the kernel also takes the
//! lock for work of its own, for example to build huge pages.
//! Does not: find out what has changed.
//!
//! Source: `mm_lock_seq` in include/linux/mm_types.h of Linux
//! Since: as in the module `task_reader`, with CONFIG_PER_VMA_LOCK
//! Probe: `features::REGISTRY` entry "task-reader"
//! Fallback: the caller supposes a change

use model::{Pid, Tid};

use crate::error::Result;
use crate::task_reader::{Field, TaskReader};

/// Reads the counts of processes. Programs for this are loaded at the first use.
#[derive(Debug, Default)]
pub struct MappingChanges(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    NotTried,
    Unsupported,
    Ready(TaskReader),
}

impl MappingChanges {
    /// Returns a number that changes with each change of the mappings of a process, and `None` if this kernel does not
    /// show such a number, or the process has ended. The first call takes some milliseconds.
    pub fn count(&mut self, pid: Pid) -> Option<u64> {
        if matches!(self.0, State::NotTried) {
            self.0 = open().map_or(State::Unsupported, State::Ready);
        }
        let State::Ready(reader) = &mut self.0 else { return None };
        reader.read(Tid(pid.get())).ok()?.first_chunk().copied().map(u64::from_ne_bytes)
    }
}

fn open() -> Result<TaskReader> {
    TaskReader::new(&[Field("mm->mm_lock_seq")])
}

#[cfg(test)]
mod tests {
    use model::PageCount;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_change_of_a_flag_changes_the_count() {
        if let Err(error) = open() {
            println!("unsupported: counting changes of mappings: {error}");
            return;
        }
        // A process without other threads, which would change their mappings meanwhile.
        let mut child = std::process::Command::new("python3")
            .args(["-c", CHILD])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut orders, mut answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut step = |orders: &mut std::process::ChildStdin| {
            std::io::Write::write_all(orders, b"x").unwrap();
            std::io::Read::read_exact(&mut answers, &mut [0]).unwrap();
        };
        step(&mut orders);
        let mut changes = MappingChanges::default();
        let pid = Pid(child.id() as i32);
        let counts: Vec<_> = (0..4)
            .map(|_| {
                step(&mut orders);
                changes.count(pid).unwrap()
            })
            .collect();
        assert_ne!(counts[0], counts[1], "mlock of a whole mapping");
        assert_ne!(counts[1], counts[2], "madvise of a whole mapping");
        assert_eq!(counts[2], counts[3], "writing to memory");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(changes.count(pid), None, "the process has ended");
    }

    /// After each byte of input, does one thing and answers with one byte.
    const CHILD: &str = "
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
steps = [
    lambda: None,
    lambda: None,
    lambda: libc.mlock(ctypes.c_void_p(address), 1 << 16),
    lambda: libc.madvise(ctypes.c_void_p(address), 1 << 16, 10),
    lambda: ctypes.memset(address, 1, 1 << 16),
]
for step in steps:
    os.read(0, 1)
    step()
    os.write(1, b'x')
os.read(0, 1)
";

    #[test]
    fn mapping_memory_here_changes_the_count() {
        let own = Pid(std::process::id() as i32);
        let mut changes = MappingChanges::default();
        let Some(before) = changes.count(own) else {
            println!("unsupported: counting changes of mappings");
            return;
        };
        let _memory = Scratch::new(PageCount(4)).unwrap();
        assert_ne!(changes.count(own), Some(before));
    }
}
