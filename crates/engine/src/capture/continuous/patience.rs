//! A checkpoint that is not given up at once.
//!
//! Owns: how often one is begun again, and when that is right.
//! Invariants: all attempts go into one epoch, and none begins before everything that the one before was told of as
//! dirty is in it.
//! Does not: judge what stands in the way.

use std::time::Duration;

use super::super::before::Before;
use super::super::copier::PageSink;
use super::super::group::GroupMember;
use super::super::look::is_alive;
use super::Continuous;
use crate::error::Result;

/// Times a checkpoint is begun again, within the same epoch, because of what may just be going away.
const RETRIES_MAX: usize = 3;
/// How long is waited before: many times what is held for a moment only takes, and short beside an epoch.
const RETRY_NAP: Duration = Duration::from_millis(2);

impl Continuous {
    /// Tries anew, within the same epoch, as long as only something stands in the way that may just be going away: a
    /// file that is open for a moment, a child that ends. What was copied before is in the epoch, and the next attempt
    /// copies what has changed since.
    pub(super) fn patiently<T>(
        &mut self,
        before: &mut Before,
        sink: &dyn PageSink,
        mut attempt: impl FnMut(&mut Self, &mut Before) -> Result<T>,
    ) -> Result<T> {
        self.aborted = Duration::ZERO;
        for _ in 0..RETRIES_MAX {
            match attempt(self, before) {
                // The others of its group have been captured by now, or wait no longer.
                Err(error) if self.member.as_ref().is_some_and(GroupMember::has_passed) => return Err(error),
                Err(error) if self.spaces.is_orderly && error.may_pass() && is_alive(self.root) => {}
                outcome => return outcome,
            }
            before.descriptors.forget();
            sink.limit_waits(None);
            std::thread::sleep(RETRY_NAP);
            before.look_at_tree_again()?;
        }
        attempt(self, before)
    }
}
