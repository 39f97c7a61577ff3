//! Registrations of an epoll set under descriptor numbers that are not ours.
//!
//! Owns: epoll_ctl(2) in a private descriptor table, kcmp(2) on registrations.
//! Invariants: the caller's descriptor table is the same before and after; a registration lives as long as
//! the two open file descriptions, not as long as the number it was made under.
//! Does not: know which numbers the subject used.
//!
//! Man page: epoll_ctl(2), unshare(2), kcmp(2)
//! Since: Linux 4.13 (KCMP_EPOLL_TFD)
//! Probe: none; older kernels are refused by `doctor`
//! Fallback: none

use std::cmp::Ordering;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use model::{Fd, Pid};

use crate::error::{Errno, Error, Result};

const KCMP_EPOLL_TFD: i32 = 7;
const EPOLLONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Bits of a member's events that are no events; a one-shot member that has fired has nothing else.
const FLAGS: u32 =
    (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP | libc::EPOLLONESHOT) as u32 | libc::EPOLLET as u32;
/// Every event there is.
const ANYTHING: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLPRI
    | libc::EPOLLRDHUP
    | libc::EPOLLRDNORM
    | libc::EPOLLWRNORM) as u32;

/// Whether these are the events of a one-shot member that has fired and was not armed again.
#[must_use]
pub fn is_spent(events: u32) -> bool {
    events & EPOLLONESHOT != 0 && events & !FLAGS == 0
}

/// One member of an epoll set.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// The set.
    pub set: BorrowedFd<'a>,
    /// The number under which the member is registered.
    pub number: Fd,
    /// The open file description that is watched.
    pub target: BorrowedFd<'a>,
    /// EPOLL* bits.
    pub events: u32,
    /// What the program gets back with an event.
    pub data: u64,
}

#[repr(C)]
struct EpollSlot {
    set: u32,
    number: u32,
    index: u32,
}

const _: () = assert!(size_of::<EpollSlot>() == 12);
const _: () = assert!(offset_of!(EpollSlot, index) == 8);

/// Makes all registrations in their order, each under its number. A number may be in use in this process: the
/// work is done by a thread with a descriptor table of its own. Of each set the members that are spent
/// ([`is_spent`]) must come first, because making them so may take an event from the set.
pub fn register(registrations: &[Registration<'_>]) -> Result<()> {
    if registrations.is_empty() {
        return Ok(());
    }
    let work = || {
        // SAFETY: only this thread's table becomes private, and the thread owns no descriptor by value: what it
        // opens below it closes by number in the private table.
        if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
            return Err(Error::new("get a private descriptor table", Errno::last()));
        }
        registrations.iter().try_for_each(register_one)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("epoll-register".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|error| Error::new("start a thread", error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Registers under `number` while whatever had that number waits under another one.
fn register_one(registration: &Registration<'_>) -> Result<()> {
    let number = registration.number.get();
    let (set, target) = (registration.set.as_raw_fd(), registration.target.as_raw_fd());
    if target == number {
        return add(set, number, registration);
    }
    let parked = park(number)?;
    let set = if set == number { parked.unwrap_or(set) } else { set };
    // SAFETY: plain numbers; `number` is free or parked, in a table that only this thread sees.
    let result = unsafe { libc::dup3(target, number, libc::O_CLOEXEC) };
    let result = if result < 0 { Err(failed(number)) } else { add(set, number, registration) };
    match parked {
        // SAFETY: plain numbers; gives the parked descriptor its number back and frees the other.
        Some(parked) => unsafe {
            libc::dup3(parked, number, libc::O_CLOEXEC);
            libc::close(parked);
        },
        // SAFETY: closes what dup3 made above, or nothing.
        None => unsafe {
            libc::close(number);
        },
    }
    result
}

fn park(number: RawFd) -> Result<Option<RawFd>> {
    // SAFETY: plain numbers.
    let parked = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, number.saturating_add(1)) };
    if parked >= 0 {
        return Ok(Some(parked));
    }
    if Errno::last().0 == libc::EBADF { Ok(None) } else { Err(failed(number)) }
}

fn add(set: RawFd, number: RawFd, registration: &Registration<'_>) -> Result<()> {
    let events = registration.events;
    if !is_spent(events) {
        return control(set, libc::EPOLL_CTL_ADD, number, registration, events);
    }
    // A one-shot member that has fired: the kernel adds EPOLLERR and EPOLLHUP to whatever is asked for, so it has
    // to fire here. Where it is not ready for anything, those two stay armed.
    control(set, libc::EPOLL_CTL_ADD, number, registration, events | ANYTHING)?;
    let mut fired = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the kernel writes at most one epoll_event at the address given, and does not wait.
    match unsafe { libc::epoll_wait(set, &raw mut fired, 1, 0) } {
        1.. => Ok(()),
        _ => control(set, libc::EPOLL_CTL_MOD, number, registration, events),
    }
}

fn control(
    set: RawFd,
    operation: i32,
    number: RawFd,
    registration: &Registration<'_>,
    events: u32,
) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: registration.data };
    // SAFETY: the kernel reads one epoll_event at the address given.
    if unsafe { libc::epoll_ctl(set, operation, number, &raw mut event) } < 0 {
        return Err(failed(number));
    }
    Ok(())
}

