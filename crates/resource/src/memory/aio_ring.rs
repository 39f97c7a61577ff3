//! The memory kind of the rings of kernel asynchronous I/O (io_setup(2)).
//!
//! The kernel maps a ring into the process that creates a context. The address of the ring is the id of the context.
//!
//! Owns: the length and the content of a ring, and creating a context whose ring is at the recorded address.
//! Invariants: a context with requests in flight prevents the checkpoint, because their completions would be lost. A
//! stopped program submits no request, so requests that wait for a disk complete in the pause, within a bounded wait. The
//! position in the ring is restored, so that a program that reads the ring without system calls continues.
//! Does not: save contexts whose ring is not mapped; the program cannot use them.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};
use prost::Message;
use sys::aio_contexts::{AioContext, AioContexts};
use sys::clock::Deadline;
use tracee::arch::numbers as nr;
use tracee::{ProcessMemory, Stub, procfs};

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::{ObjectKey, ObjectRecord};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::Opener;

const NAME: &str = "memory/aio_ring";
const WHAT: &str = "aio ring";
const PREFIX: &str = "/[aio]";
/// The fix that is proposed for programs with requests that wait for a long time.
const WITHOUT_AIO: &str = "retry in a moment, or configure the program without native aio (MariaDB: \
                           innodb_use_native_aio = 0; nginx: aio threads)";
/// Length of the head of a ring, and of an event, in bytes.
const HEAD_BYTES: usize = 32;
const EVENT_BYTES: usize = 32;
/// Maximum time in the pause for which requests that wait for a disk may complete.
const COMPLETION_WAIT_MAX: Duration = Duration::from_millis(5);
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum length of a ring in bytes. The kernel limits the number of requests of all contexts by fs.aio-max-nr.
const RING_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of requests that a restore submits with one call.
const BATCH: u32 = 32;
const REQUEST_BYTES: usize = 64;
const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;
const MFD_CLOEXEC: u64 = 1;

/// The memory kind of the rings of asynchronous I/O.
pub(super) struct AioRing;

/// The state of a ring in the image.
#[derive(Clone, PartialEq, Message)]
struct Ring {
    /// The process that maps the ring, and the address of the ring. Used only for the capture.
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(uint64, tag = "2")]
    address: u64,
    /// The whole content.
    #[prost(bytes = "vec", tag = "3")]
    bytes: Vec<u8>,
}

/// The head of a ring: `struct aio_ring` of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    /// Number of events that fit into the ring.
    events: u32,
    /// Index of the oldest completion that the program has not consumed.
    head: u32,
    /// Index of the next completion.
    tail: u32,
}

impl Head {
    fn of(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let found = Self { events: word(4)?, head: word(8)?, tail: word(12)? };
        (found.head.max(found.tail) < found.events).then_some(found)
    }

    /// Returns the number of completions that the program has not consumed.
    fn unread(self) -> u32 {
        (self.tail + self.events - self.head) % self.events
    }
}

