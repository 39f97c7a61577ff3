//! The wait of the event loop for its descriptors.
//!
//! Owns: the epoll instance.
//! Invariants: an interest ends with the event that it reports (EPOLLONESHOT).
//! Does not: know the meaning of a token.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use health::Interest;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sys::Error;

use crate::error::{GuardianError, Result};

/// Maximum number of events that one call reports. Further events are reported by the next call.
const EVENTS_MAX: usize = 64;

/// The descriptors of many subjects, in an epoll instance. An interest ends with the event that it reports, so a
/// subject that does not ask again is not woken again. A closed descriptor needs no removal.
pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(super) fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| failed("make an epoll", errno))?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Requests one event of a descriptor.
    pub(super) fn ask(&self, handle: BorrowedFd<'_>, token: u64, interest: Interest) -> Result<()> {
        let wanted = match interest {
            Interest::Readable => EventFlags::IN,
            Interest::Writable => EventFlags::OUT,
        };
        let (data, flags) = (EventData::new_u64(token), wanted | EventFlags::ONESHOT);
        let asked = match epoll::modify(&self.epoll, handle, data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, handle, data, flags),
            asked => asked,
        };
        asked.map_err(|errno| failed("wait for a descriptor", errno))
    }

    /// Waits for events, for at most `timeout`. Returns the tokens of the events.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<u64>> {
        // epoll_wait(2) counts milliseconds, but checkpoints are due to the microsecond.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut waiting = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("wait for events", errno)),
        }
        self.events.clear();
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&Timespec::default()))
            .map_err(|errno| failed("take events", errno))?;
        // The field is copied, because a field of a packed structure cannot be borrowed.
        Ok(self.events.iter().map(|event| { event.data }.u64()).collect())
    }
}

fn failed(what: &'static str, errno: Errno) -> GuardianError {
    Error::new(what, errno).into()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn an_event_is_reported_once_for_each_time_that_it_is_asked_for() {
        let mut poller = Poller::new().unwrap();
        let ready = eventfd(1, EventfdFlags::empty()).unwrap();
        let now = Some(Duration::ZERO);
        for _ in 0..3 {
            poller.ask(ready.as_fd(), 7, Interest::Readable).unwrap();
            assert_eq!(poller.wait(now).unwrap(), [7]);
            assert!(poller.wait(now).unwrap().is_empty());
        }
        poller.ask(ready.as_fd(), 7, Interest::Writable).unwrap();
        assert_eq!(poller.wait(now).unwrap(), [7]);
        poller.ask(ready.as_fd(), 7, Interest::Readable).unwrap();
        drop(ready);
        assert!(poller.wait(now).unwrap().is_empty(), "it was closed");
    }
}
