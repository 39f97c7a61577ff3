//! Detects failures of processes of a subject other than its root. With `--restart-on child-signal`, such a failure
//! counts as a death of the whole subject.
//!
//! Owns: the set of processes of the subject, the deaths that count, and the checkpoints that were taken after a death.
//! Invariants: a process belongs to the subject if its parent belonged to the subject at the fork. A checkpoint that
//! may have been taken after a death always counts as later than the death.
//! Does not: end or restart a process.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use model::{Pid, ProcessKey, Sequence, Signal};
use sys::features::{self, Feature};
use sys::process_events::{ProcessEvent, ProcessEvents};
use tracee::tree;

use crate::error::Result;
use crate::inspection::missing;

/// Signals by which a process fails, or is killed when memory runs out: KILL, SEGV, BUS, ABRT.
const FAILURES: [Signal; 4] = [Signal(9), Signal(11), Signal(7), Signal(6)];
/// Maximum number of remembered checkpoints. Fewer checkpoints are taken between a death and the report of the death.
const REMEMBERED: usize = 1024;

/// The death of a process of the subject other than the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChildDeath {
    pub(super) pid: Pid,
    pub(super) signal: Signal,
    /// The time of birth of the process on CLOCK_MONOTONIC, or the reported time of the death if the birth was not
    /// reported. The reported time of a death can be too late: the kernel first wakes the parent, and then records the
    /// time. A checkpoint may be taken in between.
    alive_at: Duration,
}

/// A checkpoint of the subject.
#[derive(Debug)]
struct Taken {
    sequence: Sequence,
    /// The end of the pause for the checkpoint, on CLOCK_MONOTONIC.
    stopped: Duration,
    /// The living processes that the checkpoint contains, without the root, in ascending order.
    living: Arc<[Pid]>,
}

/// A received event that the guard has to handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChildEvent {
    /// A process of the subject has failed.
    Death(ChildDeath),
    /// Events were lost, so a death may not have been reported.
    Lost,
}

/// Receives the deaths of the processes of one subject.
#[derive(Debug)]
pub(crate) struct Children {
    events: ProcessEvents,
    family: Family,
    /// Events that `begin` has received, and `poll` has not returned yet.
    early: VecDeque<ChildEvent>,
    taken: VecDeque<Taken>,
}

impl Children {
    /// Subscribes to process events of the kernel. Must be called before there is a subject.
    pub(super) fn listen() -> Result<Self> {
        let subscribed =
            if features::enabled(Feature::ProcessEvents) { ProcessEvents::subscribe().ok() } else { None };
        let events = subscribed.ok_or_else(|| missing(Feature::ProcessEvents))?;
        Ok(Self { events, family: Family::of(Pid(0)), early: VecDeque::new(), taken: VecDeque::new() })
    }

    /// Begins to follow an incarnation. No process of the incarnation ran before `since`, a time on CLOCK_MONOTONIC.
    /// Deaths before `since` do not count, because they belong to the previous incarnation, or to the construction of
    /// this incarnation.
    pub(super) fn begin(&mut self, root: Pid, since: Duration) -> Result<()> {
        self.family = Family::of(root);
        self.early.clear();
        while let Some(event) = self.events.poll()? {
            self.early.extend(self.family.receive_since(event, since));
        }
        // Births before the subscription were not reported, so the tree is scanned.
        self.family.scan();
        Ok(())
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.events.handle()
    }

    /// Returns the next event that counts, if there is one.
    pub(super) fn poll(&mut self) -> Result<Option<ChildEvent>> {
        if let Some(event) = self.early.pop_front() {
            return Ok(Some(event));
        }
        while let Some(event) = self.events.poll()? {
            if event == ProcessEvent::Lost {
                // Births may be among the lost events. This scan finds the new processes that still live.
                self.family.scan();
                return Ok(Some(ChildEvent::Lost));
            }
            if let Some(death) = self.family.receive(event) {
                return Ok(Some(ChildEvent::Death(death)));
            }
        }
        Ok(None)
    }

