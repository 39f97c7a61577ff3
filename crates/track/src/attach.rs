//! A userfaultfd that acts on another process and that only we hold.
//!
//! Owns: its creation in the process by remote calls, also for processes without the privilege, and the duplicate.
//! Invariants: what was opened in the process for it is closed before its threads go on, also when a step fails.
//! Does not: watch anything yet.

use std::os::fd::{AsFd, OwnedFd};

use model::{ByteCount, Fd, Pid, Tid};
use sys::socket::{self, Message};
use sys::userfaultfd::{self, Discards, Mode};
use sys::{Errno, Error};
use tracee::arch::numbers::{CLOSE, IOCTL, RECVMSG, SOCKETPAIR, USERFAULTFD};
use tracee::procfs::{self, CallStatus};
use tracee::remote::{Query, Room, SignalSets};
use tracee::{RemoteError, RemoteSession};

use crate::error::TrackError;

/// What a session in which trackers are attached has room for.
pub const ROOM: Room = Room { calls: 2, data: ByteCount(HEADER + PART + BYTE + CONTROL) };

const AF_UNIX: u64 = 1;
/// Too many open files.
const EMFILE: i32 = 24;
/// SOCK_DGRAM | SOCK_CLOEXEC.
const DATAGRAMS: u64 = 2 | 0o2_000_000;
/// MSG_CMSG_CLOEXEC | MSG_DONTWAIT: the message is there already.
const RECEIVE_FLAGS: u64 = 0x4000_0000 | 0x40;
/// `struct msghdr`, then its one part, the byte that this points to, and the room for one descriptor.
const HEADER: u64 = 56;
const PART: u64 = 16;
const BYTE: u64 = 8;
const CONTROL: u64 = 24;
/// Where the descriptor stands in a control message: behind its header.
const NUMBER_AT: u64 = HEADER + PART + BYTE + 16;

/// Creates several in the process of a stopped thread.
pub(crate) fn userfaultfds<const COUNT: usize>(
    pid: Pid,
    session: &mut RemoteSession<'_>,
    mode: Mode,
    discards: [Discards; COUNT],
) -> Result<[OwnedFd; COUNT], TrackError> {
    // Where the kernel lifts the protection by itself, no fault is ever handed to us: no privilege is needed.
    let who = if mode == Mode::Sync { 0 } else { userfaultfd::USER_MODE_ONLY };
    let flags = who | userfaultfd::CREATE_FLAGS;
    let signals = signals(session.tid(), pid)?;
    let create = Query { number: USERFAULTFD, arguments: [flags, 0, 0, 0, 0, 0] };
    let mut numbers = Vec::with_capacity(COUNT);
    let mut outcome = Ok(());
    for created in session.batch(&[create; COUNT], signals)? {
        let created = match created {
            Ok(number) => Ok(number),
            Err(_) if outcome.is_err() => continue,
            Err(Errno::EPERM) => through_device(pid, session, flags),
            Err(errno) => Err(RemoteError::Refused { tid: session.tid(), number: USERFAULTFD, errno }.into()),
        };
        match created {
            Ok(number) => numbers.push(number),
            Err(error) => outcome = Err(error),
        }
    }
    let duplicates: Result<Vec<OwnedFd>, Error> =
        numbers.iter().map(|number| duplicate(pid, *number)).collect();
    let close = |number: &u64| Query { number: CLOSE, arguments: [*number, 0, 0, 0, 0, 0] };
    let closed = session.batch(&numbers.iter().map(close).collect::<Vec<_>>(), signals)?;
    outcome?;
    for result in closed {
        result.map_err(|errno| Error::process("close a userfaultfd in", pid, errno))?;
    }
    let duplicates = duplicates?;
    for (fd, discards) in duplicates.iter().zip(discards) {
        userfaultfd::begin(fd.as_fd(), mode, discards)?;
    }
    Ok(duplicates.try_into().expect("each call that was made gave a descriptor or an error"))
}

fn signals(tid: Tid, pid: Pid) -> Result<SignalSets, Error> {
    let CallStatus { caught, pending, .. } =
        procfs::call_status(&procfs::read(procfs::path_of_thread(pid, tid, "status"))?);
    Ok(SignalSets { caught, pending })
}

/// Creates one in a process that may not create one itself: whoever holds `/dev/userfaultfd` may, and we send it one
/// for as long as that takes.
fn through_device(pid: Pid, session: &mut RemoteSession<'_>, flags: u64) -> Result<u64, TrackError> {
    let device = userfaultfd::open_device().map_err(|cause| TrackError::Unprivileged { pid, cause })?;
    session.call(SOCKETPAIR, [AF_UNIX, DATAGRAMS, 0, session.data().get(), 0, 0])?;
    let ends = session.read_data(ByteCount(8))?;
    let [ours, theirs] = [number_in(&ends[..4]), number_in(&ends[4..])];
    let received = send(pid, ours, &device).and_then(|()| receive(session, theirs));
    let created = received.and_then(|number| {
        let created = session.call(IOCTL, [number, userfaultfd::CREATE_REQUEST, flags, 0, 0, 0]);
        close(session, number)?;
        Ok(created?)
    });
    close(session, ours)?;
    close(session, theirs)?;
    created
}

/// Sends the device into the process's own socket.
fn send(pid: Pid, end: u64, device: &OwnedFd) -> Result<(), TrackError> {
    let socket = duplicate(pid, end)?;
    let message = Message { bytes: &[0], rights: &[device.as_fd()], ..Message::default() };
    socket::send(socket.as_fd(), &message)?;
    Ok(())
}

/// Has the process take a descriptor out of its socket; its number there.
fn receive(session: &mut RemoteSession<'_>, end: u64) -> Result<u64, TrackError> {
    let header = session.data().get();
    let (part, byte) = (header + HEADER, header + HEADER + PART);
    let control = byte + BYTE;
    let words = [0, 0, part, 1, control, CONTROL, 0, byte, 1, 0, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
    debug_assert_eq!(bytes.len() as u64, HEADER + PART + BYTE + CONTROL, "the parts follow each other");
    session.write_data(&bytes)?;
    session.call(RECVMSG, [end, header, RECEIVE_FLAGS, 0, 0, 0])?;
    let filled = session.read_data(ByteCount(NUMBER_AT + 4))?;
    // A process at its limit of descriptors gets the message without one.
    let length = u64::from(number_in(&filled[HEADER_CONTROL_LENGTH..HEADER_CONTROL_LENGTH + 4]) as u32);
    if length == 0 {
        return Err(Error::new("hand /dev/userfaultfd to the process", Errno(EMFILE)).into());
    }
    Ok(number_in(&filled[NUMBER_AT as usize..]))
}

/// `msg_controllen` in `struct msghdr`.
const HEADER_CONTROL_LENGTH: usize = 40;

fn number_in(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, |bytes| u64::from(u32::from_ne_bytes(bytes)))
}

fn duplicate(pid: Pid, number: u64) -> Result<OwnedFd, Error> {
    let handle = sys::pidfd::open(pid)?;
    sys::pidfd::duplicate(handle.as_fd(), pid, Fd(number as i32))
}

fn close(session: &mut RemoteSession<'_>, number: u64) -> Result<(), TrackError> {
    session.call(CLOSE, [number, 0, 0, 0, 0, 0])?;
    Ok(())
}
