//! Fills memory with UFFDIO_COPY, which creates each page with its content. With an ordinary write, the kernel
//! would first clear the page.
//!
//! Owns: the userfaultfds for UFFDIO_COPY, from the layout of a tree until the memory of the tree is filled.
//! Invariants: no other thread writes to missing pages of registered memory. No memory stays registered at the end. The userfaultfds
//! serve only page faults in user mode (UFFD_USER_MODE_ONLY), and the program does not run yet. Any other write to
//! a missing page fails, and does not wait.
//! Does not: choose mappings, or read pages.
//!
//! A wait for a page in process_vm_writev(2) cannot be interrupted, even by SIGKILL (Linux 6.18).

use std::os::fd::{AsFd, OwnedFd};

use image::{Extent, PageIndex};
use model::{Address, AddressRange, ByteCount, Pid};
use resource::memory::AreaRecord;
use sys::features::{self, Feature};
use sys::{Errno, Error, huge_pages, userfaultfd};
use tracee::RemoteError;

use super::built::Built;
use super::lazy;
use super::plan::{Plan, PlannedProcess};
use crate::error::Result;

/// The memory that is registered for UFFDIO_COPY.
#[derive(Default)]
pub(super) struct FreshMemory {
    spaces: Vec<Space>,
}

struct Space {
    pid: Pid,
    descriptor: OwnedFd,
    /// The registered areas (mappings), in address order.
    ranges: Vec<AddressRange>,
}

impl FreshMemory {
    /// Registers the areas of processes under construction that the image fills to a large part. Registers nothing
    /// if the kernel lacks userfaultfd, or if the first write to memory would create a huge page.
    pub(super) fn prepare(plan: &Plan, index: &PageIndex, built: &mut Built) -> Result<Self> {
        let mut fresh = Self::default();
        if !is_possible() {
            return Ok(fresh);
        }
        for (pid, _, ranges) in lazy::choose(plan, index) {
            if !fresh.register(pid, ranges, built)? {
                break;
            }
        }
        Ok(fresh)
    }

    /// Registers those of the areas of one process that `extents` fill to a large part.
    pub(super) fn of(
        process: &PlannedProcess,
        areas: &[AddressRange],
        extents: &[Extent],
        built: &mut Built,
    ) -> Result<Self> {
        let mut fresh = Self::default();
        if !is_possible() {
            return Ok(fresh);
        }
        let own = process.areas.iter().filter(|area| lazy::may_wait(process, area)).map(AreaRecord::range);
        let chosen = lazy::choose_among(own.filter(|area| areas.binary_search(area).is_ok()), extents);
        if !chosen.is_empty() {
            fresh.register(process.pid, chosen, built)?;
        }
        Ok(fresh)
    }

    /// Registers areas of a process. Returns false if the kernel does not permit userfaultfd.
    fn register(&mut self, pid: Pid, ranges: Vec<AddressRange>, built: &mut Built) -> Result<bool> {
        let descriptor = match built.get(pid)?.userfaultfd(userfaultfd::USER_MODE_ONLY) {
            Ok(descriptor) => descriptor,
            // Without userfaultfd, the restore only takes longer.
            Err(RemoteError::Refused { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        userfaultfd::begin_for_filling(descriptor.as_fd())?;
        for range in &ranges {
            userfaultfd::register_for_missing(descriptor.as_fd(), *range)?;
        }
        self.spaces.push(Space { pid, descriptor, ranges });
        Ok(true)
    }

    /// Fills memory inside one area. Returns false if the area is not registered; the caller must then write the
    /// bytes. Fails if a page exists already, because this restore has not created the page.
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

    pub(super) fn end(self) -> Result<()> {
        for space in &self.spaces {
            for range in &space.ranges {
                userfaultfd::unregister(space.descriptor.as_fd(), *range)?;
            }
        }
        Ok(())
    }
}

/// Reports whether the kernel provides userfaultfd, and a first write to memory creates small pages.
fn is_possible() -> bool {
    features::enabled(Feature::UserfaultfdMissing) && !huge_pages::are_always_enabled()
}
