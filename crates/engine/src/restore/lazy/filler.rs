//! Fills the memory of processes that already run. A thread that accesses a missing page waits until this module
//! has filled the page.
//!
//! Owns: the thread that serves page faults, and the use of pages that background threads have read.
//! Invariants: messages of userfaultfd(2) are read while no thread fills. Thus no thread fills pages that were just
//! discarded, moved or unmapped. Before a forked child runs, its address space is recorded. At this time, the fd
//! holder ([`tracee::FdHolder`]) already holds the userfaultfd of the child. The checksum of each page is verified
//! before a process gets the page.
//! Does not: end processes.
//!
//! While a process is changing its memory, an attempt to fill its pages fails. The next attempt determines again
//! which address spaces need the pages. A fork counts as a change until its message is read. So an attempt for the
//! parent fails until the child is recorded, and the next attempt fills the page in both processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use image::{Extent, Source, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Tid};
use store::{ImageReader, LoadedRun};
use sys::scheduling::{self, Attributes};
use sys::socket::{self, Message};
use sys::userfaultfd::{self, Event, Messages};
use sys::{Errno, Error};

use super::spaces::{Filled, LiveSpace};
use crate::error::Result;

/// The size of the aligned block around a requested page. The block is filled first, before the other pages of the
/// same extent.
const AROUND_BYTES: ByteCount = ByteCount(64 << 10);
/// The maximum number of bytes that a background thread copies in one call. If a thread waits for a page, this copy
/// can delay the thread by about 50 µs.
const CHUNK_BYTES: ByteCount = ByteCount(256 << 10);
/// The wait before the next attempt, while a process is changing its memory.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// The scheduling policy SCHED_FIFO.
const FIFO: u32 = 1;
/// The tid that stands for the calling thread.
const CALLING: Tid = Tid(0);

/// The address spaces that are being filled.
pub(super) struct Filler<'a> {
    reader: &'a ImageReader,
    spaces: RwLock<Vec<LiveSpace>>,
    /// The socket to the fd holder.
    keep: OwnedFd,
    is_over: AtomicBool,
}

/// A page fault: the index of the address space in `spaces`, and the address of the page.
type Fault = (usize, Address);

impl<'a> Filler<'a> {
    /// Creates a filler without address spaces. `keep` is the socket to the fd holder.
    pub(super) fn new(reader: &'a ImageReader, keep: OwnedFd) -> Self {
        Self { reader, spaces: RwLock::default(), keep, is_over: AtomicBool::new(false) }
    }

    /// Adds an address space. When this function returns, the fd holder holds a duplicate of the userfaultfd.
    pub(super) fn add(&self, space: LiveSpace) -> Result<()> {
        self.keep(&space)?;
        self.write().push(space);
        Ok(())
    }

    /// Waits until all messages that are being read have taken effect, in particular messages about forks.
    pub(super) fn catch_up(&self) {
        drop(self.write());
    }

    /// Closes the userfaultfds of this process. Must be called when no thread waits for a page and no thread serves
    /// faults.
    pub(super) fn end(&self) {
        self.write().clear();
    }

    /// Makes the background threads fail. Pages that are still missing stay missing.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Serves page faults, and follows the memory changes of the processes. Returns when the write end of the pipe
    /// `ending` is closed.
    ///
    /// # Errors
    ///
    /// The error for the first page that could not be read or filled. Also the error of sending the userfaultfd of
    /// a child to the fd holder. After an error, threads that wait for a page continue to wait.
    pub(super) fn serve(&self, ending: BorrowedFd<'_>) -> Result<()> {
        let (mut messages, mut faults, mut buffer) = (Messages::default(), Vec::new(), Vec::new());
        // A thread that waits for a page also waits until this thread gets a processor. Therefore this thread gets
        // a higher priority. Without the permission for this, faults are served more slowly. The background threads
        // keep their normal priority, because a raised priority starved the program for 0.4 s (EEVDF, Linux 6.18).
        let urgent = Attributes { policy: FIFO, priority: 1, ..Attributes::default() };
        let _ = scheduling::set_attributes(CALLING, &urgent);
        loop {
            let descriptors: Vec<Arc<OwnedFd>> =
                self.read().iter().map(|space| Arc::clone(&space.descriptor)).collect();
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(|one| one.as_fd()).collect();
            let timeout = (!faults.is_empty()).then_some(POLL_INTERVAL);
            if !userfaultfd::wait_any(&descriptors, ending, timeout)? {
                return Ok(());
            }
            self.listen(&mut messages, &mut faults)?;
            for fault in std::mem::take(&mut faults) {
                if self.answer(fault, &mut buffer)? == Filled::Again {
                    faults.push(fault);
                }
            }
        }
    }