    /// Records a checkpoint. `ago` is the time since the end of the pause.
    pub(super) fn note_taken(&mut self, sequence: Sequence, descendants: &[ProcessKey], ago: Duration) {
        let stopped = sys::clock::monotonic().saturating_sub(ago);
        let mut living: Vec<Pid> = descendants.iter().map(|key| key.pid).collect();
        living.sort_unstable();
        // Most checkpoints contain the same processes as the previous checkpoint.
        let living = match self.taken.back() {
            Some(last) if *last.living == *living => Arc::clone(&last.living),
            _ => living.into(),
        };
        self.taken.push_back(Taken { sequence, stopped, living });
        if self.taken.len() > REMEMBERED {
            self.taken.pop_front();
        }
    }

    /// Returns the checkpoints that may have been taken after a death.
    pub(super) fn taken_after(&self, death: ChildDeath) -> Vec<Sequence> {
        taken_after(&self.taken, death)
    }
}

/// Returns the checkpoints that may have been taken after a death. A checkpoint precedes the death if the checkpoint
/// was taken before `alive_at`. A checkpoint also precedes the death if this checkpoint, or a later checkpoint,
/// contains the living process.
fn taken_after(taken: &VecDeque<Taken>, death: ChildDeath) -> Vec<Sequence> {
    let is_later = |taken: &&Taken| taken.stopped > death.alive_at;
    let holds_it = |taken: &Taken| taken.living.binary_search(&death.pid).is_ok();
    let mut after: Vec<_> = taken
        .iter()
        .rev()
        .take_while(is_later)
        .take_while(|taken| !holds_it(taken))
        .map(|taken| taken.sequence)
        .collect();
    after.reverse();
    after
}

/// The processes of a subject, updated by the process events of the kernel.
#[derive(Debug)]
struct Family {
    root: Pid,
    /// The time of birth of each process; `None` if the birth was not reported. A dead process stays in the map until a
    /// process outside of the subject gets its pid.
    members: HashMap<Pid, Option<Duration>>,
}

impl Family {
    fn of(root: Pid) -> Self {
        Self { root, members: HashMap::from([(root, None)]) }
    }

    fn scan(&mut self) {
        for pid in tree::descendants(self.root).unwrap_or_default() {
            self.members.entry(pid).or_default();
        }
    }

    /// Handles an event that arrived before `begin`. Returns the event if the event counts for this incarnation.
    fn receive_since(&mut self, event: ProcessEvent, since: Duration) -> Option<ChildEvent> {
        match event {
            ProcessEvent::Lost => Some(ChildEvent::Lost),
            ProcessEvent::Killed { at, .. } if at < since => None,
            event => self.receive(event).map(ChildEvent::Death),
        }
    }

