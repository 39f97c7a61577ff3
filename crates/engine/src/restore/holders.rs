//! Which processes hold what, for the rights with which recorded paths are opened.
//!
//! Owns: the opener of each process, description and memory object.
//! Invariants: a description that no process holds (one in flight in a socket) counts as held by all.
//! Does not: open anything.

use std::collections::{BTreeSet, HashMap};

use model::{DescriptionId, Pid};
use resource::Opener;
use sys::file_rights::FileRights;

use super::plan::{Plan, PlannedProcess};
use crate::error::Result;

pub(super) struct Holders {
    all: Opener,
    processes: HashMap<Pid, Opener>,
    descriptions: HashMap<u32, Opener>,
    objects: HashMap<u64, Opener>,
}

impl Holders {
    /// Finds out who holds what in an image.
    ///
    /// # Errors
    ///
    /// A record of credentials that cannot be decoded.
    pub(super) fn of(plan: &Plan) -> Result<Self> {
        let mut rights = HashMap::new();
        for process in plan.living() {
            rights.extend(rights_of(process)?.map(|rights| (process.pid, rights)));
        }
        let mut openers = Openers { rights, made: HashMap::new() };
        let mut descriptions: HashMap<u32, BTreeSet<Pid>> = HashMap::new();
        let mut objects: HashMap<u64, BTreeSet<Pid>> = HashMap::new();
        let mut processes = HashMap::new();
        let mut everybody = BTreeSet::new();
        for process in plan.living() {
            let pid = process.pid;
            for row in &process.descriptors {
                descriptions.entry(row.description).or_default().insert(pid);
            }
            let mapped = process.areas.iter().map(|area| area.object).chain([process.message.executable]);
            for object in mapped {
                objects.entry(object).or_default().insert(pid);
            }
            everybody.insert(pid);
            processes.insert(pid, openers.of(BTreeSet::from([pid]))?);
        }
        Ok(Self {
            all: openers.of(everybody)?,
            processes,
            descriptions: openers.of_each(descriptions)?,
            objects: openers.of_each(objects)?,
        })
    }

    pub(super) fn process(&self, pid: Pid) -> &Opener {
        self.processes.get(&pid).unwrap_or(&self.all)
    }

    /// Acts for the processes that hold a description.
    pub(super) fn description(&self, id: DescriptionId) -> &Opener {
        self.descriptions.get(&id.get()).unwrap_or(&self.all)
    }

    /// Acts for the processes that map an object or execute it.
    pub(super) fn object(&self, id: u64) -> &Opener {
        self.objects.get(&id).unwrap_or(&self.all)
    }
}

/// Openers for sets of processes, each made once.
struct Openers {
    rights: HashMap<Pid, FileRights>,
    made: HashMap<BTreeSet<Pid>, Opener>,
}

impl Openers {
    fn of(&mut self, holders: BTreeSet<Pid>) -> Result<Opener> {
        if let Some(made) = self.made.get(&holders) {
            return Ok(made.clone());
        }
        let opener = Opener::new(holders.iter().filter_map(|pid| self.rights.get(pid).cloned()))?;
        self.made.insert(holders, opener.clone());
        Ok(opener)
    }

    fn of_each<Key: std::hash::Hash + Eq>(
        &mut self,
        holders: HashMap<Key, BTreeSet<Pid>>,
    ) -> Result<HashMap<Key, Opener>> {
        holders.into_iter().map(|(key, pids)| Ok((key, self.of(pids)?))).collect()
    }
}

/// Those of a process's leader; `None` if the image has no credentials, which leaves it the restorer's.
fn rights_of(process: &PlannedProcess) -> Result<Option<FileRights>> {
    let Some(leader) = process.threads.first() else { return Ok(None) };
    for state in &leader.states {
        if let Some(rights) = state.kind.file_rights(state.version, &state.payload)? {
            return Ok(Some(rights));
        }
    }
    Ok(None)
}
