//! The summary of a test run, and the parser for the output of test processes.
//!
//! Owns: the numbers of tests, the list of tests that could not run because a kernel feature is missing, and the begin of
//! the output of failed tests.
//! Invariants: a process that has not reported one passed test counts as failed.
//! Does not: run tests.
//!
//! The format is that of libtest with `--show-output`, for a process that runs one test. libtest_mimic has nearly the
//! same format. The output of the test follows the heading `---- NAME stdout ----`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The prefix that a test prints before the name of a missing feature, if the test cannot run on this machine.
const UNSUPPORTED: &str = "unsupported: ";
/// The beginning of the line with the numbers of tests.
const RESULT: &str = "test result: ";

/// The maximum number of lines that the summary repeats for each failed test. A long log of a run is often shortened in the
/// middle, and then the end must say why a test has failed.
const LINES_MAX: usize = 12;

/// The numbers for all tests of a run.
#[derive(Default, Debug)]
pub(crate) struct Summary {
    /// Tests that passed, including unsupported tests.
    passed: u64,
    pub(crate) failed: u64,
    /// Tests that were ignored. House rule 11 allows no ignored tests.
    pub(crate) ignored: u64,
    /// Missing features, each with the tests that need the feature.
    unsupported: BTreeMap<String, BTreeSet<String>>,
    /// Failed tests, each with some lines of its output.
    failures: Vec<(String, Vec<String>)>,
}

impl Summary {
    /// Adds a test with the output and the success of its process. Returns whether the test has passed.
    pub(crate) fn add(&mut self, test: &str, lines: &[String], is_good: bool) -> bool {
        // A test can run its own program again, so that earlier results can belong to other processes.
        let result = lines.iter().rev().find(|line| line.starts_with(RESULT));
        let count = |what| result.map_or(0, |line| count(line, what));
        self.ignored += count("ignored");
        if !is_good || count("passed") != 1 {
            self.failed += 1;
            self.failures.push((test.to_owned(), excerpt(lines)));
            return false;
        }
        self.passed += 1;
        for feature in lines.iter().filter_map(|line| line.strip_prefix(UNSUPPORTED)) {
            self.unsupported.entry(feature.trim().to_owned()).or_default().insert(test.to_owned());
        }
        true
    }

    /// Returns the number of unsupported tests.
    fn unsupported_tests(&self) -> u64 {
        self.unsupported.values().flatten().collect::<BTreeSet<_>>().len() as u64
    }
}

/// Returns a number of a line like `test result: ok. 3 passed; 0 failed; 0 ignored; …`.
fn count(line: &str, what: &str) -> u64 {
    let mut parts = line.split([';', '.']).map(str::trim);
    parts.find_map(|part| part.strip_suffix(what)?.trim().parse().ok()).unwrap_or(0)
}

/// Returns the first lines that a failed test has printed, or the last lines of its process if it has not ended.
fn excerpt(lines: &[String]) -> Vec<String> {
    let is_heading = |line: &String| line.starts_with("---- ") && line.ends_with(" ----");
    let full: Vec<&String> = lines.iter().filter(|line| !line.is_empty()).collect();
    let chosen = match full.iter().position(|line| is_heading(line)) {
        Some(heading) => &full[heading + 1..],
        None => &full[full.len().saturating_sub(LINES_MAX)..],
    };
    chosen
        .iter()
        .take(LINES_MAX)
        .take_while(|line| **line != "failures:")
        .map(|line| (*line).clone())
        .collect()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unsupported = self.unsupported_tests();
        write!(f, "{} passed", self.passed - unsupported)?;
        write!(f, ", {unsupported} unsupported here, {} failed", self.failed)?;
        if self.ignored > 0 {
            write!(f, ", {} ignored (rule 11 allows none)", self.ignored)?;
        }
        for (feature, tests) in &self.unsupported {
            let names: Vec<_> = tests.iter().map(String::as_str).collect();
            write!(f, "\n  unsupported: {feature}: {}", names.join(", "))?;
        }
        for (test, lines) in &self.failures {
            write!(f, "\n  {test}:")?;
            lines.iter().try_for_each(|line| write!(f, "\n    {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "
running 1 test
test quick ... ok

successes:

successes:
    quick

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s
";
    const UNSUPPORTED_HERE: &str = "
running 1 test
test needs_uring ... ok

successes:

---- needs_uring stdout ----
unsupported: io_uring

successes:
    needs_uring

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s
";
    const FAILED: &str = "
running 1 test
test broken ... FAILED

failures:

---- broken stdout ----
unsupported: hope

failures:
    broken

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s
";
    const NONE: &str = "
running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 10 filtered out; finished in 0.00s
";

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_test_that_lacks_a_feature_is_named_if_it_passes() {
        let mut summary = Summary::default();
        assert!(summary.add("a quick", &lines(PASSED), true));
        assert!(summary.add("a needs_uring", &lines(UNSUPPORTED_HERE), true));
        assert!(!summary.add("a broken", &lines(FAILED), false));
        let text = summary.to_string();
        assert!(text.starts_with("1 passed, 1 unsupported here, 1 failed\n"), "{text}");
        assert!(text.contains("\n  unsupported: io_uring: a needs_uring\n"), "{text}");
        assert!(text.ends_with("\n  a broken:\n    unsupported: hope"), "{text}");
    }

    #[test]
    fn a_process_that_ran_no_test_or_died_has_failed() {
        let mut summary = Summary::default();
        assert!(!summary.add("a renamed", &lines(NONE), true));
        assert!(!summary.add("a leaking", &lines(PASSED), false));
        assert!(!summary.add("a killed", &lines("\nrunning 1 test\nlast words\n"), false));
        let text = summary.to_string();
        assert!(text.starts_with("0 passed, 0 unsupported here, 3 failed\n"), "{text}");
        assert!(text.ends_with("\n  a killed:\n    running 1 test\n    last words"), "{text}");
    }

    #[test]
    fn the_last_result_counts_because_a_test_can_run_its_program_again() {
        let mut summary = Summary::default();
        assert!(summary.add("a again", &lines(&format!("{NONE}{PASSED}")), true));
        assert!(!summary.add("a again", &lines(&format!("{PASSED}{NONE}")), true));
    }

    #[test]
    fn an_ignored_test_is_counted() {
        let mut summary = Summary::default();
        let ignored = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 9 filtered out";
        assert!(!summary.add("a off", &lines(ignored), true));
        assert_eq!(summary.ignored, 1);
    }
}
