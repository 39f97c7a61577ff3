//! What makes a test fail: a text that says what and where.
//!
//! Owns: `Problem`, and adding to it what was being done.

use std::fmt;

/// The result of a step of a test.
pub(crate) type Outcome<T = ()> = Result<T, Problem>;

/// Why a test fails.
pub(crate) struct Problem(String);

impl Problem {
    /// A problem in these words.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

// libtest shows a failed test's error by its Debug form.
impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Problem {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Says what was being done when something failed.
pub(crate) trait Context<T> {
    /// Puts `what` before the reason.
    fn context(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: Into<Problem>> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Problem(format!("{what}: {}", error.into().0)))
    }
}

/// Fails with `text` unless `good`.
pub(crate) fn check(good: bool, text: impl FnOnce() -> String) -> Outcome {
    if good { Ok(()) } else { Err(Problem(text())) }
}
