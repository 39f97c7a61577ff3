//! What follows a death: nothing, a restore, a fresh start, or giving up.
//!
//! Owns: the restart policy, the limit on restarts, the suspicion against checkpoints.
//! Invariants: pure decisions over times that are passed in; no clock, no process.
//! Does not: carry anything out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use engine::FilePolicy;
use model::{Sequence, Signal};

use crate::error::{GuardianError, Result};
use crate::subject::SubjectStatus;

/// Signals by which programs are told to end, or end when their reader is gone: no failures. The same as in
/// systemd.service(5), `Restart=on-failure`.
const CLEAN: [Signal; 4] = [Signal(1), Signal(2), Signal(13), Signal(15)];
/// Comes from outside only, so it says nothing about the state that it ends.
const KILL: Signal = Signal(9);

/// Which deaths are followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RestartPolicy {
    /// None.
    Never,
    /// An exit code other than 0, and any signal but HUP, INT, PIPE and TERM.
    #[default]
    OnFailure,
    /// Every one.
    Always,
}

impl RestartPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Never, Self::OnFailure, Self::Always];

    /// Its name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::OnFailure => "on-failure",
            Self::Always => "always",
        }
    }

    /// Whether a death that nobody asked for is followed by a restart.
    pub(super) fn restarts(self, status: SubjectStatus) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::OnFailure => !is_clean(status),
        }
    }
}

/// Whether a program has ended as it should.
pub(super) fn is_clean(status: SubjectStatus) -> bool {
    match status {
        SubjectStatus::Exited(code) => code == 0,
        SubjectStatus::Killed(signal) => CLEAN.contains(&signal),
        SubjectStatus::Unknown => false,
    }
}

/// What a restart does when regular files that the subject writes have changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChangedFiles {
    /// All files go back to the checkpoint with the memory.
    #[default]
    Rewind,
    /// The program starts from its beginning and recovers from its files by itself.
    Fresh,
    /// The memory of the checkpoint meets the files as they are.
    Keep,
    /// The run ends with an error that names the files.
    Refuse,
}

impl ChangedFiles {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Rewind, Self::Keep, Self::Refuse, Self::Fresh];

    /// Its name on the command line and in `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rewind => "rewind",
            Self::Fresh => "fresh",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
        }
    }

    /// What the restore itself does; after files went back, with those that did not.
    pub(super) const fn at_restore(self) -> FilePolicy {
        match self {
            Self::Rewind | Self::Fresh | Self::Refuse => FilePolicy::Compare,
            Self::Keep => FilePolicy::Keep,
        }
    }
}

/// Chooses the policy of a run; `impossible` is the reason why files cannot go back, if they cannot. Where nothing was
/// asked for, the second value is that reason, for the operator.
///
/// # Errors
///
/// `NoRewind` with the reason, if going back was asked for by name.
pub(super) fn choose_files(
    asked: Option<ChangedFiles>,
    impossible: Option<String>,
) -> Result<(ChangedFiles, Option<String>)> {
    match (asked, impossible) {
        (Some(ChangedFiles::Rewind), Some(why)) => Err(GuardianError::NoRewind { why }),
        (None, Some(why)) => Ok((ChangedFiles::Fresh, Some(why))),
        (asked, _) => Ok((asked.unwrap_or_default(), None)),
    }
}

/// The shortest and the longest time between a death and the restart.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// By how much it grows with each death.
const BACK_OFF_FACTOR: u32 = 4;
/// A life of this length is no part of a crash loop.
const HEALTHY: Duration = Duration::from_secs(10);

/// How long a restart waits. The first one after a healthy life does not wait at all; then the time grows, so that a
/// program that waits for a port or a file does not use up its restarts in a second.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    next: Duration,
}

