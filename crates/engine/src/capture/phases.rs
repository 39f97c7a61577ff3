//! The phases of a checkpoint, and the duration of each phase.
//!
//! Owns: the table of phases, which every report and plot iterates.
//! Invariants: the phases inside the pause add up to the pause.
//! Does not: keep the phases of earlier checkpoints.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::time::{Duration, Instant};

use image::Timings;
use model::PageCount;
use sys::clock::Clock;

/// Declares the phases in the order of their execution, grouped by stage.
macro_rules! phases {
    ($($stage:ident { $($(#[$covers:meta])* $phase:ident = $name:literal,)* })*) => {
        /// A phase of a checkpoint.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Phase {
            $($($(#[$covers])* $phase,)*)*
        }

        impl Phase {
            /// All phases, in the order of their execution.
            pub const ALL: &[Self] = &[$($(Self::$phase,)*)*];

            const TABLE: &[(&str, &str, Stage)] =
                &[$($(($name, concat!($name, "_us"), Stage::$stage),)*)*];

            /// Returns the name of the phase.
            #[must_use]
            pub const fn name(self) -> &'static str {
                Self::TABLE[self as usize].0
            }

            /// Returns the key of the duration of the phase in reports, in microseconds.
            #[must_use]
            pub const fn key(self) -> &'static str {
                Self::TABLE[self as usize].1
            }

            const fn stage(self) -> Stage {
                Self::TABLE[self as usize].2
            }
        }
    };
}

phases! {
    Running {
        /// Scan of the running tree.
        Inspect = "look",
        /// Wait until the log has free buffers for the pages of the pause (backpressure).
        Backpressure = "room",
        /// Pre-copy (copies while the subject runs) and slices (short stops that copy). Includes the rounds
        /// and slices after `Prepare`.
        Precopy = "precopy",
        /// Scan of the descriptors of the running tree.
        Prepare = "prepare",
    }
    Stopping {
        /// From the stop of the first thread to the stop of the last thread.
        Stop = "stop",
        /// Comparison of processes and mappings with the known state. The trackers, which find written pages,
        /// receive new mappings.
        Areas = "areas",
        /// Comparison of the descriptor tables with the known state.
        Tables = "tables",
    }
    Capturing {
        /// State of the open file descriptions.
        Descriptors = "descriptors",
        /// Binding the state of watched files to the checkpoint.
        Files = "files",
        /// Registers and state of threads and processes.
        Threads = "threads",
        /// The last scan for dirty pages, without the part that a worker pool did during earlier phases.
        Scan = "scan",
        /// Copies of the pages that pre-copy did not copy, and of the pages that have changed since their
        /// pre-copy.
        Copy = "copy",
        /// Copies of shared objects.
        Objects = "objects",
    }
    Resuming {
        /// From the resume of the first thread to the resume of the last thread.
        Resume = "resume",
    }
    After {
        /// Parsing the captured state, and submitting the checkpoint to the log.
        Finish = "finish",
    }
}

/// A part of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Running,
    Stopping,
    Capturing,
    Resuming,
    After,
}

impl Phase {
    /// Reports whether this phase precedes the pause.
    #[must_use]
    pub fn precedes_pause(self) -> bool {
        self.stage() == Stage::Running
    }

    fn is_in_pause(self) -> bool {
        !matches!(self.stage(), Stage::Running | Stage::After)
    }
}

/// The duration of each phase of one checkpoint, indexed by phase.
#[derive(Clone, Copy)]
pub struct Phases {
    /// The time at which the stop began. Before the stop, the time at which the checkpoint began.
    pub began: Instant,
    /// The number of pages that the scan inside the pause covered.
    pub scanned: PageCount,
    took: [Duration; Phase::ALL.len()],
}

impl Phases {
    /// Creates the phases of a checkpoint that begins now. All durations are zero.
    pub(super) fn new() -> Self {
        let took = [Duration::ZERO; Phase::ALL.len()];
        Self { began: Clock::default().now(), scanned: PageCount(0), took }
    }

    /// Returns each phase and its duration, in the order of execution.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, Duration)> {
        Phase::ALL.iter().map(|phase| (*phase, self[*phase]))
    }

    /// Returns how long the part of the pause after `Phase::Copy` took.
    pub(super) fn after_copy(&self) -> Duration {
        let after = self.iter().skip_while(|(phase, _)| *phase != Phase::Copy).skip(1);
        after.filter(|(phase, _)| phase.is_in_pause()).map(|(_, took)| took).sum()
    }

    /// Returns the time from the stop of the first thread to the resume of the last thread.
    #[must_use]
    pub fn pause(&self) -> Duration {
        Phase::ALL.iter().filter(|phase| phase.is_in_pause()).map(|phase| self[*phase]).sum()
    }

    /// Returns the summary for the commit record.
    #[must_use]
    pub fn timings(&self) -> Timings {
        Timings {
            pause: self.pause(),
            stop: self[Phase::Stop],
            scan: self[Phase::Scan],
            copy: self[Phase::Copy] + self[Phase::Objects],
        }
    }
}

impl Index<Phase> for Phases {
    type Output = Duration;

    fn index(&self, phase: Phase) -> &Duration {
        &self.took[phase as usize]
    }
}

impl IndexMut<Phase> for Phases {
    fn index_mut(&mut self, phase: Phase) -> &mut Duration {
        &mut self.took[phase as usize]
    }
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(phase, took)| (phase.name(), took))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_comes_once_and_the_stages_are_consecutive() {
        assert!(Phase::ALL.iter().enumerate().all(|(place, phase)| *phase as usize == place));
        let mut stages: Vec<Stage> = Phase::ALL.iter().map(|phase| phase.stage()).collect();
        stages.dedup();
        assert_eq!(
            stages,
            [Stage::Running, Stage::Stopping, Stage::Capturing, Stage::Resuming, Stage::After]
        );
    }

    #[test]
    fn objects_and_the_resume_follow_the_copies() {
        let mut phases = Phases::new();
        Phase::ALL.iter().for_each(|phase| phases[*phase] = Duration::from_millis(1));
        assert_eq!(phases.pause(), Duration::from_millis(10));
        assert_eq!(phases.after_copy(), Duration::from_millis(2));
    }
}
