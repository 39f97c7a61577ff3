//! The io_uring of a file that is written with O_DIRECT.
//!
//! Owns: the ring, the jobs whose writes are *in flight* (not yet complete), and a ring that waits for the next file.
//! Invariants: a buffer whose write is in flight is neither changed nor unmapped. A ring that is handed on has no write in
//! flight.
//! Does not: continue a short write; `direct_io` does.
//!
//! Man page: io_uring(7)
//! Since: Linux 5.6 for IORING_OP_WRITE
//! Probe: `direct_io::probe_ring`; `features::REGISTRY` entry "io-uring"
//! Fallback: `direct_io` writes with pwrite(2)

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::{IoUring, opcode, types};

use crate::error::Errno;
use crate::page_buffer::PageBuffer;

/// Maximum number of writes in flight. A ring with 64 entries takes two pages.
const IN_FLIGHT_MAX: usize = 64;

/// Maximum number of retries of one write after interruptions. Signals cause far fewer interruptions.
const RETRIES_MAX: u32 = 1000;

/// The io_urings of files that are written one after the other. A file that is closed leaves its ring to the
/// next one: creation and removal took a twentieth of the time of a log with small files. Clones share the rings.
#[derive(Clone, Debug)]
pub struct Rings {
    in_flight: NonZeroUsize,
    unused: Arc<Mutex<Option<Ring>>>,
}

impl Rings {
    /// Returns rings for at most `in_flight` writes in flight each.
    #[must_use]
    pub fn new(in_flight: NonZeroUsize) -> Self {
        Self { in_flight, unused: Arc::default() }
    }

    pub(crate) fn take_or_make(&self) -> std::io::Result<Ring> {
        let unused = self.unused().take();
        unused.map_or_else(|| Ring::new(self.in_flight.get().min(IN_FLIGHT_MAX)), Ok)
    }

    /// Keeps a ring without writes in flight. One is enough: a file is closed about when another is created.
    pub(crate) fn keep(&self, ring: Ring) {
        *self.unused() = Some(ring);
    }

    pub(crate) fn unused(&self) -> MutexGuard<'_, Option<Ring>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write of `buffer[begin..length]` at `offset` of the file. The bytes before the index `written` are already
/// written.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) buffer: PageBuffer,
    begin: usize,
    pub(crate) length: usize,
    offset: u64,
    pub(crate) written: usize,
    retries: u32,
}

impl Job {
    /// Returns a write of the bytes in `range` of the buffer at `offset` of the file.
    pub(crate) const fn new(buffer: PageBuffer, range: Range<usize>, offset: u64) -> Self {
        Self { buffer, begin: range.start, length: range.end, offset, written: range.start, retries: 0 }
    }

    /// Returns the file offset of the next byte.
    pub(crate) const fn place(&self) -> u64 {
        self.offset + (self.written - self.begin) as u64
    }

    /// Reports whether to retry after this error: the write was interrupted, and the number of retries is below the
    /// limit. The kernel cancels a queued write (ECANCELED) when the submitting thread exits.
    pub(crate) fn may_retry(&mut self, errno: Errno) -> bool {
        self.retries += 1;
        matches!(errno, Errno(libc::EINTR | libc::EAGAIN | libc::ECANCELED)) && self.retries <= RETRIES_MAX
    }
}

/// The io_uring, and the jobs whose buffers the kernel may read. The user data of a completion is the slot index of
/// its job.
pub(crate) struct Ring {
    ring: IoUring,
    slots: Box<[Option<Job>]>,
    in_flight: usize,
}

impl Ring {
    fn new(slots: usize) -> std::io::Result<Self> {
        let ring = IoUring::new(slots.next_power_of_two() as u32)?;
        Ok(Self { ring, slots: std::iter::repeat_with(|| None).take(slots).collect(), in_flight: 0 })
    }

    /// Reports whether no write is in flight.
    pub(crate) const fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.in_flight == self.slots.len()
    }

    /// Submits a write of the remaining bytes of a job. The caller has checked that a slot is free.
    pub(crate) fn start(&mut self, file: &File, job: Job) -> std::result::Result<(), Errno> {
        let slot = self.slots.iter().position(Option::is_none).ok_or(Errno(libc::EBUSY))?;
        let rest = &job.buffer[job.written..job.length];
        let length = u32::try_from(rest.len()).map_err(|_| Errno::EINVAL)?;
        let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), rest.as_ptr(), length)
            .offset(job.place())
            .build()
            .user_data(slot as u64);
        // SAFETY: the entry points into `job.buffer`. The buffer is a separate mapping that does not move when the
        // job moves. The job stays in its slot until its completion is received. If this ring is dropped before,
        // `drop` waits for all completions or leaks the buffers. In `DirectWriter`, the file outlives the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
        self.slots[slot] = Some(job);
        self.in_flight += 1;
        self.enter(0)
    }

    /// Waits until a completion is available.
    pub(crate) fn wait(&mut self) -> std::result::Result<(), Errno> {
        self.enter(1)
    }

    fn enter(&mut self, wanted: usize) -> std::result::Result<(), Errno> {
        loop {
            match self.ring.submit_and_wait(wanted) {
                Ok(_) => return Ok(()),
                Err(error) => match Errno::from(error) {
                    Errno(libc::EINTR) => {}
                    errno => return Err(errno),
                },
            }
        }
    }

    /// Returns a job that the kernel has completed, with the number of written bytes or the error.
    pub(crate) fn next_completion(&mut self) -> Option<(Job, std::result::Result<usize, Errno>)> {
        let entry = self.ring.completion().next()?;
        let job = self.slots.get_mut(entry.user_data() as usize)?.take()?;
        self.in_flight -= 1;
        let result = usize::try_from(entry.result()).map_err(|_| Errno(-entry.result()));
        Some((job, result))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.wait().is_err() {
                // The kernel may still read these buffers, so the buffers are never unmapped.
                self.slots.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
                return;
            }
            while self.next_completion().is_some() {}
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}