impl BackOff {
    /// The time to wait after a life has ended. SIGKILL comes from outside: a life that it ended after a checkpoint
    /// was healthy.
    pub(super) fn died(&mut self, lived: Duration, status: SubjectStatus, has_checkpoint: bool) -> Duration {
        let was_healthy = lived >= HEALTHY || (has_checkpoint && status == SubjectStatus::Killed(KILL));
        let wait = if was_healthy { Duration::ZERO } else { self.next };
        self.next = if wait.is_zero() { BACK_OFF.0 } else { (wait * BACK_OFF_FACTOR).min(BACK_OFF.1) };
        wait
    }
}

/// So many restarts within so much time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestartLimit {
    /// How many.
    pub count: usize,
    /// Within which time.
    pub window: Duration,
}

impl Default for RestartLimit {
    fn default() -> Self {
        Self { count: 5, window: Duration::from_secs(60) }
    }
}

/// The restarts so far, as far as they count.
#[derive(Debug)]
pub(super) struct Restarts {
    limit: RestartLimit,
    times: VecDeque<Instant>,
}

impl Restarts {
    pub(super) fn new(limit: RestartLimit) -> Self {
        Self { limit, times: VecDeque::new() }
    }

    /// Asks for one more; `false` when there were too many.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        while self.times.front().is_some_and(|time| now.duration_since(*time) > self.limit.window) {
            self.times.pop_front();
        }
        if self.times.len() >= self.limit.count {
            return false;
        }
        self.times.push_back(now);
        true
    }

    /// Whether the next death would be one too many.
    pub(super) fn is_exhausted(&self) -> bool {
        self.times.len() >= self.limit.count
    }
}

/// Which checkpoints are not to be used, since what they hold leads to death.
///
/// A life descends from a checkpoint: the newest it has committed, or the one it was restored from. When two lives
/// in a row that descend from the same one end within the window, it is passed over for the one before it: a
/// fallback. A life that began at a fallback and ends within the window takes the fallback down at once, and with
/// it what that life has committed. Deaths by SIGKILL are no evidence.
#[derive(Debug)]
pub(super) struct Suspicion {
    window: Duration,
    /// Where and when this life began; nowhere for one from the program's beginning.
    life: (Option<Sequence>, Option<Instant>),
    /// Checkpoints committed by lives that began at a checkpoint, with that one.
    origins: BTreeMap<Sequence, Sequence>,
    deaths: BTreeMap<Sequence, Instant>,
    fallbacks: BTreeSet<Sequence>,
    avoided: BTreeSet<Sequence>,
    unusable: BTreeSet<Sequence>,
}

