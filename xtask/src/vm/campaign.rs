//! The default command lines for a run on another kernel.
//!
//! Owns: the list.
//! Does not: evaluate results. A line is good if its exit status is 0.

/// The command lines. The lines that find most errors are first.
pub(crate) const LINES: &[&str] = &[
    "undying doctor",
    "track/lib",
    "track/all --test-threads=1 --show-output",
    "engine/all continuous:: --test-threads=1 --show-output",
    "testkit/victims restore/ --test-threads=2",
    "testkit/victims refuse/ --test-threads=2",
    "UNDYING_TEST_TRACKER=soft-dirty testkit/victims restart/ --test-threads=2",
    "UNDYING_TEST_TRACKER=full testkit/victims restart/ --test-threads=2",
];
