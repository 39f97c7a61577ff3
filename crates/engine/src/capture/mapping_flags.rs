//! Reads the flags of mappings, which only `/proc/PID/smaps` shows.
//!
//! Owns: the interval between two reads, which depends on the cost of a read, and on whether the mappings can have
//! changed; the distinction between a userfaultfd of a tracker and a userfaultfd of the program.
//! Invariants: flags are read while the subject runs. Mappings with unknown flags are read after every pause.
//! The flag of watched writes is removed only if a tracker is attached to this address space.
//! Does not: detect a change of flags (madvise(2), mlock(2)) of a whole existing mapping before the next
//! read. The list of mappings does not show such a change.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use model::Pid;
use sys::clock::Clock;
use sys::kcmp;
use sys::mapping_changes::MappingChanges;
use tracee::procfs::{self, Mapping};

use crate::error::Result;

/// The minimum time between two reads.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The interval is at least this multiple of the duration of the reads of all processes, because the kernel walks all
/// pages of the subject for these reads.
const COST_PART: u32 = 50;
/// If the kernel shows that no mapping has changed since the last read, the interval is this many times as long. The flags
/// are still read, because a kernel may change some flag without counting this as a change.
const UNCHANGED_FACTOR: u32 = 50;
/// The flag of mappings that a userfaultfd watches for writes. In a tracked process, the tracker is the cause
/// of this flag.
const WATCHED: &str = "uw";
/// The flag of mappings with soft-dirty pages. The kernel changes this flag by itself.
const SOFT_DIRTY: &str = "sd";

/// The state of the flags of one process's mappings.
pub(super) struct FlagState {
    /// `true` if some mappings are new. A new mapping has the flags of the earlier mapping at its address, or
    /// no flags.
    pub(super) has_old: bool,
    clock: Clock,
    read_at: Instant,
    /// The count of changes (see `MappingChanges`) before the last read; `None` if unknown.
    count: Option<u64>,
    /// The duration of the last read.
    pub(super) cost: Duration,
}

impl FlagState {
    /// Records a read of the flags that began at `began` and has just ended.
    pub(super) fn read_since(clock: Clock, began: Instant) -> Self {
        let read_at = clock.now();
        Self { has_old: false, clock, read_at, count: None, cost: read_at - began }
    }

    /// Reads the flags again if a read is due. `of_all` is the duration of the last reads of all processes together.
    /// Returns whether any flag may have changed.
    pub(super) fn complete(
        &mut self,
        pid: Pid,
        mappings: &mut [Mapping],
        of_all: Duration,
        changes: &mut MappingChanges,
    ) -> Result<bool> {
        let had_old = std::mem::take(&mut self.has_old);
        let interval = INTERVAL_MIN.max(of_all * COST_PART);
        let since = self.clock.now() - self.read_at;
        if !had_old && since < interval {
            return Ok(false);
        }
        // The count precedes the read: the next call then notices a change during the read.
        let count = changes.count(pid);
        if !had_old && count.is_some() && count == self.count && since < interval * UNCHANGED_FACTOR {
            return Ok(false);
        }
        let began = self.clock.now();
        let now = procfs::mappings_with_flags(pid)?;
        *self = Self { count, ..Self::read_since(self.clock.clone(), began) };
        let has_changed = take_over(mappings, now, had_old);
        Ok(had_old || has_changed)
    }
}

/// Copies the flags in `now` to the mappings in `mappings` that still exist. A mapping may have been split in
/// the meantime. The flags of its first part are then used only with `parts_count`, which the caller sets if
/// flags are unknown. Returns whether any flag has changed.
fn take_over(mappings: &mut [Mapping], now: Vec<Mapping>, parts_count: bool) -> bool {
    let lasting = |flag: &&str| *flag != SOFT_DIRTY;
    let mut has_changed = false;
    for mut now in now {
        now.flags.remove(WATCHED);
        let found = mappings.binary_search_by_key(&now.range.start, |mapping| mapping.range.start);
        let mapping = found.ok().and_then(|index| mappings.get_mut(index));
        let is_same = |mapping: &&mut Mapping| {
            mapping.backing == now.backing && (parts_count || mapping.range == now.range)
        };
        if let Some(mapping) = mapping.filter(is_same) {
            has_changed |= !mapping.flags.iter().filter(lasting).eq(now.flags.iter().filter(lasting));
            mapping.flags = now.flags;
        }
    }
    has_changed
}

