//! Creates userfaultfds in another process, and duplicates them into this program.
//!
//! Owns: the remote system calls that create a userfaultfd, and its duplicate.
//! Invariants: every descriptor that a remote call opens in the process is closed before the threads of the
//! process continue, also after an error. If this program dies, the tracked process closes these descriptors
//! itself.
//! Does not: register memory with the userfaultfd.

use std::os::fd::{AsFd, OwnedFd};

use model::{ByteCount, Fd, Pid, Tid};
use sys::userfaultfd::{self, Discards};
use sys::{Errno, Error};
use tracee::arch::numbers::USERFAULTFD;
use tracee::procfs;
use tracee::remote::{Query, SessionCapacity, SignalSets};
use tracee::{RemoteError, RemoteSession};

use crate::error::TrackError;

/// Room that a remote session needs to attach a tracker: the userfaultfds are open at the same time.
pub const ATTACH_CAPACITY: SessionCapacity = SessionCapacity { calls: 2, data: ByteCount(0), opened: 2 };

/// Creates `COUNT` userfaultfds in the process of a stopped thread, and returns their duplicates. The kernel lifts the
/// protection itself and reports no faults. A descriptor for faults in user mode is enough, and needs no privilege.
pub(crate) fn userfaultfds<const COUNT: usize>(
    pid: Pid,
    session: &mut RemoteSession<'_>,
    discards: [Discards; COUNT],
) -> Result<[OwnedFd; COUNT], TrackError> {
    let flags = userfaultfd::USER_MODE_ONLY | userfaultfd::CREATE_FLAGS;
    let signals = signals(session.tid(), pid)?;
    let create = Query { number: USERFAULTFD, arguments: [flags, 0, 0, 0, 0, 0] };
    let created = session.open(&[create; COUNT], signals)?;
    let ours: Result<Vec<OwnedFd>, TrackError> =
        created.into_iter().map(|created| duplicate_created(pid, session.tid(), created)).collect();
    session.close_opened(signals)?;
    let ours = ours?;
    for (fd, discards) in ours.iter().zip(discards) {
        userfaultfd::begin(fd.as_fd(), discards)?;
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

fn duplicate(pid: Pid, fd: u64) -> Result<OwnedFd, Error> {
    let handle = sys::pidfd::open(pid)?;
    sys::pidfd::duplicate(handle.as_fd(), pid, Fd(fd as i32))
}
