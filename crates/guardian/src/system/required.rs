//! The conditions under which the components of a system file can be guarded here.
//!
//! Owns: the keys that this version does not support, and the rights that checkpoints need.
//! Invariants: nothing is started or changed before all conditions hold.
//! Does not: read the system file.

use supervise::{Component, Policy, System};

use crate::error::{GuardianError, Result};
use crate::inspection::require_restorable;

/// Refuses a system that cannot be guarded here.
///
/// # Errors
///
/// `KeyNotBuilt` for an unsupported key. For components with checkpoints, the reason why nothing can be restored.
pub(super) fn require(system: &System) -> Result<()> {
    if let Some((name, _)) = system.group.iter().find(|(_, group)| group.together) {
        return Err(GuardianError::KeyNotBuilt { what: format!("`together` of group {}", name.get_ref()) });
    }
    let is_restored = |component: &Component| component.policy == Policy::Checkpointed || component.is_warm();
    if system.component.values().any(is_restored) { require_restorable() } else { Ok(()) }
}