/// Removes the flag of watched writes if a tracker of this program watches the writes. A tracked process has
/// such a tracker. A child between vfork(2) and execve(2) shares the address space of its parent, and thereby
/// the tracker. A userfaultfd of the subject itself is refused as a descriptor.
pub(super) fn forget_own_watch(pid: Pid, mappings: &mut [Mapping], tracked: &HashSet<Pid>) {
    if !mappings.iter().any(|mapping| mapping.flags.has(WATCHED)) {
        return;
    }
    let shares = |other: &Pid| kcmp::shared(kcmp::Shared::Memory, pid, *other).unwrap_or(false);
    if tracked.iter().any(|other| *other == pid || shares(other)) {
        mappings.iter_mut().for_each(|mapping| mapping.flags.remove(WATCHED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Vec<Mapping> {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr uw\n";
        tracee::procfs::mappings_in(text).unwrap()
    }

    #[test]
    fn a_watch_is_ours_only_in_the_address_space_of_a_tracked_process() {
        let own = Pid(std::process::id() as i32);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let other = Pid(child.id() as i32);
        let is_left = |pid, tracked: &[Pid]| {
            let tracked = tracked.iter().copied().collect();
            let mut mappings = watched();
            forget_own_watch(pid, &mut mappings, &tracked);
            mappings[0].flags.has(WATCHED)
        };
        assert!(!is_left(own, &[other, own]));
        assert!(is_left(own, &[]));
        assert!(is_left(other, &[own]));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn mappings(flags: &str) -> Vec<Mapping> {
        let text = format!(
            "1000-3000 rw-p 00000000 00:00 0\nVmFlags: rd wr {flags}\n5000-6000 rw-p 00000000 00:00 0\nVmFlags: rd\n"
        );
        procfs::mappings_in(text.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn advice_for_a_whole_mapping_is_taken_over() {
        let mut known = mappings("sd ");
        assert!(!take_over(&mut known, mappings("uw "), false), "tracking is no change");
        assert!(take_over(&mut known, mappings("dc uw "), false));
        assert!(known[0].flags.has("dc") && !known[0].flags.has("uw"));
    }

    #[test]
    fn a_part_of_a_mapping_does_not_speak_for_all_of_it() {
        let mut known = mappings("");
        let mut now = mappings("dc ");
        now[0].range.end = model::Address(0x2000);
        assert!(!take_over(&mut known, now.clone(), false));
        assert!(!known[0].flags.has("dc"));
        assert!(take_over(&mut known, now, true));
    }

    #[test]
    fn flags_are_read_again_when_they_are_old_and_when_their_time_has_come() {
        let pid = Pid(std::process::id() as i32);
        let clock = Clock::by_hand();
        let (mut mappings, mut changes) =
            (procfs::mappings(pid).unwrap_or_default(), MappingChanges::default());
        let mut state = FlagState::read_since(clock.clone(), clock.now());
        clock.advance(2 * INTERVAL_MIN);
        assert!(
            state
                .complete(pid, &mut mappings, Duration::ZERO, &mut changes)
                .is_ok_and(|has_changed| has_changed)
        );
        assert!(mappings.iter().any(|mapping| mapping.flags.has("rd")));
        assert!(
            state
                .complete(pid, &mut mappings, Duration::ZERO, &mut changes)
                .is_ok_and(|has_changed| !has_changed)
        );
        // An expensive read is made less often.
        clock.advance(2 * INTERVAL_MIN);
        assert!(
            state
                .complete(pid, &mut mappings, INTERVAL_MIN, &mut changes)
                .is_ok_and(|has_changed| !has_changed)
        );
        state.has_old = true;
        assert!(
            state
                .complete(pid, &mut mappings, Duration::ZERO, &mut changes)
                .is_ok_and(|has_changed| has_changed)
                && !state.has_old
        );
    }
    #[test]
    fn flags_of_unchanged_mappings_are_read_rarely() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        let mut changes = MappingChanges::default();
        // When the program sleeps, its mappings no longer change.
        while !procfs::read_text(format!("/proc/{pid}/wchan")).is_ok_and(|place| place.contains("nanosleep"))
        {
            std::thread::yield_now();
        }
        let clock = Clock::by_hand();
        let mut known = procfs::mappings(pid).unwrap();
        let mut state = FlagState::read_since(clock.clone(), clock.now());
        let mut is_read = |state: &mut FlagState, interval: Duration| {
            clock.advance(interval);
            known.iter_mut().for_each(|mapping| mapping.flags = mappings("")[1].flags.clone());
            state.complete(pid, &mut known, Duration::ZERO, &mut changes).unwrap()
        };
        assert!(is_read(&mut state, 2 * INTERVAL_MIN), "the count is not known yet");
        let is_counted = state.count.is_some();
        assert_eq!(is_read(&mut state, 2 * INTERVAL_MIN), !is_counted, "nothing has changed");
        assert!(is_read(&mut state, (UNCHANGED_FACTOR + 1) * INTERVAL_MIN), "the last read is long ago");
        state.count = state.count.map(|count| count.wrapping_sub(1));
        assert!(is_read(&mut state, 2 * INTERVAL_MIN), "mappings may have changed");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
