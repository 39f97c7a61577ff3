//! Creates userfaultfds in another process, and duplicates them into this program.
//!
//! Owns: the remote system calls that create a userfaultfd, also in unprivileged processes, and its
//! duplicate.
//! Invariants: every descriptor that a remote call opens in the process is closed before the threads of the
//! process continue, also after an error. If this program dies, the tracked process closes these descriptors
//! itself.
//! Does not: register memory with the userfaultfd.

use std::os::fd::{AsFd, OwnedFd};

use model::{ByteCount, Fd, Pid, Tid};
use sys::socket::{self, Message, SocketAddress};
use sys::userfaultfd::{self, Discards, Mode};
use sys::{Errno, Error};
use tracee::arch::numbers::{IOCTL, PRCTL, RECVMSG, SOCKET, USERFAULTFD};
use tracee::procfs;
use tracee::remote::{Query, SessionCapacity, SignalSets};
use tracee::{RemoteError, RemoteSession};

use crate::error::TrackError;

/// Room that a remote session needs to attach a tracker. Up to three descriptors are open at the same time:
/// the userfaultfds, or a socket, the device and one userfaultfd.
pub const ATTACH_CAPACITY: SessionCapacity =
    SessionCapacity { calls: 2, data: ByteCount(HEADER + PART + BYTE), opened: 3 };

const PR_GET_DUMPABLE: u64 = 3;
const PR_SET_DUMPABLE: u64 = 4;
/// SUID_DUMP_USER: processes of the same user may inspect the process.
const DUMPABLE: u64 = 1;
const AF_UNIX: u16 = 1;
/// SOCK_DGRAM | SOCK_CLOEXEC.
const DATAGRAMS: u64 = 2 | 0o2_000_000;
/// MSG_CMSG_CLOEXEC | MSG_DONTWAIT. The call does not have to wait, because the message was sent before.
const RECEIVE_FLAGS: u64 = 0x4000_0000 | 0x40;
/// Sizes in bytes of a `struct msghdr`, of its only `struct iovec` (`PART`), and of the buffer of this
/// `iovec` (`BYTE`). They follow each other in memory.
const HEADER: u64 = 56;
const PART: u64 = 16;
const BYTE: u64 = 8;
/// Size in bytes of the header of a control message. `CONTROL` adds one descriptor of four bytes.
const CONTROL_HEADER: u64 = 16;
const CONTROL: u64 = CONTROL_HEADER + 4;

/// Creates `COUNT` userfaultfds in the process of a stopped thread, and returns their duplicates.
pub(crate) fn userfaultfds<const COUNT: usize>(
    pid: Pid,
    session: &mut RemoteSession<'_>,
    mode: Mode,
    discards: [Discards; COUNT],
) -> Result<[OwnedFd; COUNT], TrackError> {
    // In asynchronous mode, the kernel lifts the protection itself and reports no faults. A descriptor for
    // faults in user mode is enough, and needs no privilege.
    let fault_scope = if mode == Mode::Sync { 0 } else { userfaultfd::USER_MODE_ONLY };
    let flags = fault_scope | userfaultfd::CREATE_FLAGS;
    let signals = signals(session.tid(), pid)?;
    let create = Query { number: USERFAULTFD, arguments: [flags, 0, 0, 0, 0, 0] };
    let created = session.open(&[create; COUNT], signals)?;
    let needs_device = created.contains(&Err(Errno::EPERM));
    let ours: Result<Vec<OwnedFd>, TrackError> = match needs_device {
        true => Ok(Vec::new()),
        false => created.into_iter().map(|created| duplicate_created(pid, session.tid(), created)).collect(),
    };
    session.close_opened(signals)?;
    let mut ours = ours?;
    if ours.len() < COUNT {
        let hidden = hide(session)?;
        let made = (0..COUNT).map(|_| {
            let made = through_device(pid, session, flags);
            session.close_opened(signals)?;
            made
        });
        let made: Result<Vec<OwnedFd>, TrackError> = made.collect();
        show(session, hidden)?;
        ours = made?;
    }
    for (fd, discards) in ours.iter().zip(discards) {
        userfaultfd::begin(fd.as_fd(), mode, discards)?;
    }
    Ok(ours.try_into().expect("as many were made as were asked for"))
}

/// Returns a duplicate of the userfaultfd that a call has created in the process.
fn duplicate_created(pid: Pid, tid: Tid, created: Result<u64, Errno>) -> Result<OwnedFd, TrackError> {
    let fd = created.map_err(|errno| RemoteError::Refused { tid, number: USERFAULTFD, errno })?;
    Ok(duplicate(pid, fd)?)
}

