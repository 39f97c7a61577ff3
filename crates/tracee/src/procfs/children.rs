//! Lists the children of processes.
//!
//! Owns: reading and parsing `/proc/PID/task/TID/children`.
//! Does not: stop a process, so a list can be out of date at once.

use model::{Pid, Tid};
use sys::{Errno, Result};

use super::files::{path_of_thread, read, threads};
use super::kept::KeptFiles;

/// The name of the file with the children of a thread.
const FILE: &str = "children";

/// Lists the children of a process, regardless of which thread created them.
pub fn children(pid: Pid) -> Result<Vec<Pid>> {
    children_of(&threads(pid)?, |tid| Ok(pids_in(&read(path_of_thread(pid, tid, FILE))?)))
}

/// Lists the children that these threads of a process created, or got from ended threads. Reads through the files that
/// are kept open.
pub fn children_through(files: &mut KeptFiles, pid: Pid, threads: &[Tid]) -> Result<Vec<Pid>> {
    children_of(threads, |tid| Ok(pids_in(files.read(pid, tid, FILE)?)))
}

fn children_of(threads: &[Tid], mut of_thread: impl FnMut(Tid) -> Result<Vec<Pid>>) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for tid in threads {
        match of_thread(*tid) {
            Ok(children) => found.extend(children),
            Err(error) if error.errno == Errno::ENOENT || error.errno == Errno::ESRCH => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Parses a list of children. The kernel writes only numbers.
fn pids_in(text: &[u8]) -> Vec<Pid> {
    let words = text.split(u8::is_ascii_whitespace).filter_map(|word| std::str::from_utf8(word).ok());
    words.filter_map(|word| word.parse().ok()).map(Pid).collect()
}
