//! Writing the file from which `status` reads the state of a system.
//!
//! Owns: the times of the writes.
//! Invariants: only one write runs at a time, on a worker thread. After a state was reported as written, the file
//! contains this state or a newer state.
//! Does not: know the content.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use model::Pid;
use supervise::System;
use sys::clock::boot_id;

use super::record::{ComponentFacts, SystemRecord};
use crate::error::Result;
use crate::record::ProcessName;

/// The status file of a system, and whether the file is up to date.
pub(super) struct Published {
    pub(super) record: SystemRecord,
    /// The key `store` of the system file.
    store: Option<PathBuf>,
    root: PathBuf,
    is_being_written: Arc<AtomicBool>,
    is_changed: bool,
    /// Locked while the file is written. True once the last state is in the file.
    is_ended: Arc<Mutex<bool>>,
}

impl Published {
    /// Creates the file content. `root` is the directory of the store; `control` is the name of the socket for orders.
    pub(super) fn new(system: &System, file: &Path, root: &Path, control: &str) -> Result<Self> {
        let own = tracee::procfs::key(Pid(std::process::id() as i32))?;
        let record = SystemRecord {
            name: system.system.name.get_ref().clone(),
            file: file.to_path_buf(),
            boot: boot_id(),
            guardian: ProcessName::of(own),
            control: control.to_owned(),
            ..SystemRecord::default()
        };
        let (is_being_written, is_ended) = (Arc::default(), Arc::default());
        let store = system.system.store.clone();
        Ok(Self { record, store, root: root.to_path_buf(), is_being_written, is_changed: true, is_ended })
    }

    /// Reports whether a system file describes this system: the name and the store must be the same.
    pub(super) fn is_of(&self, system: &System) -> bool {
        *system.system.name.get_ref() == self.record.name && system.system.store == self.store
    }

    /// Records that the state has changed since the last write.
    pub(super) fn change(&mut self) {
        self.is_changed = true;
    }

    /// Reports whether the file contains the present state.
    pub(super) fn is_published(&self) -> bool {
        !self.is_changed && !self.is_being_written.load(Ordering::Acquire)
    }

    /// Reports whether the file must be written now.
    pub(super) fn is_due(&self) -> bool {
        self.is_changed && !self.is_being_written.load(Ordering::Acquire)
    }

    /// Returns work for a worker, which writes this state.
    pub(super) fn write(&mut self, facts: Vec<ComponentFacts>) -> impl FnOnce() + Send + use<> {
        self.is_changed = false;
        self.is_being_written.store(true, Ordering::Release);
        self.record.components = facts.into_iter().map(|facts| (facts.name.clone(), facts)).collect();
        let (record, root) = (self.record.clone(), self.root.clone());
        let (is_being_written, is_ended) = (Arc::clone(&self.is_being_written), Arc::clone(&self.is_ended));
        move || {
            let is_ended = is_ended.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_ended {
                // On a full disk, only a status is lost; the components continue.
                let _ = record.write(&root);
            }
            drop(is_ended);
            is_being_written.store(false, Ordering::Release);
        }
    }

    /// Records that no worker was available for the write.
    pub(super) fn not_written(&mut self) {
        self.is_being_written.store(false, Ordering::Release);
        self.is_changed = true;
    }

    /// Writes that no component is left. Waits for a write that is in progress.
    pub(super) fn end(&mut self) -> Result<()> {
        let mut is_ended = self.is_ended.lock().unwrap_or_else(PoisonError::into_inner);
        *is_ended = true;
        self.record.components.clear();
        self.record.write(&self.root)
    }
}