    fn receive(&mut self, event: ProcessEvent) -> Option<ChildDeath> {
        match event {
            // The guardian has created the root. The guardian is not a member, so the next case would remove the root.
            ProcessEvent::Forked { child, .. } if child == self.root => None,
            ProcessEvent::Forked { parent, child, at } => {
                if self.members.contains_key(&parent) {
                    self.members.insert(child, Some(at));
                } else {
                    self.members.remove(&child);
                }
                None
            }
            ProcessEvent::Killed { pid, signal, at } => {
                let counts = pid != self.root && FAILURES.contains(&signal);
                let born = self.members.get(&pid).filter(|_| counts)?;
                Some(ChildDeath { pid, signal, alive_at: born.unwrap_or(at) })
            }
            ProcessEvent::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGV: Signal = Signal(11);
    const BIRTH: Duration = Duration::from_secs(10);
    const DEATH: Duration = Duration::from_secs(20);
    const MOMENT: Duration = Duration::from_micros(1);

    fn family() -> Family {
        Family::of(Pid(10))
    }

    fn forked(parent: i32, child: i32) -> ProcessEvent {
        ProcessEvent::Forked { parent: Pid(parent), child: Pid(child), at: BIRTH }
    }

    fn killed(pid: i32, signal: Signal) -> ProcessEvent {
        ProcessEvent::Killed { pid: Pid(pid), signal, at: DEATH }
    }

    /// Builds checkpoints 1, 2, … from their times. The flag states whether the checkpoint contains process 11.
    fn checkpoints(of: &[(Duration, bool)]) -> VecDeque<Taken> {
        let taken = |(index, &(stopped, holds_it)): (usize, &(Duration, bool))| Taken {
            sequence: Sequence(index as u64 + 1),
            stopped,
            living: if holds_it { [Pid(11), Pid(12)].into() } else { [Pid(12)].into() },
        };
        of.iter().enumerate().map(taken).collect()
    }

    #[test]
    fn a_child_that_dies_before_its_incarnation_is_known_counts_and_one_of_the_construction_does_not() {
        let mut family = family();
        for event in [forked(1, 10), forked(10, 11), forked(11, 12)] {
            assert_eq!(family.receive_since(event, DEATH), None);
        }
        let early = ProcessEvent::Killed { pid: Pid(12), signal: SEGV, at: DEATH - MOMENT };
        assert_eq!(family.receive_since(early, DEATH), None);
        assert!(matches!(family.receive_since(killed(11, SEGV), DEATH), Some(ChildEvent::Death(_))));
        assert_eq!(family.receive_since(ProcessEvent::Lost, DEATH), Some(ChildEvent::Lost));
    }

    #[test]
    fn grandchildren_count_and_strangers_do_not() {
        let mut family = family();
        assert_eq!(family.receive(forked(10, 11)), None);
        assert_eq!(family.receive(forked(11, 12)), None);
        assert_eq!(family.receive(forked(1, 13)), None);
        assert_eq!(family.receive(killed(13, SEGV)), None);
        assert_eq!(family.receive(killed(12, SEGV)).map(|death| death.pid), Some(Pid(12)));
    }

    #[test]
    fn the_root_is_judged_elsewhere_and_a_request_to_end_is_no_failure() {
        let mut family = family();
        family.receive(forked(10, 11));
        assert_eq!(family.receive(killed(10, SEGV)), None);
        assert_eq!(family.receive(killed(11, Signal(15))), None);
        assert_eq!(family.receive(killed(11, Signal(13))), None);
        assert!(family.receive(killed(11, Signal(9))).is_some());
    }

    #[test]
    fn a_pid_that_a_stranger_has_got_is_no_longer_the_subjects() {
        let mut family = family();
        family.receive(forked(10, 11));
        family.receive(forked(1, 11));
        assert_eq!(family.receive(killed(11, SEGV)), None);
        family.receive(forked(11, 14));
        assert_eq!(family.receive(killed(14, SEGV)), None);
    }

    #[test]
    fn a_checkpoint_without_the_process_is_later_than_its_death_whatever_time_was_reported() {
        let mut family = family();
        family.receive(forked(10, 11));
        let death = family.receive(killed(11, SEGV)).unwrap();
        let before_birth = (BIRTH - MOMENT, false);
        let taken = checkpoints(&[before_birth, (BIRTH + MOMENT, true), (DEATH - MOMENT, false)]);
        assert_eq!(taken_after(&taken, death), [Sequence(3)]);
        // No checkpoint contains the process, so each checkpoint since its birth may be later than its death.
        let taken = checkpoints(&[before_birth, (BIRTH + MOMENT, false), (DEATH + MOMENT, false)]);
        assert_eq!(taken_after(&taken, death), [Sequence(2), Sequence(3)]);
    }

    #[test]
    fn a_process_of_unknown_birth_is_judged_by_what_checkpoints_hold_and_by_its_death() {
        let mut family = family();
        family.members.insert(Pid(11), None);
        let death = family.receive(killed(11, SEGV)).unwrap();
        let taken = checkpoints(&[
            (BIRTH, true),
            (DEATH - MOMENT, true),
            (DEATH + MOMENT, true),
            (DEATH + MOMENT, false),
        ]);
        assert_eq!(taken_after(&taken, death), [Sequence(4)]);
    }
}
