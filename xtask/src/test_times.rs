//! The durations of tests.
//!
//! Owns: the lists of the slowest tests and binaries.
//! Does not: measure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Length of each list.
const SHOWN: usize = 10;

/// The durations of all tests of a run.
#[derive(Default, Debug)]
pub(crate) struct Times {
    tests: Vec<(Duration, String)>,
    /// The sum for each binary.
    binaries: BTreeMap<String, Duration>,
}

impl Times {
    pub(crate) fn add(&mut self, binary: &str, test: String, took: Duration) {
        *self.binaries.entry(binary.to_owned()).or_default() += took;
        self.tests.push((took, test));
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binaries = self.binaries.iter().map(|(name, took)| (*took, name.clone())).collect();
        for (what, mut rows) in [("tests", self.tests.clone()), ("binaries", binaries)] {
            rows.sort_by(|one, other| other.cmp(one));
            write!(f, "\n  the slowest {what}:")?;
            for (took, name) in rows.iter().take(SHOWN) {
                write!(f, "\n    {:.1} s  {name}", took.as_secs_f64())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_come_first_and_binaries_are_added_up() {
        let mut times = Times::default();
        for number in 1..=12_u64 {
            let binary = if number % 2 == 0 { "a/lib" } else { "b/all" };
            times.add(binary, format!("{binary} t{number}"), Duration::from_secs(number));
        }
        let text = times.to_string();
        let (tests, binaries) = text.split_once("\n  the slowest binaries:").unwrap();
        assert!(tests.starts_with("\n  the slowest tests:\n    12.0 s  a/lib t12\n    11.0 s  b/all t11\n"));
        assert!(tests.ends_with("\n    3.0 s  b/all t3"), "{text}");
        assert_eq!(binaries, "\n    42.0 s  a/lib\n    36.0 s  b/all");
    }
}
