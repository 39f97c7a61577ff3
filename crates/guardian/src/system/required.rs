//! The conditions under which the components of a system file can be guarded here.
//!
//! Owns: the keys that this version does not support, and the rights that checkpoints need.
//! Invariants: nothing is started or changed before all conditions hold.
//! Does not: read the system file.

use supervise::{Component, Group, MemberDeath, Policy, System};

use crate::error::{GuardianError, Result};
use crate::inspection::require_restorable;

/// Refuses a system that cannot be guarded here.
///
/// # Errors
///
/// `KeyNotBuilt` for an unsupported key. For components with checkpoints, the reason why nothing can be restored.
pub(super) fn require(system: &System) -> Result<()> {
    let is_alone = |group: &Group| group.together && group.on_member_death == MemberDeath::One;
    if let Some((name, _)) = system.group.iter().find(|(_, group)| is_alone(group)) {
        let what = format!("`on_member_death = \"one\"` of group {}", name.get_ref());
        return Err(GuardianError::KeyNotBuilt { what });
    }
    let is_restored = |component: &Component| component.policy == Policy::Checkpointed || component.is_warm();
    if system.component.values().any(is_restored) { require_restorable() } else { Ok(()) }
}
