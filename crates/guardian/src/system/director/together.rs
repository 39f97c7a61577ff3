//! A group of components that are checkpointed at one moment and restored together (`together = true`).
//!
//! Owns: which member a root belongs to, and which members wait until they can join the subject.
//! Does not: start or end a member; `members` does.

use std::collections::{BTreeMap, BTreeSet};

use model::Pid;
use supervise::{ComponentId, GroupPlan};

use crate::host::SubjectId;

/// A group whose members are checkpointed and restored together.
pub(super) struct Together {
    pub(super) name: String,
    pub(super) members: Vec<ComponentId>,
    /// The run of the group, while there is a run.
    pub(super) subject: Option<SubjectId>,
    /// The member whose program begins a new incarnation of the subject.
    pub(super) first: Option<ComponentId>,
    /// Members that wait until they can join.
    pub(super) waiting: BTreeSet<ComponentId>,
    /// The member of each root, including roots that have ended: a restore gives them the same pids.
    pub(super) roots: BTreeMap<Pid, ComponentId>,
    /// Roots that a restore has brought back although their members were stopped since.
    pub(super) unwanted: Vec<Pid>,
    /// Whether the host was told that all members are ready.
    pub(super) is_complete: bool,
}

impl Together {
    pub(super) fn of(groups: &[GroupPlan]) -> Vec<Self> {
        let together = groups.iter().filter(|group| group.together);
        together.map(|group| Self::new(&group.name, &group.members)).collect()
    }

    pub(super) fn new(name: &str, members: &[ComponentId]) -> Self {
        Self {
            name: name.to_owned(),
            members: members.to_vec(),
            subject: None,
            first: None,
            waiting: BTreeSet::new(),
            roots: BTreeMap::new(),
            unwanted: Vec::new(),
            is_complete: false,
        }
    }

    /// Reports whether this is the same group.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (&self.name, &self.members) == (&other.name, &other.members)
    }

    pub(super) fn has(&self, id: ComponentId) -> bool {
        self.members.contains(&id)
    }
}
