//! Which process has a socket.
//!
//! Owns: the scan of descriptor tables.
//! Invariants: a socket counts as absent only if no process that this one may see has it.
//! Does not: see descriptors that are in a message on their way to another process.

use std::path::Path;

use model::{Fd, Inode, Pid, Tid};
use sys::sock_diag::SockDiag;
use tracee::procfs::{self, Stat};
use tracee::tree;

use crate::held::{Slot, Taken};
use crate::place::Identity;

/// Looks for a socket: where it was found last, in a tree, then in every process but this one and its copies. The last step
/// finds processes that left the tree (daemons), and those that got the descriptor in a message.
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

/// The listening sockets of a tree, each once. Processes and descriptors that are gone by now have none.
///
/// # Errors
///
/// If the kernel lists no sockets.
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

/// Whether a process is a child of this one that has not executed its program yet: it has copies of all descriptors.
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
        // In this process alone, and for moments in children of other tests before they execute a program.
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
