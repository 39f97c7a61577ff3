//! Deaths of the subject's other processes, for `--restart-on child-signal`.
//!
//! Owns: which processes are the subject's, from their start to their end; which of their deaths count; which
//! checkpoints were taken after one.
//! Invariants: a process belongs to the subject if its parent did when it was started, however short it lived; a
//! checkpoint that may hold the tree without the dead child is never counted as older than the death.
//! Does not: end or restart anything.

use std::collections::{HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use model::{Pid, Sequence, Signal};
use rustix::time::{ClockId, clock_gettime};
use sys::features::{self, Feature};
use sys::process_events::{ProcessEvent, ProcessEvents};
use tracee::tree;

use crate::error::Result;
use crate::inspection::missing;

/// Those by which a process fails, or is ended when memory runs out: KILL, SEGV, BUS, ABRT.
const FAILURES: [Signal; 4] = [Signal(9), Signal(11), Signal(7), Signal(6)];
/// Checkpoints whose time is remembered: more than are taken between a death and its notice.
const REMEMBERED: usize = 1024;

/// The death of a process of the subject that is not its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChildDeath {
    pub(super) pid: Pid,
    pub(super) signal: Signal,
    /// When, on CLOCK_MONOTONIC.
    at: Duration,
}

/// What has been heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// A process of the subject has failed.
    Death(ChildDeath),
    /// Events were lost: a death may have passed unseen.
    Lost,
}

/// Hears of the deaths.
#[derive(Debug)]
pub(super) struct Children {
    events: ProcessEvents,
    family: Family,
    /// Checkpoints, and when at the latest the subject was stopped for each.
    taken: VecDeque<(Sequence, Duration)>,
}

impl Children {
    /// Begins to listen, before there is a subject.
    pub(super) fn listen() -> Result<Self> {
        let subscribed =
            if features::enabled(Feature::ProcessEvents) { ProcessEvents::subscribe().ok() } else { None };
        let events = subscribed.ok_or_else(|| missing(Feature::ProcessEvents))?;
        Ok(Self { events, family: Family::of_nobody(), taken: VecDeque::new() })
    }

    /// A life begins; the deaths of the one before count no more.
    pub(super) fn begin(&mut self, root: Pid) -> Result<()> {
        while self.events.poll()?.is_some() {}
        self.family = Family::of(root);
        Ok(())
    }

    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.events.handle()
    }

    /// The next thing that counts, if something has come.
    pub(super) fn poll(&mut self) -> Result<Option<Heard>> {
        while let Some(event) = self.events.poll()? {
            if event == ProcessEvent::Lost {
                // Those that were started meanwhile are found if they live.
                self.family.look();
                return Ok(Some(Heard::Lost));
            }
            if let Some(death) = self.family.hear(event) {
                return Ok(Some(Heard::Death(death)));
            }
        }
        Ok(None)
    }

    /// A checkpoint has been taken just now, or some time ago.
    pub(super) fn note_taken(&mut self, sequence: Sequence) {
        let now = clock_gettime(ClockId::Monotonic);
        self.taken.push_back((sequence, Duration::new(now.tv_sec as u64, now.tv_nsec as u32)));
        if self.taken.len() > REMEMBERED {
            self.taken.pop_front();
        }
    }

    /// Checkpoints that may hold the tree as it was after a death.
    pub(super) fn taken_after(&self, death: ChildDeath) -> Vec<Sequence> {
        self.taken.iter().filter(|(_, time)| *time >= death.at).map(|(sequence, _)| *sequence).collect()
    }
}

/// The processes of a subject, by what is told of them.
#[derive(Debug)]
struct Family {
    root: Pid,
    /// Also the dead, until their number is given to a stranger.
    members: HashSet<Pid>,
}

impl Family {
    fn of_nobody() -> Self {
        Self { root: Pid(0), members: HashSet::new() }
    }

    fn of(root: Pid) -> Self {
        let mut family = Self { root, members: HashSet::from([root]) };
        family.look();
        family
    }

    fn look(&mut self) {
        self.members.extend(tree::descendants(self.root).unwrap_or_default());
    }

    fn hear(&mut self, event: ProcessEvent) -> Option<ChildDeath> {
        match event {
            ProcessEvent::Forked { parent, child } => {
                if self.members.contains(&parent) {
                    self.members.insert(child);
                } else {
                    self.members.remove(&child);
                }
                None
            }
            ProcessEvent::Killed { pid, signal, at } => {
                let counts = pid != self.root && self.members.contains(&pid) && FAILURES.contains(&signal);
                counts.then_some(ChildDeath { pid, signal, at })
            }
            ProcessEvent::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGV: Signal = Signal(11);

    fn family() -> Family {
        Family { root: Pid(10), members: HashSet::from([Pid(10)]) }
    }

    fn forked(parent: i32, child: i32) -> ProcessEvent {
        ProcessEvent::Forked { parent: Pid(parent), child: Pid(child) }
    }

    fn killed(pid: i32, signal: Signal) -> ProcessEvent {
        ProcessEvent::Killed { pid: Pid(pid), signal, at: Duration::from_secs(1) }
    }

    #[test]
    fn grandchildren_count_and_strangers_do_not() {
        let mut family = family();
        assert_eq!(family.hear(forked(10, 11)), None);
        assert_eq!(family.hear(forked(11, 12)), None);
        assert_eq!(family.hear(forked(1, 13)), None);
        assert_eq!(family.hear(killed(13, SEGV)), None);
        assert_eq!(family.hear(killed(12, SEGV)).map(|death| death.pid), Some(Pid(12)));
    }

    #[test]
    fn the_root_is_judged_elsewhere_and_a_request_to_end_is_no_failure() {
        let mut family = family();
        family.hear(forked(10, 11));
        assert_eq!(family.hear(killed(10, SEGV)), None);
        assert_eq!(family.hear(killed(11, Signal(15))), None);
        assert_eq!(family.hear(killed(11, Signal(13))), None);
        assert!(family.hear(killed(11, Signal(9))).is_some());
    }

    #[test]
    fn a_number_that_a_stranger_has_got_is_no_longer_the_subjects() {
        let mut family = family();
        family.hear(forked(10, 11));
        family.hear(forked(1, 11));
        assert_eq!(family.hear(killed(11, SEGV)), None);
        family.hear(forked(11, 14));
        assert_eq!(family.hear(killed(14, SEGV)), None);
    }
}
