//! Registers members of an epoll set under chosen fds.
//!
//! A *member* is registered under an fd, and watches an open file description (the *target*). A restore
//! registers a member under the fd that the subject used. In this process, this fd may be unused, or in use
//! for another file.
//!
//! Owns: epoll_ctl(2) in a private descriptor table, and kcmp(2) on members of a set.
//! Invariants: a registration does not change the descriptor table of the caller. A member stays registered
//! as long as the open file descriptions of the set and of the target exist. The fd of the registration may
//! be closed before.
//! Does not: know which fds the subject used.
//!
//! Man page: epoll_ctl(2), unshare(2), kcmp(2)
//! Since: Linux 4.13 (KCMP_EPOLL_TFD)
//! Probe: none; `undying doctor` refuses older kernels
//! Fallback: none

use std::cmp::Ordering;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use model::{Fd, Pid};

use crate::error::{Errno, Error, Result, done};
use crate::kcmp::ordering;

const KCMP_EPOLL_TFD: i32 = 7;
const EPOLLONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Bits in the events of a member that are options, not events. A one-shot member that has *fired* (delivered
/// an event) has no other bits.
const FLAGS: u32 =
    (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP | libc::EPOLLONESHOT) as u32 | libc::EPOLLET as u32;
/// The events of reading and writing. The kernel always adds EPOLLERR and EPOLLHUP.
const ANYTHING: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLPRI
    | libc::EPOLLRDHUP
    | libc::EPOLLRDNORM
    | libc::EPOLLWRNORM) as u32;

/// Reports whether these are the events of a *spent* member: a one-shot member that has fired and was not
/// armed again.
#[must_use]
pub fn is_spent(events: u32) -> bool {
    events & EPOLLONESHOT != 0 && events & !FLAGS == 0
}

/// One member of an epoll set.
#[derive(Clone, Copy, Debug)]
pub struct Registration<'a> {
    /// The epoll set.
    pub set: BorrowedFd<'a>,
    /// The fd under which the member is registered.
    pub number: Fd,
    /// The watched open file description.
    pub target: BorrowedFd<'a>,
    /// The requested events and options (EPOLL* bits).
    pub events: u32,
    /// The value that the program receives with an event.
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

/// Registers all members in the given order, each under its fd. A thread with a private descriptor table does
/// the work, so the fd may be in use in this process. In each set, spent members ([`is_spent`]) must come
/// before the other members. The reason is that a member becomes spent by an epoll_wait(2), which could
/// otherwise consume the event of another member.
pub fn register(registrations: &[Registration<'_>]) -> Result<()> {
    if registrations.is_empty() {
        return Ok(());
    }
    let work = || {
        // SAFETY: `unshare` makes only the descriptor table of this thread private. The thread has no
        // `OwnedFd`. The descriptors that the thread opens below are closed by number in the private table.
        done("get a private descriptor table", unsafe { libc::unshare(libc::CLONE_FILES) })?;
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

/// Registers one member under its fd. If another descriptor has this fd, this descriptor is moved to a
/// different fd during the registration.
fn register_one(registration: &Registration<'_>) -> Result<()> {
    let number = registration.number.get();
    let (set, target) = (registration.set.as_raw_fd(), registration.target.as_raw_fd());
    if target == number {
        return add(set, number, registration);
    }
    let parked = park(number)?;
    let set = if set == number { parked.unwrap_or(set) } else { set };
    // SAFETY: plain numbers. `number` is free, or its descriptor has a duplicate. Only this thread uses the
    // table.
    let result = unsafe { libc::dup3(target, number, libc::O_CLOEXEC) };
    let result = if result < 0 { Err(failed(number)) } else { add(set, number, registration) };
    match parked {
        // SAFETY: plain numbers. The calls move the other descriptor back to its fd, and close the duplicate.
        Some(parked) => unsafe {
            libc::dup3(parked, number, libc::O_CLOEXEC);
            libc::close(parked);
        },
        // SAFETY: plain numbers. The call closes the descriptor that `dup3` above created, or no descriptor.
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
    // The member must become spent. At a registration, the kernel adds EPOLLERR and EPOLLHUP to the requested
    // events. Only firing removes these two events. So the member is registered for all events, and fires if
    // the target is ready for any event. If the target is not ready, EPOLLERR and EPOLLHUP stay armed.
    control(set, libc::EPOLL_CTL_ADD, number, registration, events | ANYTHING)?;
    let mut fired = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the kernel writes at most one epoll_event to the given address, and the call does not wait.
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
    // SAFETY: the kernel reads one epoll_event from the given address.
    if unsafe { libc::epoll_ctl(set, operation, number, &raw mut event) } < 0 {
        return Err(failed(number));
    }
    Ok(())
}

fn failed(number: RawFd) -> Error {
    Error::new(format!("register fd {number} with an epoll set"), Errno::last())
}

/// Compares the open file description of `candidate`, a descriptor of any process, with the target of a
/// member. Several members of `set` can be registered under `number`: `index` selects one of these members.
/// Returns `Equal` if both descriptions are the same.
pub fn watches(set: BorrowedFd<'_>, number: Fd, index: u32, candidate: (Pid, Fd)) -> Result<Ordering> {
    let slot = EpollSlot { set: set.as_raw_fd() as u32, number: number.get() as u32, index };
    let (us, (pid, fd)) = (std::process::id(), candidate);
    // SAFETY: the kernel reads one structure of three u32 from the given address.
    let result =
        unsafe { libc::syscall(libc::SYS_kcmp, pid.get(), us, KCMP_EPOLL_TFD, fd.get(), &raw const slot) };
    ordering(result).map_err(|errno| Error::new(format!("compare fd {number} of an epoll set"), errno))
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
    fn an_fd_in_use_stays_open() {
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
