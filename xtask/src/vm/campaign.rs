//! What is run on another kernel when nothing is named.
//!
//! Owns: the list.
//! Does not: judge; a line is good if it ends with status 0.

/// In the order in which they tell most.
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