    /// Reads all messages while no thread fills, and applies the messages.
    fn listen(&self, messages: &mut Messages, faults: &mut Vec<Fault>) -> Result<()> {
        let mut spaces = self.write();
        let mut number = 0;
        // Children are appended to `spaces`, and can already have messages.
        while let Some(space) = spaces.get_mut(number) {
            userfaultfd::read(space.descriptor.as_fd(), messages)?;
            let mut children = Vec::new();
            let mut silent = true;
            for event in messages.take() {
                silent = false;
                match event {
                    Event::Fault(address) => faults.push((number, address.page_floor())),
                    Event::Fork(descriptor) => children.push(space.child(descriptor)),
                    Event::Remap { from, to } => space.moved(from, to),
                    Event::Remove(range) => space.removed(range),
                    Event::Unmap(range) => space.unmapped(range),
                }
            }
            for child in children {
                self.keep(&child)?;
                spaces.push(child);
            }
            if silent {
                number += 1;
            }
        }
        Ok(())
    }

    fn answer(&self, (number, page): Fault, buffer: &mut Vec<u8>) -> Result<Filled> {
        let (image, origin) = match self.read().get(number) {
            None => return Ok(Filled::Done),
            Some(space) => (space.image, space.origin(page)),
        };
        let index = self.reader.index();
        let found = origin.and_then(|origin| Some((origin, index.find(image, origin)?)));
        let Some((origin, extent)) = found.filter(|(_, extent)| extent.source != Source::Zero) else {
            return Ok(self.with(number, |space| space.clear(page))?);
        };
        buffer.resize(extent.pages.bytes().get() as usize, 0);
        self.reader.read_extent(extent, buffer)?;
        let around = around(origin, extent);
        let mut filled = self.with(number, |space| space.fill(around, part(extent, around, buffer)))?;
        if filled == Filled::Done {
            filled = self.with(number, |space| {
                space.wake(page);
                space.fill(extent.range(), buffer)
            })?;
        }
        Ok(filled)
    }

    fn with(
        &self,
        number: usize,
        step: impl FnOnce(&LiveSpace) -> std::result::Result<Filled, Error>,
    ) -> std::result::Result<Filled, Error> {
        self.read().get(number).map_or(Ok(Filled::Done), step)
    }

    /// Fills pages that background threads have read, in each address space that needs these pages.
    pub(super) fn fill(&self, run: &LoadedRun<'_>) -> Result<()> {
        for (extent, bytes) in run.iter() {
            for range in extent.range().pieces(CHUNK_BYTES) {
                self.fill_everywhere(extent.space, range, part(extent, range, bytes))?;
            }
        }
        Ok(())
    }

    fn fill_everywhere(&self, image: SpaceId, range: AddressRange, bytes: &[u8]) -> Result<()> {
        loop {
            if self.is_over.load(Ordering::SeqCst) {
                return Err(Error::new("fill memory after the lazy restore was aborted", Errno::ESRCH).into());
            }
            let mut again = false;
            for space in self.read().iter().filter(|space| space.image == image) {
                again |= space.fill(range, bytes)? == Filled::Again;
            }
            if !again {
                return Ok(());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends a duplicate of the userfaultfd to the fd holder. The message stays in the socket, and keeps the
    /// duplicate open.
    fn keep(&self, space: &LiveSpace) -> Result<()> {
        let message = Message { bytes: &[0], rights: &[space.descriptor.as_fd()], ..Message::default() };
        socket::send(self.keep.as_fd(), &message)?;
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<LiveSpace>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<LiveSpace>> {
        self.spaces.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the aligned block around a page, clipped to the extent that is read with the page.
fn around(page: Address, extent: &Extent) -> AddressRange {
    let all = extent.range();
    let start = Address(page.get() / AROUND_BYTES.get() * AROUND_BYTES.get());
    let end = start + AROUND_BYTES;
    debug_assert!(AROUND_BYTES.get().is_multiple_of(PAGE_BYTES), "whole pages");
    AddressRange::new(start.max(all.start), end.min(all.end))
}

fn part<'b>(extent: &Extent, range: AddressRange, bytes: &'b [u8]) -> &'b [u8] {
    let from = (range.start - extent.start).get() as usize;
    &bytes[from..from + range.len().get() as usize]
}