impl MemoryKind for AioRing {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        of.mapping.name.starts_with(PREFIX)
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        Content::None
    }

    /// Requests that wait for a disk are no obstacle, because they complete in the pause.
    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        let reason = state(of.pid, of.mapping.range.start).reason(Moment::Running);
        reason.map(|(why, fix)| of.obstacle(WHAT, &why, fix)).into_iter().collect()
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let range = of.mapping.range;
        let ring = Ring { pid: of.pid.get(), address: range.start.get(), bytes: Vec::new() };
        Ok((ring.encode_to_vec(), range.len().get()))
    }

    /// Waits for requests that read from a disk into memory, or write memory to a disk.
    fn settle(&self, record: &ObjectRecord) -> Result<()> {
        let ring: Ring = crate::error::decode(NAME, &record.payload)?;
        let pid = Pid(ring.pid);
        let deadline = Deadline::after(COMPLETION_WAIT_MAX);
        loop {
            let found = state(pid, Address(ring.address));
            if !found.completes_soon() {
                // `inside` refuses other states.
                return Ok(());
            }
            if deadline.has_passed() {
                return found
                    .reason(Moment::Stopped)
                    .map_or(Ok(()), |(why, fix)| Err(refused(pid, why, fix)));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn inside(&self, record: &mut ObjectRecord) -> Result<()> {
        let mut ring: Ring = crate::error::decode(NAME, &record.payload)?;
        let pid = Pid(ring.pid);
        let mut found = state(pid, Address(ring.address));
        if matches!(found, State::Missing)
            && let Some(moved) = address_of(pid, record.inode)
        {
            ring.address = moved.get();
            found = state(pid, moved);
        }
        if let Some((why, fix)) = found.reason(Moment::Stopped) {
            return Err(refused(pid, why, fix));
        }
        let memory = ProcessMemory::open(pid)?;
        ring.bytes = memory.read_vec(Address(ring.address), ByteCount(record.length))?;
        record.payload = ring.encode_to_vec();
        Ok(())
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        let ring: Ring = crate::error::decode(NAME, &record.payload)?;
        let is_whole = ring.bytes.len() as u64 == record.length
            && record.length.is_multiple_of(PAGE_BYTES)
            && (1..=RING_BYTES_MAX).contains(&record.length);
        let events = (ring.bytes.len().saturating_sub(HEAD_BYTES) / EVENT_BYTES) as u32;
        match Head::of(&ring.bytes) {
            Some(head) if is_whole && head.events == events => Ok(()),
            _ => Err(ResourceError::malformed(NAME, "the ring is impossible")),
        }
    }

    /// Returns memory of the same length, which [`AioRing::replace`] replaces.
    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        sys::shared_memory::anonymous(ByteCount(record.length)).map_err(ResourceError::from)
    }

    fn is_made_by_process(&self) -> bool {
        true
    }

    fn replace(
        &self,
        record: &ObjectRecord,
        range: AddressRange,
        stub: &mut Stub,
        memory: &ProcessMemory,
    ) -> Result<()> {
        let ring: Ring = crate::error::decode(NAME, &record.payload)?;
        let wanted = Head::of(&ring.bytes).filter(|_| range.len() == ByteCount(record.length));
        let wanted = wanted.ok_or_else(|| {
            ResourceError::malformed(NAME, "the ring and its mapping have different lengths")
        })?;
        let made = make(record.length, wanted, stub, memory)?;
        let length = record.length;
        let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        stub.call(nr::MREMAP, [made.get(), length, length, flags, range.start.get(), 0])?;
        Filling { address: range.start, wanted, stub, memory }.fill()?;
        memory.write(range.start + ByteCount(HEAD_BYTES as u64), &ring.bytes[HEAD_BYTES..])?;
        Ok(())
    }
}

/// The state of the context of a ring.
#[derive(Debug)]
enum State {
    /// The context exists.
    Found(AioContext),
    /// The process has no context whose ring is at this address.
    Missing,
    /// The process has ended.
    Ended,
    /// The contexts could not be read.
    Unknown(sys::Error),
}

/// Whether the threads of the process are stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    Running,
    Stopped,
}

impl State {
    /// Reports whether requests are in flight that complete without an event.
    fn completes_soon(&self) -> bool {
        matches!(self, Self::Found(context) if context.in_flight > 0 && !context.waits_for_event)
    }

    /// Returns the reason why the ring cannot be saved, with the fix.
    fn reason(&self, moment: Moment) -> Option<(String, &'static str)> {
        match self {
            Self::Ended => None,
            Self::Missing => Some((
                "the process has inherited the ring, or has destroyed its context".to_owned(),
                "let the process unmap the ring",
            )),
            Self::Unknown(error) => Some((
                format!("requests in flight cannot be counted: {error}"),
                "run undying as root on Linux 6.13 or later, or start the program without native aio",
            )),
            Self::Found(context) if context.in_flight == 0 => None,
            Self::Found(_) if self.completes_soon() && moment == Moment::Running => None,
            Self::Found(context) => {
                let count = context.in_flight;
                Some((
                    format!("{count} requests are in flight, and their completions would be lost"),
                    WITHOUT_AIO,
                ))
            }
        }
    }
}

/// Reads the state of the context whose ring is at an address.
fn state(pid: Pid, address: Address) -> State {
    /// Reads contexts of all processes. The programs that it loads are loaded once.
    static CONTEXTS: Mutex<Option<AioContexts>> = Mutex::new(None);
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = contexts.take().map_or_else(AioContexts::new, Ok).and_then(|mut reader| {
        let found = reader.of_process(pid);
        *contexts = Some(reader);
        found
    });
    match found {
        Ok(found) => {
            found.into_iter().find(|context| context.address == address).map_or(State::Missing, State::Found)
        }
        Err(error) if error.errno == sys::Errno::ESRCH => State::Ended,
        Err(error) => State::Unknown(error),
    }
}

/// Returns the address at which a process maps the ring with an inode.
fn address_of(pid: Pid, inode: u64) -> Option<Address> {
    let is_it = |mapping: &&procfs::Mapping| {
        let key = ObjectKey::of(mapping);
        mapping.name.starts_with(PREFIX) && key.is_some_and(|key| key.file_inode() == inode)
    };
    procfs::mappings(pid).ok()?.iter().find(is_it).map(|mapping| mapping.range.start)
}

fn refused(pid: Pid, why: String, fix: &str) -> ResourceError {
    ResourceError::Unsupported { pid, what: WHAT.to_owned(), why, fix: fix.to_owned() }
}

