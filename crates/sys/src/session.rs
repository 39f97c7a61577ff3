//! Reads the session and the process group of a process.
//!
//! Owns: getsid(2), getpgid(2).
//! Invariants: a result of 0 is valid: the leader is outside the pid namespace of this process. (`rustix::process`
//! treats 0 as impossible.)
//! Does not: distinguish two sessions whose leaders are both outside the namespace.
//!
//! Man page: getsid(2), getpgid(2), pid_namespaces(7)
//! Since: Linux 2.0
//! Probe: none needed; no kernel lacks these calls
//! Fallback: none

use model::Pid;

use crate::error::{Errno, Error, Result};

/// Returns the session id of a process.
pub fn of(pid: Pid) -> Result<Pid> {
    // SAFETY: getsid takes a number and touches no memory.
    let session = unsafe { libc::getsid(pid.get()) };
    answered("get the session", pid, session)
}

/// Returns the process group id of a process.
pub fn group_of(pid: Pid) -> Result<Pid> {
    // SAFETY: getpgid takes a number and touches no memory.
    let group = unsafe { libc::getpgid(pid.get()) };
    answered("get the process group", pid, group)
}

fn answered(operation: &'static str, pid: Pid, answer: i32) -> Result<Pid> {
    if answer < 0 { Err(Error::process(operation, pid, Errno::last())) } else { Ok(Pid(answer)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn both_are_what_the_kernel_prints() {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("read our own state");
        let (_, behind_name) = stat.rsplit_once(')').expect("a name in parentheses");
        let printed: Vec<i32> =
            behind_name.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        assert_eq!((of(own()), group_of(own())), (Ok(Pid(printed[2])), Ok(Pid(printed[1]))));
    }

    #[test]
    fn a_process_that_is_not_there_has_none() {
        assert_eq!(of(Pid(i32::MAX)).map_err(|error| error.errno), Err(Errno(libc::ESRCH)));
    }
}
