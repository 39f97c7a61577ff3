//! The conditions under which the components of a system file can be guarded here.
//!
//! Owns: the check of the rights that checkpoints need.
//! Invariants: nothing is started or changed before all conditions hold.
//! Does not: read the system file.

use supervise::{Component, Policy, System};

use crate::error::Result;
use crate::inspection::require_restorable;

/// Refuses a system that cannot be guarded here.
///
/// # Errors
///
/// For components with checkpoints, the reason why nothing can be restored.
pub(super) fn require(system: &System) -> Result<()> {
    let is_restored = |component: &Component| component.policy == Policy::Checkpointed || component.is_warm();
    if system.component.values().any(is_restored) { require_restorable() } else { Ok(()) }
}
