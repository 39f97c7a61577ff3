//! Which processes and threads there are.
//!
//! Owns: the lists of them in `/proc`.
//! Does not: stop them; a list may be out of date once returned.

use model::{Pid, Tid};
use sys::{Errno, Result};

use super::files::{numbers, read_text};

/// All processes that this one may see.
pub fn processes() -> Result<Vec<Pid>> {
    Ok(numbers("/proc")?.into_iter().map(Pid).collect())
}

/// Threads of a process, leader first.
pub fn threads(pid: Pid) -> Result<Vec<Tid>> {
    let mut found = numbers(&format!("/proc/{pid}/task"))?.into_iter().map(Tid).collect::<Vec<_>>();
    found.sort_by_key(|tid| (tid.get() != pid.get(), tid.get()));
    Ok(found)
}

/// Children of a process, whichever of its threads made them.
pub fn children(pid: Pid) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for tid in threads(pid)? {
        let path = format!("/proc/{pid}/task/{tid}/children");
        match read_text(&path) {
            Ok(text) => found.extend(text.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid)),
            Err(error) if error.errno == Errno::ENOENT || error.errno == Errno::ESRCH => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
