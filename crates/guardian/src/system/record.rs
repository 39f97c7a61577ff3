//! The state of a system, in a file of its store.
//!
//! The command `status` reads the file without contacting the guardian. Other commands find the guardian by this file.
//!
//! Owns: the form of `.system.json`, and the lock that limits a store to one system at a time.
//! Invariants: a reader never sees a partial file, and never reads a file that another user could have written.
//! Does not: make the newest version survive a power cut. A start needs nothing from this file.

use std::io::Read;
use std::path::{Path, PathBuf};

use model::Word;
use serde::{Deserialize, Serialize};
use store::{Store, trust};
use sys::Error;
use sys::clock::boot_id;
use sys::file_lock::ExclusiveLock;

use super::network::ChannelFacts;
use crate::error::{GuardianError, Result};
use crate::record::ProcessName;
use crate::record::replace_json;

const FILE: &str = ".system.json";
const LOCK: &str = ".system.lock";
/// Maximum number of bytes that are read: enough for thousands of components.
const BYTES_MAX: u64 = 16 << 20;

/// One component of a system.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct ComponentFacts {
    #[serde(skip)]
    pub name: String,
    #[serde(skip)]
    pub guardian: i32,
    pub system: String,
    /// `never`, `stateless` or `checkpointed`.
    pub policy: String,
    /// The program and its arguments.
    #[serde(default)]
    pub command: Vec<String>,
    pub state: String,
    /// When the component entered this state, in RFC 3339.
    pub since: String,
    /// Components that this component needs.
    pub needs: Vec<String>,
    /// Needed components that this component waits for.
    pub waits_for: Vec<String>,
    /// Sum of the weights of the present complaints. At the sum `quorum`, the complaints restart the component.
    pub complaints: u32,
    pub quorum: u32,
    /// The fault for which the component was killed last.
    pub last_fault: Option<String>,
    /// Why the component could not be started or restored.
    #[serde(default)]
    pub last_error: Option<String>,
    /// The state that the component itself has reported (`STATUS=` of sd_notify(3)).
    pub reports: Option<String>,
    /// Addresses on which the component listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelFacts>,
    /// Number of threads of other components that wait until they can connect to this component.
    #[serde(default)]
    pub callers: usize,
    /// The group with whose other members the component is checkpointed and restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<MemberFacts>,
}

/// The place of a component in a group that is checkpointed together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemberFacts {
    /// The name of the group, which is the name of its checkpoints.
    pub group: String,
    /// The root of the component. `None` while the component does not run.
    pub root: Option<ProcessName>,
}

/// The content of the status file of a system.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SystemRecord {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) boot: String,
    pub(crate) guardian: ProcessName,
    /// The name of the control socket.
    pub(crate) control: String,
    pub(crate) components: std::collections::BTreeMap<String, ComponentFacts>,
}

impl SystemRecord {
    /// Reads the status file of a store. Returns `None` if the file does not exist.
    pub(crate) fn read(store: &Store) -> Result<Option<Self>> {
        let path = store.root().join(FILE);
        let file = match trust::open_file(&path) {
            Ok(file) => file,
            Err(error) if trust::is_absence(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut text = Vec::new();
        let read = file.take(BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| Error::path("read", &path, error))?;
        let record: serde_json::Result<Self> = serde_json::from_slice(&text);
        let mut record = record.map_err(|error| GuardianError::Status { path, why: error.to_string() })?;
        let guardian = record.guardian.pid;
        for (name, facts) in &mut record.components {
            (facts.name, facts.guardian) = (name.clone(), guardian);
        }
        Ok(Some(record))
    }

    pub(crate) fn write(&self, root: &Path) -> Result<()> {
        replace_json(&root.join(FILE), &root.join(format!("{FILE}.new")), self)
    }

    /// Returns the command that starts the system again, or takes it over.
    pub(crate) fn up_again(&self, store: &Path) -> String {
        let file = self.file.to_string_lossy();
        format!("undying up {} --store {}", Word(&file), Word(&store.to_string_lossy()))
    }

    /// Reports whether a group with this name is checkpointed together.
    pub(crate) fn has_group(&self, name: &str) -> bool {
        let mut members = self.components.values().filter_map(|facts| facts.together.as_ref());
        members.any(|member| member.group == name)
    }

    /// Returns the group with whose other members a component is checkpointed.
    pub(crate) fn group_of(&self, component: &str) -> Option<&str> {
        self.components.get(component)?.together.as_ref().map(|member| member.group.as_str())
    }

    /// Reports whether the guardian that wrote the record still lives.
    pub(crate) fn is_guarded(&self) -> bool {
        self.boot == boot_id() && self.guardian.is_alive()
    }
}

/// Claims a store for one system, as long as the returned lock is held.
///
/// # Errors
///
/// `SystemTaken` if another guardian has claimed the store.
pub(crate) fn claim(store: &Store) -> Result<ExclusiveLock> {
    let path = store.root().join(LOCK);
    let lock = trust::open_or_create(&path, trust::Access::Write)?;
    match ExclusiveLock::try_new(lock) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => {
            let record = SystemRecord::read(store).ok().flatten().unwrap_or_default();
            let (name, pid) = (record.name, model::Pid(record.guardian.pid));
            Err(GuardianError::SystemTaken { name, pid, store: store.root().to_path_buf() })
        }
        Err(errno) => Err(Error::path("lock", &path, errno).into()),
    }
}
