//! The running time of a subject, and the time of each checkpoint on this scale.
//!
//! The running time is the time that the program needs to reach a state from its beginning. A restore sets the running
//! time back to that of the checkpoint. Time in which the program is dead or stopped does not count. The difference
//! between two running times is therefore the work that a restart loses.
//!
//! Owns: the running time, and the running time at each checkpoint of this program.
//! Invariants: the running time at a checkpoint is not above the running time at a later checkpoint.
//! Does not: read a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model::Sequence;

use super::event::BEGINNING;

/// The running time of one program.
#[derive(Debug)]
pub(super) struct RunTime {
    /// The running time at `since`.
    done: Duration,
    since: Instant,
    /// The last time at which the program was known to run, or to have died.
    pub(super) seen: Instant,
    /// The running time at each checkpoint. The beginning of the program counts as a checkpoint.
    taken: BTreeMap<Sequence, Duration>,
    /// The checkpoints after which peers have received output that no usable checkpoint contained. A restore of a later
    /// checkpoint takes nothing back from the peers.
    sent_after: BTreeSet<Sequence>,
    /// The running time at the last such output. The report of a checkpoint can come later than its pause.
    sent: Option<Duration>,
}

impl RunTime {
    /// Returns the running time of a program that begins now.
    pub(super) fn begin(now: Instant) -> Self {
        let taken = BTreeMap::from([(BEGINNING, Duration::ZERO)]);
        Self { done: Duration::ZERO, since: now, seen: now, taken, sent_after: BTreeSet::new(), sent: None }
    }

    /// Returns the running time of a program that already runs. Its beginning is unknown.
    pub(super) fn adopt(now: Instant) -> Self {
        Self { taken: BTreeMap::new(), ..Self::begin(now) }
    }

    fn at(&self, now: Instant) -> Duration {
        self.done + now.saturating_duration_since(self.since)
    }

    /// Records that the program runs, or has just died.
    pub(super) fn see(&mut self, now: Instant) {
        self.seen = now;
    }

    /// Records that the program was stopped since the last call of `see`, and runs again.
    pub(super) fn continues(&mut self, now: Instant) {
        self.done = self.at(self.seen);
        (self.since, self.seen) = (now, now);
    }

    /// Records that a checkpoint was taken now.
    pub(super) fn taken(&mut self, sequence: Sequence, now: Instant) {
        let taken = self.at(now);
        self.taken.insert(sequence, taken);
        if self.sent.is_some_and(|sent| taken < sent) {
            self.sent_after.insert(sequence);
        }
    }

    /// Records that the program continues from a checkpoint. The running time of an unknown checkpoint is that of the
    /// last death.
    pub(super) fn restored(&mut self, sequence: Sequence, now: Instant) {
        self.done = self.taken.get(&sequence).copied().unwrap_or_else(|| self.at(self.seen));
        (self.since, self.seen) = (now, now);
        self.taken.retain(|known, _| *known <= sequence);
        self.sent_after.retain(|known| *known < sequence);
        self.sent = None;
    }

    /// Records that peers have received output that no usable checkpoint contains.
    pub(super) fn output_sent(&mut self, now: Instant) {
        let sent = self.at(now);
        self.sent = Some(sent);
        self.sent_after
            .extend(self.taken.iter().filter(|(_, taken)| **taken < sent).map(|(known, _)| *known));
    }

    /// Reports whether such output was sent after a checkpoint.
    pub(super) fn has_sent_since(&self, sequence: Sequence) -> bool {
        self.sent_after.contains(&sequence)
    }

    /// Returns the work of the program between a checkpoint and the time `at`. `None` if the time of the checkpoint is
    /// unknown, because an earlier guardian has taken the checkpoint.
    pub(super) fn since(&self, sequence: Sequence, at: Instant) -> Option<Duration> {
        self.taken.get(&sequence).map(|taken| self.at(at).saturating_sub(*taken))
    }

    /// Removes the checkpoints that are older than `oldest`.
    pub(super) fn forget_below(&mut self, oldest: Sequence) {
        self.taken.retain(|sequence, _| *sequence == BEGINNING || *sequence >= oldest);
        self.sent_after.retain(|sequence| *sequence == BEGINNING || *sequence >= oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn output_after_a_checkpoint_counts_for_all_older_checkpoints_also_after_a_restore() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut time = RunTime::begin(start);
        for sequence in 1..=3 {
            time.taken(Sequence(sequence), at(10 * sequence as u32));
            time.output_sent(at(10 * sequence as u32 + 5));
        }
        let sent = |time: &RunTime| [1, 2, 3].map(|sequence| time.has_sent_since(Sequence(sequence)));
        assert_eq!(sent(&time), [true; 3]);
        // The files were unchanged since checkpoint 2. Peers keep what they have received after checkpoint 1.
        time.restored(Sequence(2), at(100));
        assert_eq!(sent(&time), [true, false, false]);
        time.taken(Sequence(3), at(110));
        assert_eq!(sent(&time), [true, false, false]);
    }

    #[test]
    fn only_time_in_which_the_program_runs_counts() {
        let start = Instant::now();
        let at = |seconds: u32| start + SECOND * seconds;
        let mut time = RunTime::begin(start);
        time.taken(Sequence(1), at(10));
        time.taken(Sequence(2), at(20));
        time.see(at(23));
        assert_eq!(time.since(Sequence(2), at(23)), Some(SECOND * 3));
        // The program dies at 23 s, and is restored at 100 s.
        time.restored(Sequence(2), at(100));
        assert_eq!(time.since(Sequence(1), at(101)), Some(SECOND * 11));
        assert_eq!(time.since(BEGINNING, at(101)), Some(SECOND * 21));
        // The program is stopped from 102 s to 500 s.
        time.see(at(102));
        time.continues(at(500));
        assert_eq!(time.since(Sequence(2), at(501)), Some(SECOND * 3));
        time.forget_below(Sequence(2));
        assert_eq!(time.since(Sequence(1), at(501)), None);
        assert_eq!(time.since(BEGINNING, at(501)), Some(SECOND * 23));
    }
}
