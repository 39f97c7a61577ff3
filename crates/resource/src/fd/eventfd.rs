//! Event counters.
//!
//! Owns: the count and the mode of an eventfd.
//! Invariants: the count is that of the pause, up to the largest one.
//! Does not: know of kernel users of the counter (KVM, asynchronous I/O); their own kinds refuse.

use prost::Message;
use rustix::event::{EventfdFlags, eventfd};
use sys::Error;

use super::fdinfo::FdInfo;
use super::{CaptureScope, Description, FdCapture, FdCreate, FdKind, FdRecord};
use crate::error::Result;

const NAME: &str = "fd/eventfd";

/// Event counters.
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
}

impl FdKind for Eventfd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "eventfd: count, semaphore mode"
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:[eventfd]"
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::<Capture>::default())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        for record in records {
            let state: State = crate::decode(NAME, &record.payload)?;
            let mut flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            flags.set(EventfdFlags::SEMAPHORE, state.semaphore);
            let counter = eventfd(0, flags).map_err(|errno| Error::new("create an eventfd", errno))?;
            // The kernel itself can count one further than a program can write.
            let count = state.count.min(u64::MAX - 1);
            if count > 0 {
                rustix::io::write(&counter, &count.to_ne_bytes())
                    .map_err(|errno| Error::new("set the count of an eventfd", errno))?;
            }
            context.created.insert(record.id, counter);
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)
    }

    fn after(&mut self, _description: &Description) -> Result<Vec<u8>> {
        let count = self.info.parse("eventfd-count", |text| u64::from_str_radix(text, 16).ok())?;
        // Kernels before 6.5 do not tell the mode; semaphores come back as plain counters there.
        let semaphore = self.info.line("eventfd-semaphore") == Some("1");
        Ok(State { count, semaphore }.encode_to_vec())
    }
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
    fn a_plain_counter_gives_its_whole_count() {
        let original = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        rustix::io::write(&original, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let copy = round_trip(&Eventfd, &original);
        assert_eq!(read(&copy), u64::MAX - 1);
        assert!(rustix::io::read(&copy, &mut [0; 8]).is_err());
    }

    #[test]
    fn a_semaphore_counts_down_by_one() {
        let original = eventfd(2, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap();
        let copy = round_trip(&Eventfd, &original);
        assert_eq!((read(&copy), read(&copy)), (1, 1));
        assert!(rustix::io::read(&copy, &mut [0; 8]).is_err());
    }

    #[test]
    fn other_anonymous_files_are_not_claimed_and_damage_is_named() {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        assert!(!Eventfd.claims(&describe(0, &epoll)));
        let broken = crate::decode::<State>(NAME, &[0xff]).unwrap_err();
        assert!(broken.to_string().contains(NAME), "{broken}");
    }
}
