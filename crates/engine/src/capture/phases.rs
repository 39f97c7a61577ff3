//! What a continuous checkpoint did, and for how long.
//!
//! Owns: the phases, and the clock that tells them apart; it is always on: a reading takes some 30 nanoseconds.
//! Invariants: phases inside the pause add up to the pause.
//! Does not: keep those of earlier checkpoints.

use std::time::{Duration, Instant};

use image::Timings;
use model::PageCount;

/// How long each phase took. `inside` gives those of the pause in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    /// Looking at the running tree.
    pub look: Duration,
    /// Waiting until the log has room for what the pause will copy.
    pub room: Duration,
    /// Pre-copy, all rounds, that after the look at the descriptors included.
    pub precopy: Duration,
    /// Looking at the descriptors of the running tree.
    pub prepare: Duration,
    /// When the threads were told to stop.
    pub began: Instant,
    /// Until all stood.
    pub stop: Duration,
    /// Comparing processes and areas with what they were; telling trackers.
    pub areas: Duration,
    /// Comparing the descriptor tables.
    pub tables: Duration,
    /// Scan, copy and objects came before descriptors and threads, as the tracker needs it.
    pub memory_first: bool,
    /// State of the descriptions.
    pub descriptors: Duration,
    /// Binding the state of watched files to the checkpoint.
    pub files: Duration,
    /// Registers and state of threads and processes.
    pub threads: Duration,
    /// The last scan, as far as it was not done beside what comes before.
    pub scan: Duration,
    /// Copying the residual.
    pub copy: Duration,
    /// Copying shared objects.
    pub objects: Duration,
    /// Letting all threads go on.
    pub resume: Duration,
    /// Parsing what was taken, handing it to the log.
    pub finish: Duration,
    /// Pages that the scan inside the pause went over.
    pub scanned: PageCount,
}

impl Phases {
    pub(super) fn new() -> Self {
        const NONE: Duration = Duration::ZERO;
        Self {
            look: NONE,
            room: NONE,
            precopy: NONE,
            prepare: NONE,
            began: Instant::now(),
            stop: NONE,
            areas: NONE,
            tables: NONE,
            memory_first: false,
            scan: NONE,
            copy: NONE,
            objects: NONE,
            descriptors: NONE,
            files: NONE,
            threads: NONE,
            resume: NONE,
            finish: NONE,
            scanned: PageCount(0),
        }
    }

    /// The part of the pause that follows the copying of pages.
    pub(super) fn after_copy(&self) -> Duration {
        let state = self.descriptors + self.files + self.threads;
        self.objects + self.resume + if self.memory_first { state } else { Duration::ZERO }
    }

    /// From the first thread that was told to stop to the last that went on.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.inside().iter().map(|(_, took)| *took).sum()
    }

    /// The summary that a commit record has.
    #[must_use]
    pub fn timings(&self) -> Timings {
        let Self { stop, scan, copy, objects, .. } = *self;
        Timings { pause: self.pause(), stop, scan, copy: copy + objects }
    }

    /// The phases of the pause by name, in the order in which they came.
    #[must_use]
    pub fn inside(&self) -> [(&'static str, Duration); 10] {
        let mut phases = [
            ("stop", self.stop),
            ("areas", self.areas),
            ("tables", self.tables),
            ("descriptors", self.descriptors),
            ("files", self.files),
            ("threads", self.threads),
            ("scan", self.scan),
            ("copy", self.copy),
            ("objects", self.objects),
            ("resume", self.resume),
        ];
        if self.memory_first {
            // Behind stop, areas and tables: three phases of state, then three of memory.
            phases[3..9].rotate_left(3);
        }
        phases
    }
}

/// Tells how long it is since it was asked last.
pub(super) struct Laps(Instant);

impl Laps {
    pub(super) fn from(start: Instant) -> Self {
        Self(start)
    }

    pub(super) fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_of_the_pause_come_in_the_order_of_the_tracker() {
        let names = |memory_first| {
            let phases = Phases { memory_first, ..Phases::new() };
            phases.inside().map(|(name, _)| name)
        };
        let state_first = [
            "stop",
            "areas",
            "tables",
            "descriptors",
            "files",
            "threads",
            "scan",
            "copy",
            "objects",
            "resume",
        ];
        assert_eq!(names(false), state_first);
        let memory_first = [
            "stop",
            "areas",
            "tables",
            "scan",
            "copy",
            "objects",
            "descriptors",
            "files",
            "threads",
            "resume",
        ];
        assert_eq!(names(true), memory_first);
    }
}