fn signals(tid: Tid, pid: Pid) -> Result<SignalSets, Error> {
    Ok(procfs::call_status(&procfs::read(procfs::path_of_thread(pid, tid, "status"))?).0)
}

/// Creates a userfaultfd in a process without the privilege for userfaultfd(2). Any process can create one
/// through an open `/dev/userfaultfd`, so the function sends this device to the process. Afterwards a socket,
/// the device and the userfaultfd are open in the process.
fn through_device(pid: Pid, session: &mut RemoteSession<'_>, flags: u64) -> Result<OwnedFd, TrackError> {
    let device = userfaultfd::open_device().map_err(|cause| TrackError::Unprivileged { pid, cause })?;
    let socket_fd = opened(session, SOCKET, [AF_UNIX.into(), DATAGRAMS, 0, 0, 0, 0])?;
    send(pid, socket_fd, &device)?;
    let device_fd = receive(session, socket_fd)?;
    let created = opened(session, IOCTL, [device_fd, userfaultfd::CREATE_REQUEST, flags, 0, 0, 0])?;
    Ok(duplicate(pid, created)?)
}

/// Makes the process not dumpable. Returns whether the process was dumpable. While the process is not dumpable, other
/// processes of its user cannot duplicate its descriptors (pidfd_getfd(2)). These processes could otherwise keep the
/// device, which only root may open. If this program dies, the process remains not dumpable until its next execve(2).
fn hide(session: &mut RemoteSession<'_>) -> Result<bool, TrackError> {
    // Without the user id root, this program could not duplicate the descriptors either. A device that another user may
    // open needs no protection.
    if sys::file_rights::own()?.user != 0 {
        return Ok(false);
    }
    let is_dumpable = session.call(PRCTL, [PR_GET_DUMPABLE, 0, 0, 0, 0, 0])? == DUMPABLE;
    if is_dumpable {
        session.call(PRCTL, [PR_SET_DUMPABLE, 0, 0, 0, 0, 0])?;
    }
    Ok(is_dumpable)
}

/// Makes a process dumpable again that `hide` has changed.
fn show(session: &mut RemoteSession<'_>, is_hidden: bool) -> Result<(), TrackError> {
    if is_hidden {
        session.call(PRCTL, [PR_SET_DUMPABLE, DUMPABLE, 0, 0, 0, 0])?;
    }
    Ok(())
}

fn opened(session: &mut RemoteSession<'_>, number: i64, arguments: [u64; 6]) -> Result<u64, RemoteError> {
    let tid = session.tid();
    let opened = session.open_one(&Query { number, arguments })?;
    opened.map_err(|errno| RemoteError::Refused { tid, number, errno })
}

/// Sends the device into the socket `socket_fd` of the process. The socket is connected to itself, so that
/// only its holders can send to it.
fn send(pid: Pid, socket_fd: u64, device: &OwnedFd) -> Result<(), TrackError> {
    let socket = duplicate(pid, socket_fd)?;
    // The address contains no name, so the kernel chooses an unused name.
    socket::bind(socket.as_fd(), &SocketAddress(AF_UNIX.to_ne_bytes().to_vec()))?;
    socket::connect(socket.as_fd(), &socket::local(socket.as_fd())?)?;
    // Other processes could send messages to the socket before the connect.
    socket::forget_messages(socket.as_fd())?;
    let message = Message { bytes: &[0], rights: &[device.as_fd()], ..Message::default() };
    socket::send(socket.as_fd(), &message)?;
    Ok(())
}

/// Makes the process receive the device from its socket. Returns the fd of the device in the process.
fn receive(session: &mut RemoteSession<'_>, socket_fd: u64) -> Result<u64, TrackError> {
    let received = session.open_into(|session, fd_address| {
        let header = session.data().get();
        let (part, byte) = (header + HEADER, header + HEADER + PART);
        let control = fd_address.get() - CONTROL_HEADER;
        let words = [0, 0, part, 1, control, CONTROL, 0, byte, 1, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        debug_assert_eq!(bytes.len() as u64, HEADER + PART + BYTE, "the parts follow each other");
        session.write_data(&bytes)?;
        Ok(Query { number: RECVMSG, arguments: [socket_fd, header, RECEIVE_FLAGS, 0, 0, 0] })
    })?;
    // A process at its limit of open descriptors receives the message without the descriptor.
    let errno = Error::new("hand /dev/userfaultfd to the process", Errno::EMFILE);
    received.ok_or_else(|| errno.into())
}

fn duplicate(pid: Pid, fd: u64) -> Result<OwnedFd, Error> {
    let handle = sys::pidfd::open(pid)?;
    sys::pidfd::duplicate(handle.as_fd(), pid, Fd(fd as i32))
}
