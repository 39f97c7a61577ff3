//! Telling our own watch over writes from one of the program's.
//!
//! Owns: the smaps flag of areas that are registered for write protection.
//! Invariants: the flag is removed only where a tracker of ours is attached to that very address space.
//! Does not: register or unregister; trackers do.

use std::collections::HashSet;

use model::Pid;
use sys::kcmp;
use tracee::procfs::Area;

/// The flag of areas whose writes a userfaultfd watches.
pub(super) const WATCHED: &str = "uw";

/// Removes the flag of watched writes where the watch is ours: in a tracked process, and in one that shares the address
/// space of one, as a child does between vfork and exec. A program's own userfaultfd is refused as a descriptor.
pub(super) fn forget_own_watch(pid: Pid, areas: &mut [Area], tracked: &HashSet<Pid>) {
    if !areas.iter().any(|area| area.flags.has(WATCHED)) {
        return;
    }
    let shares = |other: &Pid| kcmp::shared(kcmp::Shared::Memory, pid, *other).unwrap_or(false);
    if tracked.iter().any(|other| *other == pid || shares(other)) {
        areas.iter_mut().for_each(|area| area.flags.remove(WATCHED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Vec<Area> {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr uw\n";
        tracee::procfs::areas_in(text).unwrap()
    }

    #[test]
    fn a_watch_is_ours_only_in_the_address_space_of_a_tracked_process() {
        let own = Pid(std::process::id() as i32);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = Pid(child.id() as i32);
        let is_left = |pid, tracked: &[Pid]| {
            let tracked = tracked.iter().copied().collect();
            let mut areas = watched();
            forget_own_watch(pid, &mut areas, &tracked);
            areas[0].flags.has(WATCHED)
        };
        assert!(!is_left(own, &[other, own]));
        assert!(is_left(own, &[]));
        assert!(is_left(other, &[own]));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
