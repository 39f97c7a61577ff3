//! Descriptions that no descriptor of the subject refers to: in flight in a socket, waiting to be accepted.
//!
//! Owns: finding them, as deep as they are nested.
//! Invariants: each description is listed once; one found here carries the holder of the description through
//! which it was found, and stands in no process's table.
//! Does not: know where a kind hides them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use model::{DescriptionId, Fd, Pid};
use sys::Error;
use tracee::procfs;

use super::description::{Description, Known};
use super::identify::identify;
use super::kind_of;
use crate::error::Result;

/// The most descriptions that are followed; sockets that carry each other could go on for ever.
const HIDDEN_MAX: usize = 65_536;

/// Adds what is reached only through the descriptions listed so far, of all of which there are duplicates.
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
    let stat = rustix::fs::fstat(&duplicate).map_err(|errno| Error::new("look at a descriptor", errno))?;
    Ok(Description::new(Arc::new(Known::new(id, (pid, fd), info, stat)), duplicate))
}

fn ourselves() -> Pid {
    Pid(std::process::id() as i32)
}
