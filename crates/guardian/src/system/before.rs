//! What an earlier guardian of this store has left running when it was killed.
//!
//! Owns: which components run already, and whether they are those of the file.
//! Invariants: a process counts only if it has the pid and the start time that its guardian has recorded, in this boot.
//! Does not: take anything over.

use std::collections::BTreeMap;

use model::ProcessKey;
use store::Store;
use supervise::System;

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
}

impl Before {
    /// Looks at a store that this program has claimed.
    pub(super) fn find(store: &Store, system: &System) -> Result<Self> {
        let mut before = Self::default();
        let Some(record) = SystemRecord::read(store)? else { return Ok(before) };
        for (name, facts) in record.components {
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
        Ok(before)
    }
}
