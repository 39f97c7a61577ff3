//! Finds open file descriptions without a descriptor in the subject. Such a description is in flight in a socket, or
//! is a connection that waits to be accepted.
//!
//! Owns: finding these descriptions, also in sockets that are themselves in flight in a socket.
//! Invariants: each description is listed once. A description found here is in no process's descriptor table. Its
//! recorded holder is the holder of the socket through which it was found.
//! Does not: read the queue of a socket; [`super::FdKind::hidden`] does.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use model::{DescriptionId, Fd, Pid};
use sys::Error;
use tracee::procfs;

use super::description::{Description, Known};
use super::identify::identify;
use super::kind_of;
use crate::error::Result;

/// Maximum number of descriptions that are inspected. Sockets can be in flight in each other without end.
const HIDDEN_MAX: usize = 65_536;

/// Adds descriptions that are reachable only through the listed descriptions. All listed descriptions have
/// duplicates. With `takes`, the subject will be killed, and connections in accept queues are accepted.
pub fn discover(descriptions: &mut Vec<Description>, takes: bool) -> Result<()> {
    let mut next = 0;
    while next < descriptions.len() && descriptions.len() < HIDDEN_MAX {
        let found = match kind_of(&descriptions[next]) {
            Some(kind) => kind.hidden(&descriptions[next], takes)?,
            None => Vec::new(),
        };
        let (pid, fd) = (descriptions[next].pid, descriptions[next].fd);
        for duplicate in found {
            if identify(descriptions, duplicate.as_fd())?.is_none() {
                let id = DescriptionId(descriptions.len() as u32);
                descriptions.push(describe(id, pid, fd, duplicate)?);
            }
        }
        next += 1;
    }
    Ok(())
}

fn describe(id: DescriptionId, pid: Pid, fd: Fd, duplicate: OwnedFd) -> Result<Description> {
    let info = procfs::descriptor_info(ourselves(), Fd(duplicate.as_raw_fd()))?;
    let stat = rustix::fs::fstat(&duplicate).map_err(|errno| Error::new("stat a descriptor", errno))?;
    Ok(Description::new(Arc::new(Known::new(id, (pid, fd), info, stat)), duplicate))
}

fn ourselves() -> Pid {
    Pid(std::process::id() as i32)
}