fn failed(number: RawFd) -> Error {
    Error::new(format!("register fd {number} with an epoll set"), Errno::last())
}

/// Whether the `index`th member that `set` has under `number` is the description behind the `candidate`, a descriptor of
/// some process.
pub fn watches(set: BorrowedFd<'_>, number: Fd, index: u32, candidate: (Pid, Fd)) -> Result<Ordering> {
    let slot = EpollSlot { set: set.as_raw_fd() as u32, number: number.get() as u32, index };
    let (us, (pid, fd)) = (std::process::id(), candidate);
    // SAFETY: the kernel reads one slot of three u32 at the address given.
    let result =
        unsafe { libc::syscall(libc::SYS_kcmp, pid.get(), us, KCMP_EPOLL_TFD, fd.get(), &raw const slot) };
    match result {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(Error::new(format!("compare fd {number} of an epoll set"), Errno::last())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use rustix::event::{EventfdFlags, epoll, eventfd};

    #[test]
    fn a_spent_member_is_silent_until_it_is_armed() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let target = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let spent = Registration {
            set: set.as_fd(),
            number: Fd(600),
            target: target.as_fd(),
            events: EPOLLONESHOT,
            data: 5,
        };
        register(&[spent]).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", set.as_raw_fd())).unwrap();
        assert!(info.contains("events: 40000000 data:                5"), "{info}");
    }

    #[test]
    fn a_number_in_use_stays_what_it_was() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let target = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let taken = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let numbers = [taken.as_raw_fd(), 700, target.as_raw_fd(), set.as_raw_fd()];
        let members: Vec<Registration<'_>> = numbers
            .iter()
            .map(|number| Registration {
                set: set.as_fd(),
                number: Fd(*number),
                target: target.as_fd(),
                events: 1,
                data: *number as u64,
            })
            .collect();
        register(&members).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", set.as_raw_fd())).unwrap();
        for number in numbers {
            assert!(info.contains(&format!("tfd: {number:8}")), "{info}");
            let is_of = |other: &OwnedFd| {
                let place = (Pid(std::process::id() as i32), Fd(other.as_raw_fd()));
                watches(set.as_fd(), Fd(number), 0, place).unwrap().is_eq()
            };
            assert!(is_of(&target) && !is_of(&taken));
        }
        assert!(rustix::io::fcntl_getfd(&taken).is_ok());
        let twice = register(&members[..1]).unwrap_err();
        assert!(twice.to_string().contains("register fd"), "{twice}");
    }
}