/// Creates a context whose ring has the recorded length. Returns the address of its ring.
fn make(length: u64, wanted: Head, stub: &mut Stub, memory: &ProcessMemory) -> Result<Address> {
    stub.call_with(memory, nr::IO_SETUP, &0_u64.to_ne_bytes(), |at| {
        [u64::from(requests_for(length)), at.get(), 0, 0, 0, 0]
    })?;
    let mut id = [0; 8];
    memory.read(stub.data().start, &mut id)?;
    let address = Address(u64::from_ne_bytes(id));
    let mut head = [0; HEAD_BYTES];
    memory.read(address, &mut head)?;
    if Head::of(&head).is_some_and(|head| head.events == wanted.events) {
        return Ok(address);
    }
    Err(refused(
        stub.pid(),
        "the kernel creates a ring of another length, because this machine has more processors".to_owned(),
        "restore the image on a machine with as many processors",
    ))
}

/// Returns the smallest number of requests for which the kernel creates a ring of a length in bytes. The kernel doubles
/// the number, adds two, and rounds up to whole pages.
fn requests_for(length: u64) -> u32 {
    let shorter = length.saturating_sub(PAGE_BYTES).saturating_sub(HEAD_BYTES as u64);
    let events_of_shorter = shorter / EVENT_BYTES as u64;
    (events_of_shorter.saturating_sub(2) / 2 + 1) as u32
}

/// A new ring that gets the position of the recorded ring. Only completions change the position in the kernel, so
/// requests are submitted that complete at once.
struct Filling<'a> {
    address: Address,
    wanted: Head,
    stub: &'a mut Stub,
    memory: &'a ProcessMemory,
}

impl Filling<'_> {
    fn fill(mut self) -> Result<()> {
        if self.wanted.head == 0 && self.wanted.tail == 0 {
            return Ok(());
        }
        let name = |at: Address| [at.get(), MFD_CLOEXEC, 0, 0, 0, 0];
        let file = self.stub.call_with(self.memory, nr::MEMFD_CREATE, b"aio\0", name)?;
        let outcome = self.complete_all(file);
        self.stub.call(nr::CLOSE, [file, 0, 0, 0, 0, 0])?;
        outcome?;
        let mut head = [0; HEAD_BYTES];
        self.memory.read(self.address, &mut head)?;
        if Head::of(&head) == Some(self.wanted) {
            return Ok(());
        }
        Err(refused(
            self.stub.pid(),
            "the position in the ring could not be restored".to_owned(),
            "use another checkpoint",
        ))
    }

    fn complete_all(&mut self, file: u64) -> Result<()> {
        let mut done = 0;
        while done < self.wanted.head {
            done += self.complete((self.wanted.head - done).min(BATCH), file)?;
            // The program consumes the completions. The kernel uses their slots again.
            self.memory.write(self.address + ByteCount(8), &done.to_ne_bytes())?;
        }
        let mut left = self.wanted.unread();
        while left > 0 {
            left -= self.complete(left.min(BATCH), file)?;
        }
        Ok(())
    }

    /// Submits reads of an empty file, which complete at once. Returns the number of requests that the kernel accepted.
    fn complete(&mut self, count: u32, file: u64) -> Result<u32> {
        let request = self.stub.data().start;
        let mut bytes = vec![0; REQUEST_BYTES];
        bytes[20..24].copy_from_slice(&(file as u32).to_ne_bytes());
        // All pointers lead to the same request.
        (0..count).for_each(|_| bytes.extend(request.get().to_ne_bytes()));
        let pointers = request + ByteCount(REQUEST_BYTES as u64);
        let context = self.address.get();
        let submit = |_| [context, u64::from(count), pointers.get(), 0, 0, 0];
        Ok(self.stub.call_with(self.memory, nr::IO_SUBMIT, &bytes, submit)? as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_requests_gives_the_length_of_the_ring() {
        // As `aio_setup_ring` of the kernel computes it.
        let length =
            |requests: u64| (HEAD_BYTES as u64 + (requests * 2 + 2) * 32).next_multiple_of(PAGE_BYTES);
        for pages in 1..200 {
            let wanted = pages * PAGE_BYTES;
            let requests = u64::from(requests_for(wanted));
            assert_eq!(length(requests), wanted);
            assert!(requests == 1 || length(requests - 1) < wanted);
        }
    }

    #[test]
    fn a_head_is_valid_only_inside_its_ring() {
        let bytes = |events: u32, head: u32, tail: u32| {
            [0, events, head, tail].iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>()
        };
        assert_eq!(Head::of(&bytes(127, 120, 5)).unwrap().unread(), 12);
        assert_eq!(Head::of(&bytes(127, 5, 5)).unwrap().unread(), 0);
        assert!(Head::of(&bytes(127, 127, 5)).is_none() && Head::of(&bytes(0, 0, 0)).is_none());
        assert!(Head::of(&[0; 12]).is_none());
    }
}
