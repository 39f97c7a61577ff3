//! Components that a killed guardian of this store has left running.
//!
//! Owns: the list of components that run already, and whether they match the system file.
//! Invariants: a process counts only if it has the pid and the start time that its guardian has recorded, in this boot,
//! or if it is the only root with the recorded mark.
//! Does not: take a component over.

use std::collections::BTreeMap;

use model::ProcessKey;
use store::{Store, SubjectName};
use supervise::{Policy, System};

use super::record::{ComponentFacts, MemberFacts, SystemRecord};
use crate::error::Result;
use crate::mark;
use crate::record::{ProcessName, Record};

/// A component that runs already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Running {
    pub(super) root: ProcessKey,
    /// Whether the system file now contains another command for the component.
    pub(super) is_outdated: bool,
}

/// Components that run already.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Components that the system file contains.
    pub(super) running: BTreeMap<String, Running>,
    /// Components that the system file does not contain.
    pub(super) others: Vec<(String, ProcessKey)>,
    /// The last checkpoint of each component that does not run and will be started from its beginning.
    pub(super) checkpoints: Vec<(String, u64)>,
}

impl Before {
    /// Inspects a store that this program has claimed.
    pub(super) fn find(store: &Store, system: &System) -> Result<Self> {
        let mut before = Self::default();
        let record = SystemRecord::read(store)?;
        let components = record.map(|record| record.components).unwrap_or_default();
        for (name, facts) in &components {
            let found = match &facts.together {
                Some(member) => living_member(store, member, &components),
                None => living_root(store, name),
            };
            let (Some(root), name) = (found, name.clone()) else { continue };
            match system.component.iter().find(|(known, _)| *known.get_ref() == name) {
                Some((_, component)) => {
                    let is_outdated = facts.command != *component.command.get_ref();
                    before.running.insert(name, Running { root, is_outdated });
                }
                None => before.others.push((name, root)),
            }
        }
        for (name, component) in &system.component {
            let name = name.get_ref();
            if component.policy == Policy::Checkpointed && !before.running.contains_key(name) {
                let last = last_checkpoint(store, name);
                before.checkpoints.extend(last.map(|last| (name.clone(), last)));
            }
        }
        Ok(before)
    }
}

/// Returns the living root of a member of a group without a guardian. If a member has died, the group is not taken over,
/// because the state of the others belongs together with the state of the dead member.
fn living_member(
    store: &Store,
    member: &MemberFacts,
    components: &BTreeMap<String, ComponentFacts>,
) -> Option<ProcessKey> {
    let subject = Record::read(&store.root().join(&member.group)).ok()??;
    let all = components.values().filter_map(|facts| facts.together.as_ref());
    let mut roots = all.filter(|other| other.group == member.group).filter_map(|other| other.root);
    let is_whole = !subject.is_guarded() && subject.is_of_this_boot() && roots.all(ProcessName::is_alive);
    member.root.filter(|_| is_whole).map(ProcessName::key)
}

/// Returns the living root of a component without a guardian. If the disk was full, the status names an earlier root. The
/// mark of the processes then finds the present root. Without a full disk, a process with the mark is a descendant that
/// the component has left, and is no root.
fn living_root(store: &Store, name: &str) -> Option<ProcessKey> {
    // A record that cannot be read names no process that could be taken over.
    let directory = store.root().join(name);
    let subject = Record::read(&directory).ok()??;
    if subject.is_guarded() || !subject.is_of_this_boot() {
        return None;
    }
    if subject.has_root() {
        return Some(subject.root.key());
    }
    if Record::is_outdated(&directory) { mark::root_with(&subject.requests) } else { None }
}

/// Returns the last checkpoint of a subject. Returns `None` if the checkpoints cannot be listed, because no checkpoint
/// can then be restored.
fn last_checkpoint(store: &Store, name: &str) -> Option<u64> {
    let (last, _) = store.newest(&name.parse::<SubjectName>().ok()?).ok()??;
    Some(last.get())
}
