//! Components that a killed guardian of this store has left running.
//!
//! Owns: which components run already, and whether they are those of the file.
//! Invariants: a process counts only if it has the pid and the start time that its guardian has recorded, in this boot.
//! Does not: take anything over.

use std::collections::BTreeMap;

use model::ProcessKey;
use store::{Store, SubjectName};
use supervise::{Policy, System};

use super::record::SystemRecord;
use crate::error::Result;
use crate::record::Record;

/// A component that runs already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Running {
    pub(super) root: ProcessKey,
    /// The file has another command for it now.
    pub(super) is_outdated: bool,
}

/// Components that run already.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Those that the file has.
    pub(super) running: BTreeMap<String, Running>,
    /// Those that it does not have.
    pub(super) others: Vec<(String, ProcessKey)>,
    /// The last checkpoint of each component that does not run and will be started from its beginning.
    pub(super) checkpoints: Vec<(String, u64)>,
}

impl Before {
    /// Looks at a store that this program has claimed.
    pub(super) fn find(store: &Store, system: &System) -> Result<Self> {
        let mut before = Self::default();
        let record = SystemRecord::read(store)?;
        for (name, facts) in record.into_iter().flat_map(|record| record.components) {
            // A record that cannot be read is one of nothing that could be taken over.
            let subject = Record::read(&store.root().join(&name)).ok().flatten();
            let Some(subject) = subject.filter(|subject| subject.has_root() && !subject.is_guarded()) else {
                continue;
            };
            let root = subject.root.key();
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

/// A subject whose checkpoints cannot be listed has none that could be restored.
fn last_checkpoint(store: &Store, name: &str) -> Option<u64> {
    let (last, _) = store.newest(&name.parse::<SubjectName>().ok()?).ok()??;
    Some(last.get())
}
