//! Saves and restores event counters, created with eventfd(2): the descriptor kind `fd/eventfd`.
//!
//! Owns: count and mode of an eventfd.
//! Invariants: the restored count is the count in the pause, but at most the maximum that write(2) can set.
//! Does not: handle kernel users of the counter (KVM, asynchronous I/O); the descriptor kinds of these objects refuse
//! the checkpoint.

use std::os::fd::OwnedFd;

use prost::Message;
use rustix::event::{EventfdFlags, eventfd};
use sys::Error;

use super::description::{Description, Known};
use super::fdinfo::FdInfo;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::Result;

const NAME: &str = "fd/eventfd";
/// The name of the fdinfo line that shows the mode.
const SEMAPHORE: &str = "eventfd-semaphore";

/// Descriptor kind ([`FdKind`]) of event counters.
#[derive(Debug)]
pub struct Eventfd;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(bool, tag = "2")]
    semaphore: bool,
}

#[derive(Debug, Default)]
struct Capture {
    info: FdInfo,
    /// Set when a test read has shown semaphore mode. Used if fdinfo does not show the mode.
    counts_by_one: bool,
}

impl FdKind for Eventfd {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:[eventfd]"
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::<Capture>::default())
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        State::decode(payload).ok().map(|state| format!("count {}", state.count))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |state: State, _, _| {
            let mut flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            flags.set(EventfdFlags::SEMAPHORE, state.semaphore);
            let counter = eventfd(0, flags).map_err(|errno| Error::new("create an eventfd", errno))?;
            // write(2) can set at most `u64::MAX - 1`. Only the kernel itself can increment the count to `u64::MAX`.
            let count = state.count.min(u64::MAX - 1);
            if count > 0 {
                rustix::io::write(&counter, &count.to_ne_bytes())
                    .map_err(|errno| Error::new("set the count of an eventfd", errno))?;
            }
            Ok(counter)
        })
    }
}

impl FdCapture for Capture {
    fn fdinfo_read(&mut self, text: &[u8]) {
        self.info.set(text);
    }

    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)?;
        // Kernels before 6.5 do not show the mode in fdinfo.
        if self.info.line(SEMAPHORE).is_none() {
            self.counts_by_one = counts_by_one(&description.duplicate, self.count()?)?;
        }
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let semaphore = self.info.line(SEMAPHORE).map_or(self.counts_by_one, |mode| mode == "1");
        Ok(State { count: self.count()?, semaphore }.encode_to_vec())
    }
}

impl Capture {
    fn count(&self) -> Result<u64> {
        self.info.parse("eventfd-count", |text| u64::from_str_radix(text, 16).ok())
    }
}

/// Reports whether a read decrements a counter by one (semaphore mode) or resets the counter to 0. Determines the
/// mode with a read, after the count was raised to at least two. Processes that could observe this change are
/// stopped, and the count is set back afterwards.
fn counts_by_one(counter: &OwnedFd, count: u64) -> Result<bool> {
    let failed = |errno| Error::new("determine the mode of an eventfd", errno);
    let add = |number: u64| {
        let written = if number == 0 { Ok(0) } else { rustix::io::write(counter, &number.to_ne_bytes()) };
        written.map(drop).map_err(failed)
    };
    let take = || {
        let mut bytes = [0; 8];
        rustix::io::read(counter, &mut bytes).map_err(failed)?;
        Ok::<u64, Error>(u64::from_ne_bytes(bytes))
    };
    // Only the kernel can increment the count to this value, and write(2) could not set the count back.
    if count == u64::MAX {
        return Ok(false);
    }
    add(2_u64.saturating_sub(count))?;
    let semaphore = take()? == 1;
    match (semaphore, count) {
        (true, 0) => drop(take()?),
        (true, 1) => {}
        (true, _) => add(1)?,
        (false, _) => add(count)?,
    }
    Ok(semaphore)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{describe, round_trip};
    use super::*;

    fn read(counter: &impl std::os::fd::AsFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(counter, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn a_plain_counter_returns_its_whole_count() {
        let original = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        rustix::io::write(&original, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let copy = round_trip(&Eventfd, &original);
        assert_eq!(read(&copy), u64::MAX - 1);
        assert!(rustix::io::read(&copy, &mut [0; 8]).is_err());
    }

    #[test]
    fn a_semaphore_decrements_by_one() {
        let original = eventfd(2, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap();
        let copy = round_trip(&Eventfd, &original);
        assert_eq!((read(&copy), read(&copy)), (1, 1));
        assert!(rustix::io::read(&copy, &mut [0; 8]).is_err());
    }

    #[test]
    fn the_mode_is_determined_by_counting_and_the_count_is_unchanged() {
        for count in [0, 1, 2, 3, 1000, u64::MAX - 1] {
            for flags in [EventfdFlags::SEMAPHORE, EventfdFlags::empty()] {
                let counter = eventfd(0, flags | EventfdFlags::NONBLOCK).unwrap();
                if count > 0 {
                    rustix::io::write(&counter, &count.to_ne_bytes()).unwrap();
                }
                let semaphore = flags == EventfdFlags::SEMAPHORE;
                assert_eq!(counts_by_one(&counter, count).unwrap(), semaphore, "{count}");
                let mut info = FdInfo::default();
                info.take(&counter).unwrap();
                assert_eq!(Capture { info, counts_by_one: false }.count().unwrap(), count);
            }
        }
    }

    #[test]
    fn other_anonymous_files_are_not_claimed_and_a_damaged_payload_is_named() {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        assert!(!Eventfd.claims(&describe(0, &epoll)));
        let broken = crate::error::decode::<State>(NAME, &[0xff]).unwrap_err();
        assert!(broken.to_string().contains(NAME), "{broken}");
    }
}