impl Suspicion {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            life: (None, None),
            origins: BTreeMap::new(),
            deaths: BTreeMap::new(),
            fallbacks: BTreeSet::new(),
            avoided: BTreeSet::new(),
            unusable: BTreeSet::new(),
        }
    }

    /// A life begins at a checkpoint; those newer than it may be avoided.
    pub(super) fn begins(&mut self, at: Sequence, now: Instant) {
        self.life = (Some(at), Some(now));
        if self.avoided.range(at..).next().is_some() {
            self.fallbacks.insert(at);
        }
    }

    /// A life begins at the program's beginning.
    pub(super) fn begins_afresh(&mut self) {
        *self = Self::new(self.window);
    }

    /// This life has committed a checkpoint.
    pub(super) fn committed(&mut self, sequence: Sequence) {
        if let Some(origin) = self.life.0 {
            self.origins.insert(sequence, origin);
        }
    }

    /// A life that descended from a checkpoint has ended; gives the checkpoint that is passed over from now on.
    pub(super) fn died(&mut self, from: Sequence, status: SubjectStatus, now: Instant) -> Option<Sequence> {
        if status == SubjectStatus::Killed(KILL) {
            return None;
        }
        let is_recent = |time: Instant| now.duration_since(time) <= self.window;
        let fallback = self.life.0.filter(|began| self.fallbacks.contains(began));
        if let (Some(began), Some(since)) = (fallback, self.life.1)
            && is_recent(since)
        {
            self.avoid(began);
            return Some(began);
        }
        let again = self.deaths.get(&from).is_some_and(|time| is_recent(*time));
        self.deaths.insert(from, now);
        again.then(|| {
            self.avoid(from);
            from
        })
    }

    /// Whether some checkpoint was passed over since the program's beginning.
    pub(super) fn has_avoided(&self) -> bool {
        !self.avoided.is_empty()
    }

    /// A checkpoint cannot be restored.
    pub(super) fn unusable(&mut self, sequence: Sequence) {
        self.unusable.insert(sequence);
    }

    /// The newest of the checkpoints that may be used.
    pub(super) fn choose(&self, committed: &[Sequence]) -> Option<Sequence> {
        let usable =
            |sequence: &&Sequence| !self.avoided.contains(sequence) && !self.unusable.contains(sequence);
        committed.iter().rev().find(usable).copied()
    }

    /// Forgets what is older than the oldest checkpoint that is left.
    pub(super) fn forget_below(&mut self, oldest: Sequence) {
        self.origins = self.origins.split_off(&oldest);
        self.deaths = self.deaths.split_off(&oldest);
        self.fallbacks = self.fallbacks.split_off(&oldest);
        self.avoided = self.avoided.split_off(&oldest);
        self.unusable = self.unusable.split_off(&oldest);
    }

    /// Avoids a checkpoint and what descends from it. A child has a higher number than its origin.
    fn avoid(&mut self, sequence: Sequence) {
        self.avoided.insert(sequence);
        for (child, origin) in self.origins.range(sequence..) {
            if self.avoided.contains(origin) {
                self.avoided.insert(*child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRASH: SubjectStatus = SubjectStatus::Killed(Signal(11));
    const WINDOW: Duration = Duration::from_secs(60);

    fn sequences(numbers: &[u64]) -> Vec<Sequence> {
        numbers.iter().map(|number| Sequence(*number)).collect()
    }

    #[test]
    fn on_failure_leaves_alone_what_was_told_to_end() {
        let policy = RestartPolicy::OnFailure;
        assert!(!policy.restarts(SubjectStatus::Exited(0)));
        assert!(!policy.restarts(SubjectStatus::Killed(Signal(15))));
        for failure in [SubjectStatus::Exited(1), CRASH, SubjectStatus::Killed(KILL), SubjectStatus::Unknown]
        {
            assert!(policy.restarts(failure), "{failure}");
        }
        assert!(RestartPolicy::Always.restarts(SubjectStatus::Exited(0)));
        assert!(!RestartPolicy::Never.restarts(CRASH));
    }

    #[test]
    fn files_go_back_where_they_can_and_nothing_else_was_asked_for() {
        let why = || Some("no such kernel".to_owned());
        assert_eq!(choose_files(None, None).unwrap(), (ChangedFiles::Rewind, None));
        assert_eq!(choose_files(None, why()).unwrap(), (ChangedFiles::Fresh, why()));
        let refused = choose_files(Some(ChangedFiles::Rewind), why()).unwrap_err();
        assert_eq!(refused.exit_code(), crate::ExitCode::Missing);
        assert!(refused.to_string().contains("no such kernel"), "{refused}");
        for asked in [ChangedFiles::Keep, ChangedFiles::Refuse, ChangedFiles::Fresh] {
            assert_eq!(choose_files(Some(asked), why()).unwrap(), (asked, None));
        }
    }

    #[test]
    fn the_limit_counts_within_its_window_only() {
        let limit = RestartLimit { count: 2, window: WINDOW };
        let mut restarts = Restarts::new(limit);
        let start = Instant::now();
        assert!(restarts.admit(start));
        assert!(!restarts.is_exhausted());
        assert!(restarts.admit(start + Duration::from_secs(10)));
        assert!(restarts.is_exhausted());
        assert!(!restarts.admit(start + Duration::from_secs(20)));
        assert!(restarts.admit(start + Duration::from_secs(65)));
    }

    #[test]
    fn restarts_of_a_crash_loop_are_further_and_further_apart() {
        let mut back_off = BackOff::default();
        let short = Duration::from_millis(20);
        let waits: Vec<u128> = (0..7).map(|_| back_off.died(short, CRASH, false).as_millis()).collect();
        assert_eq!(waits, [0, 50, 200, 800, 3_200, 10_000, 10_000]);
        assert_eq!(back_off.died(HEALTHY, CRASH, false), Duration::ZERO);
        assert_eq!(back_off.died(short, CRASH, false), BACK_OFF.0);
        let killed = SubjectStatus::Killed(KILL);
        assert_eq!(back_off.died(short, killed, false).as_millis(), 200);
        assert_eq!(back_off.died(short, killed, true), Duration::ZERO);
    }

    #[test]
    fn a_checkpoint_that_leads_to_death_again_is_passed_over() {
        let mut suspicion = Suspicion::new(WINDOW);
        let committed = sequences(&[3, 4, 5]);
        let now = Instant::now();
        assert_eq!(suspicion.died(Sequence(5), CRASH, now), None);
        assert_eq!(suspicion.choose(&committed), Some(Sequence(5)));
        for (number, next) in [(5, Some(4)), (4, Some(3)), (3, None)] {
            suspicion.begins(Sequence(number), now);
            assert_eq!(suspicion.died(Sequence(number), CRASH, now), Some(Sequence(number)));
            assert_eq!(suspicion.choose(&committed), next.map(Sequence));
        }
        suspicion.forget_below(Sequence(6));
        assert_eq!(suspicion.choose(&sequences(&[6])), Some(Sequence(6)));
    }

    #[test]
    fn what_a_doomed_life_has_committed_is_doomed_as_well() {
        let mut suspicion = Suspicion::new(WINDOW);
        let now = Instant::now();
        assert_eq!(suspicion.died(Sequence(5), CRASH, now), None);
        suspicion.begins(Sequence(5), now);
        assert_eq!(suspicion.died(Sequence(5), CRASH, now), Some(Sequence(5)));
        suspicion.begins(Sequence(4), now);
        suspicion.committed(Sequence(6));
        suspicion.committed(Sequence(7));
        assert_eq!(suspicion.died(Sequence(7), CRASH, now), Some(Sequence(4)));
        assert_eq!(suspicion.choose(&sequences(&[3, 4, 5, 6, 7])), Some(Sequence(3)));
    }

    #[test]
    fn a_fallback_that_lives_on_is_no_longer_one() {
        let mut suspicion = Suspicion::new(WINDOW);
        let now = Instant::now();
        suspicion.died(Sequence(5), CRASH, now);
        suspicion.begins(Sequence(5), now);
        suspicion.died(Sequence(5), CRASH, now);
        suspicion.begins(Sequence(4), now);
        suspicion.committed(Sequence(6));
        let later = now + WINDOW * 2;
        assert_eq!(suspicion.died(Sequence(6), CRASH, later), None);
        assert_eq!(suspicion.choose(&sequences(&[4, 5, 6])), Some(Sequence(6)));
    }

    #[test]
    fn deaths_far_apart_or_from_outside_are_no_evidence() {
        let mut suspicion = Suspicion::new(WINDOW);
        let committed = sequences(&[1, 2]);
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(suspicion.died(Sequence(2), SubjectStatus::Killed(KILL), now), None);
            suspicion.begins(Sequence(2), now);
        }
        assert_eq!(suspicion.died(Sequence(2), CRASH, now), None);
        let later = now + WINDOW + Duration::from_secs(1);
        assert_eq!(suspicion.died(Sequence(2), CRASH, later), None);
        assert_eq!(suspicion.choose(&committed), Some(Sequence(2)));
        suspicion.unusable(Sequence(2));
        assert_eq!(suspicion.choose(&committed), Some(Sequence(1)));
    }
}
