//! The state of a system, in a file of its store: `status` reads it without contacting the guardian, and other commands
//! find the guardian by it.
//!
//! Owns: `.system.json`: its form; the lock by which a store has one system at a time.
//! Invariants: a reader never sees a partial file, and reads none that another user could have written.
//! Does not: survive a power cut in its newest version; a start needs nothing of it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use store::{Store, trust};
use sys::Error;

use super::network::ChannelFacts;
use crate::error::{GuardianError, Result};
use crate::record::replace_json;
use crate::record::{ProcessName, boot};

const FILE: &str = ".system.json";
const LOCK: &str = ".system.lock";
/// Bytes of it that are read at most: thousands of components.
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
    /// When it came into this state, in RFC 3339.
    pub since: String,
    /// Components that it needs.
    pub needs: Vec<String>,
    /// Those of them that it waits for.
    pub waits_for: Vec<String>,
    /// Weights of the complaints that count now, and from which sum on they restart it.
    pub complaints: u32,
    pub quorum: u32,
    /// What it was killed for last.
    pub last_fault: Option<String>,
    /// Why it could not be started or restored.
    #[serde(default)]
    pub last_error: Option<String>,
    /// What it has reported of itself (`STATUS=` of sd_notify(3)).
    pub reports: Option<String>,
    /// Addresses that it listens on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelFacts>,
    /// Threads of other components that wait until they can connect to it.
    #[serde(default)]
    pub callers: usize,
}

/// The content of the file.
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
    /// Reads the file of a store; `None` when there is none.
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

    /// Writes it to the directory of a store.
    pub(crate) fn write(&self, root: &Path) -> Result<()> {
        replace_json(&root.join(FILE), &root.join(format!("{FILE}.new")), self)
    }

    /// Whether the guardian that wrote it is still there.
    pub(crate) fn is_guarded(&self) -> bool {
        self.boot == boot() && self.guardian.is_alive()
    }
}

/// Claims a store for one system, as long as the file is open.
///
/// # Errors
///
/// `SystemTaken` when another guardian has it.
pub(crate) fn claim(store: &Store) -> Result<File> {
    let path = store.root().join(LOCK);
    let lock = trust::open_or_create(&path, trust::Access::Write)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let record = SystemRecord::read(store).ok().flatten().unwrap_or_default();
            let (name, pid) = (record.name, model::Pid(record.guardian.pid));
            Err(GuardianError::SystemTaken { name, pid, store: store.root().to_path_buf() })
        }
        Err(errno) => Err(Error::path("lock", &path, errno).into()),
    }
}
