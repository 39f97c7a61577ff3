//! The search for the process that has a socket open.
//!
//! Owns: the scan of descriptor tables.
//! Invariants: a socket is reported as absent only if no process that is visible to this process has it open.
//! Does not: find a descriptor that is part of a queued message to another process.

use std::path::Path;

use model::{Fd, Inode, Pid, Tid};
use sys::sock_diag::SockDiag;
use tracee::procfs::{self, Stat};
use tracee::tree;

use crate::held::{Slot, Taken};
use crate::place::Identity;

/// Searches for a socket: at its last location, then in a process tree, then in all other processes. This process and
/// its copies are left out. The last step finds processes that have left the tree (daemons), and processes that have
/// received the descriptor in a message.
pub(crate) fn find(identity: Identity, last: Option<Slot>, root: Pid) -> Option<Slot> {
    let wanted = format!("socket:[{}]", identity.1);
    let has = |(pid, fd): Slot| {
        procfs::link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|target| target.as_os_str() == &*wanted)
    };
    if let Some(slot) = last.filter(|slot| has(*slot)) {
        return Some(slot);
    }
    let in_process = |pid: Pid| {
        let descriptors = procfs::descriptors(pid).unwrap_or_default();
        descriptors.into_iter().map(|fd: Fd| (pid, fd)).find(|slot| has(*slot))
    };
    let tree = tree::descendants(root).unwrap_or_default();
    if let Some(slot) = tree.iter().copied().find_map(in_process) {
        return Some(slot);
    }
    let own = procfs::stat(Pid(std::process::id() as i32)).ok()?;
    let is_other = |pid: &Pid| *pid != own.pid && !tree.contains(pid) && !is_copy(*pid, &own);
    procfs::processes().unwrap_or_default().into_iter().filter(is_other).find_map(in_process)
}

/// Returns the listening sockets of a process tree, without duplicates. Processes and descriptors that no longer exist
/// are skipped.
///
/// # Errors
///
/// An error if the kernel cannot list the listening sockets.
pub(crate) fn listeners(root: Pid) -> sys::Result<Vec<Taken>> {
    let listening = SockDiag::open()?.listening()?;
    let mut found: Vec<Taken> = Vec::new();
    for pid in tree::descendants(root).unwrap_or_default() {
        for fd in procfs::descriptors(pid).unwrap_or_default() {
            let inode = procfs::link(format!("/proc/{pid}/fd/{fd}")).ok().and_then(|link| socket_in(&link));
            if !inode.is_some_and(|inode| listening.contains(&inode)) {
                continue;
            }
            let taken = Taken::of_thread(Tid(pid.get()), fd);
            let is_new = |taken: &Taken| found.iter().all(|known| known.identity != taken.identity);
            found.extend(taken.filter(is_new));
        }
    }
    Ok(found)
}

fn socket_in(link: &Path) -> Option<Inode> {
    let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok().map(Inode)
}

/// Reports whether a process is a child of this process that has not executed its program yet. Such a child has
/// duplicates of all descriptors.
fn is_copy(pid: Pid, own: &Stat) -> bool {
    let layout = |stat: &Stat| (stat.startcode, stat.startstack, stat.start_brk, stat.arg_start);
    procfs::stat(pid).is_ok_and(|stat| stat.ppid == own.pid && layout(&stat) == layout(own))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::held::identity_of;

    #[test]
    fn a_socket_is_found_in_a_tree_outside_of_it_and_nowhere() {
        let (kept, passed) = std::os::unix::net::UnixStream::pair().unwrap();
        let identity = identity_of(passed.as_fd()).unwrap();
        let own = Pid(std::process::id() as i32);
        // Only this process has the socket. For a moment, children of other tests also have duplicates, until they
        // execute a program.
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let other_pid = Pid(other.id() as i32);
        testkit::until("the end of copies", || find(identity, None, other_pid).is_none().then_some(()));
        let input = Stdio::from(std::os::fd::OwnedFd::from(passed));
        let mut child = Command::new("sleep").arg("600").stdin(input).spawn().unwrap();
        let slot = (Pid(child.id() as i32), Fd(0));
        assert_eq!(find(identity, None, own), Some(slot));
        assert_eq!(find(identity, None, other_pid), Some(slot));
        assert_eq!(find(identity, Some(slot), other_pid), Some(slot));
        assert_eq!(find(identity, Some((own, Fd(kept.as_raw_fd()))), own), Some(slot));
        for process in [&mut child, &mut other] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}
