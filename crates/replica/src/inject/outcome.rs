//! The outcomes of injected faults, and how certain a count of them is.
//!
//! Owns: the judgement of one run, the counts, and the interval of Clopper and Pearson (1934).
//! Does not: run programs.

use crate::group::End;

use super::Observed;

/// What became of a run with a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// The program ended before the position of the fault, or the target did not exist there.
    NotActivated,
    /// The output and the end are right, and nothing was detected.
    Benign,
    /// The output is wrong or incomplete, and the program ended as if it were right: silent data corruption.
    Sdc,
    /// The program ended with another status, or by a signal.
    Crash,
    /// The program did not end.
    Hang,
    /// A difference was found, and nothing wrong had left the replicas.
    DetectedStopped,
    /// A difference was found after wrong output had left.
    Escaped,
}

impl Outcome {
    /// All outcomes with the names that reports use.
    pub const ALL: [(&'static str, Self); 7] = [
        ("not_activated", Self::NotActivated),
        ("benign", Self::Benign),
        ("sdc", Self::Sdc),
        ("crash", Self::Crash),
        ("hang", Self::Hang),
        ("detected_stopped", Self::DetectedStopped),
        ("escaped", Self::Escaped),
    ];

    /// Returns the name of the outcome in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, outcome)| *outcome == self).map_or("", |(name, _)| name)
    }
}

/// Judges a run by the reference run.
pub(super) fn judge(reference: &Observed, run: &Observed, was_injected: bool) -> Outcome {
    let is_right = run.output == reference.output && run.errors == reference.errors;
    let is_prefix = reference.output.starts_with(&run.output) && reference.errors.starts_with(&run.errors);
    match &run.end {
        End::Diverged(_) if is_prefix => Outcome::DetectedStopped,
        End::Diverged(_) => Outcome::Escaped,
        End::TimedOut => Outcome::Hang,
        end if *end == reference.end && is_right && was_injected => Outcome::Benign,
        end if *end == reference.end && is_right => Outcome::NotActivated,
        end if *end == reference.end => Outcome::Sdc,
        End::Exited(_) | End::Killed(_) | End::Refused(_) => Outcome::Crash,
    }
}

/// The number of runs with each outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally([usize; Outcome::ALL.len()]);

impl Tally {
    /// Counts outcomes.
    pub fn of(outcomes: impl Iterator<Item = Outcome>) -> Self {
        let mut tally = Self::default();
        outcomes.for_each(|outcome| tally.0[outcome as usize] += 1);
        tally
    }

    /// Returns the number of runs with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.0[outcome as usize]
    }

    /// Returns the number of all runs.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.iter().sum()
    }
}

/// The bisection of a bound ends at this width.
const WIDTH: f64 = 1e-9;
/// The probability that the true rate is above the interval, and that it is below.
const TAIL: f64 = 0.025;

/// Returns the 95 % interval of Clopper and Pearson for a rate of which `count` of `total` trials are known.
#[must_use]
pub fn confidence(count: usize, total: usize) -> (f64, f64) {
    if total == 0 {
        return (0.0, 1.0);
    }
    // The probability of at least `count` successes rises with the rate, that of at most `count` falls.
    let low = if count == 0 { 0.0 } else { bisect(|rate| 1.0 - at_most(count - 1, total, rate) < TAIL) };
    let high = if count == total { 1.0 } else { bisect(|rate| at_most(count, total, rate) > TAIL) };
    (low, high)
}

/// Returns the rate at which `is_below` becomes false.
fn bisect(is_below: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while high - low > WIDTH {
        let middle = (low + high) / 2.0;
        if is_below(middle) { low = middle } else { high = middle }
    }
    high
}

/// Returns the probability of at most `count` successes in `total` trials.
fn at_most(count: usize, total: usize, rate: f64) -> f64 {
    if rate <= 0.0 {
        return 1.0;
    }
    if rate >= 1.0 {
        return if count >= total { 1.0 } else { 0.0 };
    }
    let mut logarithm = total as f64 * (1.0 - rate).ln();
    let mut sum = logarithm.exp();
    for successes in 1..=count {
        logarithm += ((total - successes + 1) as f64 / successes as f64).ln() + (rate / (1.0 - rate)).ln();
        sum += logarithm.exp();
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Signal;

    fn observed(output: &str, end: End) -> Observed {
        Observed { output: output.into(), errors: Vec::new(), end }
    }

    fn diverged() -> End {
        End::Diverged(crate::report::Detection {
            at_check: 1,
            kind: crate::report::Kind::Register,
            first_difference: String::new(),
            latency_us: 0,
            action: "stopped",
        })
    }

    #[test]
    fn each_run_has_the_outcome_that_a_user_would_see() {
        let reference = observed("right", End::Exited(0));
        for (output, end, was_injected, outcome) in [
            ("right", End::Exited(0), true, Outcome::Benign),
            ("right", End::Exited(0), false, Outcome::NotActivated),
            ("wrong", End::Exited(0), true, Outcome::Sdc),
            ("ri", End::Exited(0), true, Outcome::Sdc),
            ("right", End::Exited(1), true, Outcome::Crash),
            ("ri", End::Killed(Signal(11)), true, Outcome::Crash),
            ("", End::TimedOut, true, Outcome::Hang),
            ("ri", diverged(), true, Outcome::DetectedStopped),
            ("rX", diverged(), true, Outcome::Escaped),
        ] {
            assert_eq!(judge(&reference, &observed(output, end), was_injected), outcome, "{output}");
        }
    }

    /// The values of a table of the binomial distribution.
    #[test]
    fn intervals_are_those_of_clopper_and_pearson() {
        for (count, total, low, high) in [
            (0, 300, 0.0, 0.012_22),
            (3, 300, 0.002_07, 0.028_95),
            (10, 20, 0.271_96, 0.728_04),
            (5, 5, 0.478_18, 1.0),
        ] {
            let (found_low, found_high) = confidence(count, total);
            assert!((found_low - low).abs() < 1e-4 && (found_high - high).abs() < 1e-4, "{count} of {total}");
        }
        assert_eq!(confidence(0, 0), (0.0, 1.0));
    }
}
