//! A userfaultfd that acts on another process and that only this process holds.
//!
//! Owns: its creation in the process by remote calls, also for processes without the privilege, and the duplicate.
//! Invariants: every descriptor that was opened in the process for it is closed before its threads continue, also when
//! a step fails. If this process dies, the process closes it itself.
//! Does not: watch anything yet.

use std::os::fd::{AsFd, OwnedFd};

use model::{ByteCount, Fd, Pid, Tid};
use sys::socket::{self, Message, SocketAddress};
use sys::userfaultfd::{self, Discards, Mode};
use sys::{Errno, Error};
use tracee::arch::numbers::{IOCTL, RECVMSG, SOCKET, USERFAULTFD};
use tracee::procfs;
use tracee::remote::{Query, Room, SignalSets};
use tracee::{RemoteError, RemoteSession};

use crate::error::TrackError;

/// What a session in which trackers are attached has room for: the descriptors themselves, or a socket, the device and
/// one descriptor.
pub const ROOM: Room = Room { calls: 2, data: ByteCount(HEADER + PART + BYTE), opened: 3 };

const AF_UNIX: u16 = 1;
/// SOCK_DGRAM | SOCK_CLOEXEC.
const DATAGRAMS: u64 = 2 | 0o2_000_000;
/// MSG_CMSG_CLOEXEC | MSG_DONTWAIT: the message is there already.
const RECEIVE_FLAGS: u64 = 0x4000_0000 | 0x40;
/// `struct msghdr`, then its one part, and the byte that this points to.
const HEADER: u64 = 56;
const PART: u64 = 16;
const BYTE: u64 = 8;
/// A control message with one descriptor: a header, then the number.
const CONTROL_HEADER: u64 = 16;
const CONTROL: u64 = CONTROL_HEADER + 4;

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
    let created = session.open(&[create; COUNT], signals)?;
    let needs_device = created.contains(&Err(Errno::EPERM));
    let ours: Result<Vec<OwnedFd>, TrackError> = match needs_device {
        true => Ok(Vec::new()),
        false => created.into_iter().map(|created| taken(pid, session.tid(), created)).collect(),
    };
    session.close_opened(signals)?;
    let mut ours = ours?;
    while ours.len() < COUNT {
        let made = through_device(pid, session, flags);
        session.close_opened(signals)?;
        ours.push(made?);
    }
    for (fd, discards) in ours.iter().zip(discards) {
        userfaultfd::begin(fd.as_fd(), mode, discards)?;
    }
    Ok(ours.try_into().expect("as many were made as were asked for"))
}

/// Our duplicate of what a call in the process has created.
fn taken(pid: Pid, tid: Tid, created: Result<u64, Errno>) -> Result<OwnedFd, TrackError> {
    let number = created.map_err(|errno| RemoteError::Refused { tid, number: USERFAULTFD, errno })?;
    Ok(duplicate(pid, number)?)
}

fn signals(tid: Tid, pid: Pid) -> Result<SignalSets, Error> {
    Ok(procfs::call_status(&procfs::read(procfs::path_of_thread(pid, tid, "status"))?).0)
}

/// Creates one in a process that may not create one itself: a process with `/dev/userfaultfd` open may, so we send it one
/// for this time. The process has a socket, the device and the descriptor open afterwards.
fn through_device(pid: Pid, session: &mut RemoteSession<'_>, flags: u64) -> Result<OwnedFd, TrackError> {
    let device = userfaultfd::open_device().map_err(|cause| TrackError::Unprivileged { pid, cause })?;
    let end = opened(session, SOCKET, [AF_UNIX.into(), DATAGRAMS, 0, 0, 0, 0])?;
    send(pid, end, &device)?;
    let number = receive(session, end)?;
    let created = opened(session, IOCTL, [number, userfaultfd::CREATE_REQUEST, flags, 0, 0, 0])?;
    Ok(duplicate(pid, created)?)
}

fn opened(session: &mut RemoteSession<'_>, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
    let tid = session.tid();
    let opened = session.open_one(&Query { number, arguments })?;
    opened.map_err(|errno| RemoteError::Refused { tid, number, errno })
}

/// Sends the device into the process's own socket, which only itself can send to: it has no other end.
fn send(pid: Pid, end: u64, device: &OwnedFd) -> Result<(), TrackError> {
    let socket = duplicate(pid, end)?;
    // An unused name is made up for an address without one.
    socket::bind(socket.as_fd(), &SocketAddress(AF_UNIX.to_ne_bytes().to_vec()))?;
    socket::connect(socket.as_fd(), &socket::local(socket.as_fd())?)?;
    // Before it was connected, any process could send.
    socket::forget_messages(socket.as_fd())?;
    let message = Message { bytes: &[0], rights: &[device.as_fd()], ..Message::default() };
    socket::send(socket.as_fd(), &message)?;
    Ok(())
}

/// Has the process take a descriptor out of its socket; its number there.
fn receive(session: &mut RemoteSession<'_>, end: u64) -> Result<u64, TrackError> {
    let received = session.open_into(|session, number_at| {
        let header = session.data().get();
        let (part, byte) = (header + HEADER, header + HEADER + PART);
        let control = number_at.get() - CONTROL_HEADER;
        let words = [0, 0, part, 1, control, CONTROL, 0, byte, 1, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        debug_assert_eq!(bytes.len() as u64, HEADER + PART + BYTE, "the parts follow each other");
        session.write_data(&bytes)?;
        Ok(Query { number: RECVMSG, arguments: [end, header, RECEIVE_FLAGS, 0, 0, 0] })
    })?;
    // A process at its limit of descriptors gets the message without one.
    let errno = Error::new("hand /dev/userfaultfd to the process", Errno::EMFILE);
    received.ok_or_else(|| errno.into())
}

fn duplicate(pid: Pid, number: u64) -> Result<OwnedFd, Error> {
    let handle = sys::pidfd::open(pid)?;
    sys::pidfd::duplicate(handle.as_fd(), pid, Fd(number as i32))
}
