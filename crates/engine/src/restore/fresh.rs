//! Memory whose pages are created with their content, instead of being cleared and then written.
//!
//! Owns: the userfaultfds for it, from the layout of a tree until its memory is filled.
//! Invariants: no other thread writes to registered memory; nothing remains registered. The descriptors serve faults of
//! the program's own code only, which does not run yet: another write fails, and does not wait.
//! Does not: choose mappings, or read pages.
//!
//! A wait for a page in process_vm_writev(2) cannot be interrupted, not even by SIGKILL (Linux 6.18).

use std::os::fd::{AsFd, OwnedFd};

use image::PageIndex;
use model::{Address, AddressRange, ByteCount, Pid};
use sys::features::{self, Feature};
use sys::{Errno, Error, huge_pages, userfaultfd};
use tracee::RemoteError;

use super::built::Built;
use super::lazy;
use super::plan::Plan;
use crate::error::Result;

/// What is filled that way.
#[derive(Default)]
pub(super) struct FreshMemory {
    spaces: Vec<Space>,
}

struct Space {
    pid: Pid,
    descriptor: OwnedFd,
    /// Areas, rising.
    ranges: Vec<AddressRange>,
}

impl FreshMemory {
    /// Registers what an image fills to a large part, in processes under construction. Nothing where the kernel has no
    /// userfaultfd, or would make huge pages if memory were written to.
    pub(super) fn prepare(plan: &Plan, index: &PageIndex, built: &mut Built) -> Result<Self> {
        let mut fresh = Self::default();
        if !features::enabled(Feature::UserfaultfdMissing) || huge_pages::are_the_rule() {
            return Ok(fresh);
        }
        for (pid, _, ranges) in lazy::choose(plan, index) {
            let descriptor = match built.get(pid)?.userfaultfd(userfaultfd::USER_MODE_ONLY) {
                Ok(descriptor) => descriptor,
                // What it would save is time alone.
                Err(RemoteError::Refused { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            userfaultfd::begin_for_filling(descriptor.as_fd())?;
            for range in &ranges {
                userfaultfd::register_for_missing(descriptor.as_fd(), *range)?;
            }
            fresh.spaces.push(Space { pid, descriptor, ranges });
        }
        Ok(fresh)
    }

    /// Fills memory of one area; false if it is to be written as all else is. An error if a page is there already: it is
    /// not ours.
    pub(super) fn fill(&self, pid: Pid, at: Address, bytes: &[u8]) -> std::result::Result<bool, Error> {
        let Some(space) = self.spaces.iter().find(|space| space.pid == pid) else { return Ok(false) };
        let next = space.ranges.partition_point(|range| range.end <= at);
        if !space.ranges.get(next).is_some_and(|range| range.contains(at)) {
            return Ok(false);
        }
        let mut done = 0;
        while done < bytes.len() {
            let to = at + ByteCount(done as u64);
            let (copied, outcome) = userfaultfd::copy(space.descriptor.as_fd(), to, &bytes[done..]);
            done += copied.get() as usize;
            match outcome {
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => {
                    let left = ByteCount((bytes.len() - done) as u64);
                    return Err(Error::memory("fill", pid, at + ByteCount(done as u64), left, errno));
                }
            }
        }
        Ok(true)
    }

    /// Makes the areas as any others.
    pub(super) fn end(self) -> Result<()> {
        for space in &self.spaces {
            for range in &space.ranges {
                userfaultfd::unregister(space.descriptor.as_fd(), *range)?;
            }
        }
        Ok(())
    }
}
