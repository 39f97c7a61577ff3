//! Executable pages that are damaged in the page cache, until the next incarnation maps them.
//!
//! Owns: the list of them; the request to the kernel to drop them.
//! Invariants: pages are dropped while no process of the subject exists, because the kernel keeps mapped pages.
//! Does not: find them; `health::integrity` does.

use std::sync::{Arc, Mutex, PoisonError};

use health::integrity::{Changed, Place};

use crate::event::RunEvent;

/// Pages of files, shared by the check that finds them and the start that gets rid of them.
#[derive(Clone, Debug, Default)]
pub struct Damaged(Arc<Mutex<Vec<Changed>>>);

impl Damaged {
    /// Adds a page. A page that only one process has ends with the process.
    pub(crate) fn note(&self, changed: &Changed) {
        if changed.place == Place::PageCache {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(changed.clone());
        }
    }

    /// Makes the kernel read the pages again when they are mapped next; reports those that it keeps.
    pub(super) fn drop_all(&self, events: &mut Vec<RunEvent>) {
        let pages = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for page in pages {
            let reason = match page.drop_from_cache() {
                Ok(true) => continue,
                Ok(false) => "other processes have it mapped".to_owned(),
                Err(error) => error.to_string(),
            };
            let file = page.file.display().to_string();
            events.push(RunEvent::DamageStays { file, offset: page.offset, reason });
        }
    }
}
