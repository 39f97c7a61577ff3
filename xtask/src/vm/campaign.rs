//! The default command lines for a run on another kernel.
//!
//! Owns: the list.
//! Does not: evaluate results. A line is good if its exit status is 0.

/// The command lines. The lines that find most errors are first.
pub(crate) const LINES: &[&str] = &[
    "undying doctor",
    "track/lib",
    "track/cases --test-threads=1",
    "track/moves --test-threads=1",
    "track/ahead --test-threads=1",
    "track/soak --test-threads=1 --show-output",
    "engine/continuous --test-threads=1 --show-output",
    "testkit/restore_matrix --test-threads=2",
    "testkit/refusals --test-threads=2",
    "UNDYING_TEST_TRACKER=soft-dirty testkit/restart_matrix --test-threads=2",
    "UNDYING_TEST_TRACKER=full testkit/restart_matrix --test-threads=2",
];
