//! Damaged executable pages in the page cache, recorded until the next incarnation maps them.
//!
//! Owns: the list of damaged pages, and the request to the kernel to drop them.
//! Invariants: pages are dropped while no process of the subject exists, because the kernel does not drop mapped pages.
//! Does not: find damaged pages; `health::integrity` does.

use std::sync::{Arc, Mutex, PoisonError};

use health::integrity::{Changed, Place};

use crate::event::RunEvent;

/// Damaged pages of files, shared by the check that finds the pages and the start that drops the pages.
#[derive(Clone, Debug, Default)]
pub struct Damaged(Arc<Mutex<Vec<Changed>>>);

impl Damaged {
    /// Adds a damaged page of the page cache. A damaged page of a single process is not added, because it ends with the
    /// process.
    pub(crate) fn note(&self, changed: &Changed) {
        if changed.place == Place::PageCache {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(changed.clone());
        }
    }

    /// Drops the pages from the page cache, so that the kernel reads the pages again at the next mapping. Reports the
    /// pages that the kernel keeps.
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
