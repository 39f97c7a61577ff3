//! The one way in which anything becomes visible in a store: durable first, then renamed, then durable again.
//!
//! Owns: the order of the steps.
//! Invariants: before the call nothing is at the target, or an empty directory; after it, all of what was
//! staged, durably; after a crash in between, one or the other.
//! Does not: write or sync the files inside; whoever stages them does, before.
//!
//! Proof: `crates/store/tests/power_cut.rs`, which cuts the power at every step.

use std::path::Path;

use crate::layout::parent;
use crate::medium::Medium;

/// Makes a staged directory, whose files are durable, visible under its final name.
pub(crate) fn publish(medium: &dyn Medium, staged: &Path, target: &Path) -> sys::Result<()> {
    medium.sync_directory(staged)?;
    medium.rename(staged, target)?;
    medium.sync_directory(parent(target)).inspect_err(|_| {
        // Visible, but perhaps not for long: better not visible at all. Should this fail too, what is
        // visible is nevertheless whole.
        let _ = medium.rename(target, staged);
    })
}
