//! Writes the file that `status` reads about a system.
//!
//! Owns: the times at which it is written.
//! Invariants: one write at a time, on a worker. A state that was reported as written is in the file, and no older one
//! follows it.
//! Does not: know the content.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use model::Pid;
use supervise::System;

use super::record::{ComponentFacts, SystemRecord};
use crate::error::Result;
use crate::record::{ProcessName, boot};

/// The file, and whether it is up to date.
pub(super) struct Published {
    record: SystemRecord,
    /// The key `store` of the file.
    store: Option<PathBuf>,
    root: PathBuf,
    is_being_written: Arc<AtomicBool>,
    is_changed: bool,
    /// Held while the file is written; true once the last state is in it.
    is_ended: Arc<Mutex<bool>>,
}

impl Published {
    /// In the directory of a store, `root`, for a guardian that takes orders behind the name `control`.
    pub(super) fn new(system: &System, file: &Path, root: &Path, control: &str) -> Result<Self> {
        let own = tracee::procfs::key(Pid(std::process::id() as i32))?;
        let record = SystemRecord {
            name: system.system.name.get_ref().clone(),
            file: file.to_path_buf(),
            boot: boot(),
            guardian: ProcessName::of(own),
            control: control.to_owned(),
            ..SystemRecord::default()
        };
        let (is_being_written, is_ended) = (Arc::default(), Arc::default());
        let store = system.system.store.clone();
        Ok(Self { record, store, root: root.to_path_buf(), is_being_written, is_changed: true, is_ended })
    }

    /// The name of the system.
    pub(super) fn name(&self) -> &str {
        &self.record.name
    }

    /// Whether a file describes this system: by its name and its store.
    pub(super) fn is_of(&self, system: &System) -> bool {
        *system.system.name.get_ref() == self.record.name && system.system.store == self.store
    }

    /// The file that describes it.
    pub(super) fn file(&self) -> &Path {
        &self.record.file
    }

    /// The name of the socket behind which its guardian takes orders.
    pub(super) fn control(&self) -> &str {
        &self.record.control
    }

    /// Something of it is no longer as it was written.
    pub(super) fn change(&mut self) {
        self.is_changed = true;
    }

    /// Whether the file has the present state.
    pub(super) fn is_published(&self) -> bool {
        !self.is_changed && !self.is_being_written.load(Ordering::Acquire)
    }

    /// Whether it is to be written now.
    pub(super) fn is_due(&self) -> bool {
        self.is_changed && !self.is_being_written.load(Ordering::Acquire)
    }

    /// Work for a worker: writes this state.
    pub(super) fn write(&mut self, facts: Vec<ComponentFacts>) -> impl FnOnce() + Send + use<> {
        self.is_changed = false;
        self.is_being_written.store(true, Ordering::Release);
        self.record.components = facts.into_iter().map(|facts| (facts.name.clone(), facts)).collect();
        let (record, root) = (self.record.clone(), self.root.clone());
        let (is_being_written, is_ended) = (Arc::clone(&self.is_being_written), Arc::clone(&self.is_ended));
        move || {
            let is_ended = is_ended.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_ended {
                // A disk that is full loses a status, and no component.
                let _ = record.write(&root);
            }
            drop(is_ended);
            is_being_written.store(false, Ordering::Release);
        }
    }

    /// There was no worker for it.
    pub(super) fn not_written(&mut self) {
        self.is_being_written.store(false, Ordering::Release);
        self.is_changed = true;
    }

    /// Writes that no component is left. Waits for a write in flight.
    pub(super) fn end(&mut self) -> Result<()> {
        let mut is_ended = self.is_ended.lock().unwrap_or_else(PoisonError::into_inner);
        *is_ended = true;
        self.record.components.clear();
        self.record.write(&self.root)
    }
}
