//! Attempts to capture a subject, all into one epoch.
//!
//! Owns: what happens between two attempts, and when another one is right.
//! Invariants: none begins before everything that the one before was told of as dirty is in the epoch.
//! Does not: judge failures; `retry` does.

use std::time::Duration;

use super::super::before::Before;
use super::super::copier::PageSink;
use super::super::group::GroupMember;
use super::super::retry::Retries;
use super::Continuous;
use crate::error::Result;

impl Continuous {
    /// Tries anew, within the same epoch, after a failure that is transient: a file that is open for a moment, a child
    /// that ends. What was copied before is in the epoch, and the next attempt copies what has changed since.
    pub(super) fn patiently<T>(
        &mut self,
        before: &mut Before,
        sink: &dyn PageSink,
        mut attempt: impl FnMut(&mut Self, &mut Before) -> Result<T>,
    ) -> Result<T> {
        self.aborted = Duration::ZERO;
        self.spaces.is_orderly = true;
        let mut retries = Retries::of_captures(self.root);
        loop {
            let error = match attempt(self, before) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            // The others of its group have been captured by now, or wait no longer.
            if !self.spaces.is_orderly || self.member.as_ref().is_some_and(GroupMember::has_passed) {
                return Err(error);
            }
            let wait = retries.after(error).again()?;
            before.descriptors.release();
            before.descriptors.forget();
            sink.limit_waits(None);
            std::thread::sleep(wait);
            before.look_at_tree_again()?;
        }
    }
}
