//! The parser for the output of `cargo test`.
//!
//! Owns: the numbers of tests, the list of tests that could not run because a kernel feature is missing, and the begin of
//! the output of failed tests.
//! Invariants: a line is hidden only if a passing test has printed the line. All other lines are shown.
//! Does not: run tests.
//!
//! The format is that of libtest with `--show-output`. The output of passing tests is between the first `successes:`
//! and the next `failures:` or `test result:`. Each test has a block with the heading `---- NAME stdout ----`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The prefix that a test prints before the name of a missing feature, if the test cannot run on this machine.
const UNSUPPORTED: &str = "unsupported: ";
/// The prefix that a table-driven test prints at its end, before the number of unsupported trials.
const TRIALS: &str = "unsupported in all: ";

/// The maximum number of lines that the summary repeats for each failed test. A long log of a run is often shortened in the
/// middle, and then the end must say why a test has failed.
const LINES_MAX: usize = 12;

/// The numbers for all test binaries of a run.
#[derive(Default, Debug)]
pub(crate) struct Summary {
    /// Tests that libtest counts as passed, including unsupported tests.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were ignored. House rule 11 allows no ignored tests.
    pub ignored: u64,
    /// Missing features, each with the tests that need the feature.
    pub unsupported: BTreeMap<String, BTreeSet<String>>,
    /// Unsupported trials of table-driven tests. These tests count unsupported trials as ignored, and print their
    /// number.
    trials_unsupported: u64,
    /// Failed tests, each with the first lines of its output.
    failures: Vec<(String, Vec<String>)>,
    section: Section,
    test: Option<String>,
}

#[derive(Default, PartialEq, Eq, Debug)]
enum Section {
    #[default]
    Progress,
    Successes,
    Failures,
}

impl Summary {
    /// Processes one line. Returns whether the line must be shown.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.enter(Section::Successes),
            "failures:" => self.enter(Section::Failures),
            _ if line.starts_with("test result: ") => {
                self.enter(Section::Progress);
                self.count(line);
            }
            _ => self.content(line),
        }
        self.section != Section::Successes
    }

    /// Resets the parser, because a binary can end in the middle of a section.
    pub(crate) fn end_of_binary(&mut self) {
        self.enter(Section::Progress);
    }

    fn enter(&mut self, section: Section) {
        self.section = section;
        self.test = None;
    }

    fn content(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.test = Some(name.to_owned());
            if self.section == Section::Failures {
                self.failures.push((name.to_owned(), Vec::new()));
            }
        } else if self.section == Section::Failures && self.test.is_some() {
            if let Some((_, lines)) = self.failures.last_mut()
                && lines.len() < LINES_MAX
                && !line.is_empty()
            {
                lines.push(line.to_owned());
            }
        } else if let Some(count) = line.strip_prefix(TRIALS).and_then(|count| count.trim().parse().ok()) {
            let count: u64 = count;
            self.trials_unsupported += count;
            self.ignored = self.ignored.saturating_sub(count);
        } else if let Some(feature) = line.strip_prefix(UNSUPPORTED) {
            let test = self.test.clone().unwrap_or_else(|| "(a child process)".to_owned());
            self.unsupported.entry(feature.trim().to_owned()).or_default().insert(test);
        }
    }

    /// Adds the numbers of a line like `test result: ok. 3 passed; 0 failed; 0 ignored; …`.
    fn count(&mut self, line: &str) {
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// Returns the number of tests that libtest counts as passed although they are unsupported.
    fn unsupported_tests(&self) -> u64 {
        self.unsupported.values().flatten().collect::<BTreeSet<_>>().len() as u64
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unsupported = self.unsupported_tests();
        write!(f, "{} passed", self.passed.saturating_sub(unsupported))?;
        write!(f, ", {} unsupported here, {} failed", unsupported + self.trials_unsupported, self.failed)?;
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

    const RUN: &str = "
running 3 tests
test quick ... ok
test needs_uring ... ok
test broken ... FAILED

successes:

---- needs_uring stdout ----
unsupported: io_uring

successes:
    needs_uring
    quick

failures:

---- broken stdout ----
unsupported: hope

failures:
    broken

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 40 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 12.34s";

    fn read(run: &str) -> (Summary, Vec<&str>) {
        let mut summary = Summary::default();
        let shown = run.lines().filter(|line| summary.line(line)).collect();
        (summary, shown)
    }

    #[test]
    fn counts_add_up_over_test_binaries() {
        let (summary, _) = read(RUN);
        assert_eq!((summary.passed, summary.failed, summary.ignored), (42, 1, 1));
    }

    #[test]
    fn a_passing_test_that_lacks_a_feature_is_named_and_a_failing_one_is_not() {
        let (summary, _) = read(RUN);
        let text = summary.to_string();
        assert!(text.starts_with("41 passed, 1 unsupported here, 1 failed, 1 ignored"), "{text}");
        assert!(text.contains("\n  unsupported: io_uring: needs_uring"), "{text}");
        assert!(text.ends_with("\n  broken:\n    unsupported: hope"), "{text}");
    }

    #[test]
    fn trials_that_are_unsupported_are_neither_passed_nor_ignored() {
        let run = "test result: ok. 40 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out\n\
                   unsupported in all: 3";
        let (summary, _) = read(run);
        assert_eq!(summary.ignored, 0);
        assert_eq!(summary.to_string(), "40 passed, 3 unsupported here, 0 failed");
    }

    #[test]
    fn the_output_of_passing_tests_is_not_shown_and_that_of_failing_ones_is() {
        let (_, shown) = read(RUN);
        assert!(!shown.contains(&"unsupported: io_uring"));
        assert!(shown.contains(&"unsupported: hope"));
        assert!(shown.contains(&"test quick ... ok"));
    }
}
