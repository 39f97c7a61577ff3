//! Filling the memory of processes that run already.
//!
//! Owns: the thread that answers faults, and how the background threads use the pages that they have read.
//! Invariants: kernel messages are read while no thread fills, so that no thread fills pages that were just discarded,
//! moved or unmapped; a forked child is known, and kept, before it runs; bytes are checked before they are given.
//! Does not: end anything.
//!
//! After a page has been asked for and not been filled because the process was changing its memory, all that is to be
//! filled is found anew. A child that was forked without a page is therefore filled by the thread that fills its
//! parent, which cannot fill the parent either before the fork is known.

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

/// Pages that are filled around an awaited page, before the rest that had to be read with it.
const AROUND_BYTES: ByteCount = ByteCount(64 << 10);
/// What is filled in one go in the background: who waits for a page waits for that too, some 50 µs.
const CHUNK_BYTES: ByteCount = ByteCount(256 << 10);
/// How long to wait for a process that is changing its memory.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// SCHED_FIFO.
const FIFO: u32 = 1;
/// The calling thread.
const CALLING: Tid = Tid(0);

/// All that is being filled.
pub(super) struct Filler<'a> {
    reader: &'a ImageReader,
    spaces: RwLock<Vec<LiveSpace>>,
    /// Leads to the fd holder.
    keep: OwnedFd,
    is_over: AtomicBool,
}

/// A thread that waits for a page: the number of its space, and the page.
type Fault = (usize, Address);

impl<'a> Filler<'a> {
    /// Fills these, of which the fd holder holds duplicates.
    pub(super) fn new(reader: &'a ImageReader, keep: OwnedFd) -> Self {
        Self { reader, spaces: RwLock::default(), keep, is_over: AtomicBool::new(false) }
    }

    /// Fills one more; the fd holder holds a duplicate when this returns.
    pub(super) fn add(&self, space: LiveSpace) -> Result<()> {
        self.keep(&space)?;
        self.write().push(space);
        Ok(())
    }

    /// Returns when all that was being read has taken effect, forked children above all.
    pub(super) fn catch_up(&self) {
        drop(self.write());
    }

    /// Ends the watch, as far as this process holds it. No thread waits for a page, and none serves.
    pub(super) fn end(&self) {
        self.write().clear();
    }

    /// Has those who fill in the background fail; what is missing stays so.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Answers who waits for pages, and follows what the processes do with their memory, until the other end of the
    /// pipe `ending` is closed.
    ///
    /// # Errors
    ///
    /// The first page that could not be read or filled, or child that could not be kept. Who waits goes on waiting.
    pub(super) fn serve(&self, ending: BorrowedFd<'_>) -> Result<()> {
        let (mut messages, mut faults, mut buffer) = (Messages::default(), Vec::new(), Vec::new());
        // A thread that waits for a page waits for a processor for this thread, too. Without the right to do so, only
        // time is lost. Raising the background threads as well, and back, starved the program (0.4 s, EEVDF, Linux 6.18).
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

    /// Reads all messages while no thread fills.
    fn listen(&self, messages: &mut Messages, faults: &mut Vec<Fault>) -> Result<()> {
        let mut spaces = self.write();
        let mut number = 0;
        // Children are appended, and may have something to say already.
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

    /// Gives pages that were read in the background to the threads that wait for them.
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
                return Err(Error::new("fill memory that nobody wants any more", Errno::ESRCH).into());
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

    /// Has the fd holder hold a duplicate too: a message that waits in its socket.
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

/// The surroundings of a page, within what is read with it.
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
