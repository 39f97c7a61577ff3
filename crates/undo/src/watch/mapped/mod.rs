//! Large files that the subject has mapped for writing.
//!
//! No event reports a store through a mapping. A *tracker* in the kernel reports the pages of a file that turn from
//! clean to dirty. The watch keeps a *copy* of each tracked file. At each boundary, the watch copies the pages that may
//! have changed since they were last copied. Before a page of the copy changes for the first time in an epoch, its old
//! content becomes a record of the epoch. Therefore, the copy together with the ranges of the newest epoch always
//! contains the content at the beginning of this epoch.
//!
//! A page that is dirty can change without a further report. Such a page is copied at each boundary, until writeback
//! has made the page clean. A background thread, the *tender*, starts writeback if many pages are dirty, and copies
//! reported pages that are clean again between the boundaries.
//!
//! Owns: the tracked files, and for each file the sets of pages that are copied at the next boundary.
//! Invariants: at a boundary, each page whose content differs from the copy is in one of the sets. A page leaves the set
//! of dirty pages only if the page was clean after all its reports were taken.
//! Does not: copy pages; `tracked` does at a boundary, and `tender` between the boundaries. Does not track files on a tmpfs,
//! which belong to the image of a checkpoint.

mod pages;
mod shadow;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use model::PageCount;
use sys::dirty_tracker::{DirtyTracker, TrackedFile};

pub(super) use self::pages::PageSet;
pub(super) use self::shadow::{PAGE, Shadow};
use super::epoch::{Id, Part};
use crate::error::Result;
use crate::key::FileKey;

/// Major and minor number of a device, as in /proc/PID/maps.
pub(super) type Device = (u32, u32);

/// The tracked files of a subject.
#[derive(Debug, Default)]
pub(super) struct MappedFiles {
    pub(super) files: HashMap<Id, Mapped>,
    pub(super) wanted: Vec<Wanted>,
    /// Files that cannot be tracked, and the reasons.
    pub(super) refused: HashMap<Id, (FileKey, String)>,
    /// The devices of the files that were ever wanted.
    pub(super) devices: HashMap<Id, Device>,
    pub(super) tracker: Option<Arc<DirtyTracker>>,
    /// Whether the tender runs.
    pub(super) is_tended: bool,
    /// Whether the subject has ended, so that the log must not change.
    pub(super) is_stopped: bool,
}

/// A file that the tender shall begin to track.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) id: Id,
    pub(super) device: Device,
    pub(super) key: FileKey,
    pub(super) name: PathBuf,
    /// Open with O_PATH, or a descriptor of the subject.
    pub(super) file: OwnedFd,
    pub(super) size: u64,
    /// As in [`Mapped`].
    pub(super) called_from: u64,
    /// As in [`Mapped`].
    pub(super) needs_events: bool,
}

/// A tracked file.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) key: FileKey,
    pub(super) tracked: TrackedFile,
    pub(super) shadow: Arc<Shadow>,
    /// Length of the copy in bytes. Before the first copy is complete: the length of the copied part.
    pub(super) length: u64,
    /// Pages that were reported and not copied since.
    pub(super) pending: PageSet,
    /// Pages that can change without a report.
    pub(super) dirty: PageSet,
    /// Pages that a call of the subject may change until the next boundary without making them dirty, for example by
    /// making a hole.
    pub(super) called: PageSet,
    /// The page from which on a call may change all pages; `u64::MAX` if no call does.
    pub(super) called_from: u64,
    /// Pages that were reported since the tender has begun to look for clean pages.
    pub(super) fresh: PageSet,
    /// Whether the first copy is complete.
    pub(super) is_ready: bool,
    /// Whether content events report changes that neither make pages dirty nor are reported by the filter.
    pub(super) needs_events: bool,
    /// Whether a record names the copy. The log then removes the copy.
    pub(super) is_named: bool,
}

impl MappedFiles {
    /// Notes that a call may change a part of a file after the watch has answered.
    pub(super) fn note_call(&mut self, id: Id, part: Part) {
        let first = match part {
            Part::Any | Part::End => return,
            Part::All | Part::Direct => 0,
            Part::Behind(offset) | Part::Range(offset, _) => offset / PAGE,
        };
        for wanted in self.wanted.iter_mut().filter(|wanted| wanted.id == id) {
            wanted.called_from = wanted.called_from.min(first);
        }
        let Some(mapped) = self.files.get_mut(&id) else { return };
        match part {
            Part::Range(offset, length) if offset.saturating_add(length) <= mapped.length => {
                mapped.called.insert(first, (offset + length).div_ceil(PAGE));
            }
            _ => mapped.called_from = mapped.called_from.min(first),
        }
    }

    /// Notes that a call may change any tracked file after the watch has answered.
    pub(super) fn note_call_on_all(&mut self) {
        self.files.values_mut().for_each(|mapped| mapped.called_from = 0);
        self.wanted.iter_mut().for_each(|wanted| wanted.called_from = 0);
    }

    /// Reports whether content events of a file must not be silenced.
    pub(super) fn needs_events(&self, id: Id) -> bool {
        self.files.get(&id).is_some_and(|mapped| mapped.needs_events)
            || self.wanted.iter().any(|wanted| wanted.id == id && wanted.needs_events)
    }

    /// Returns the copy of a tracked file.
    pub(super) fn shadow(&self, id: Id) -> Option<Arc<Shadow>> {
        self.files.get(&id).map(|mapped| Arc::clone(&mapped.shadow))
    }

    /// Prevents changes of the log until the subject runs again.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Tracks no file any more. The log removes the copies.
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.wanted.clear();
        self.is_stopped = false;
    }
}

impl Mapped {
    pub(super) fn new(wanted: Wanted, tracked: TrackedFile, shadow: Shadow) -> Self {
        let mut dirty = PageSet::default();
        dirty.insert(0, wanted.size.div_ceil(PAGE));
        Self {
            key: wanted.key,
            tracked,
            shadow: Arc::new(shadow),
            length: 0,
            pending: PageSet::default(),
            dirty,
            called: PageSet::default(),
            called_from: wanted.called_from,
            fresh: PageSet::default(),
            is_ready: false,
            needs_events: wanted.needs_events,
            is_named: false,
        }
    }

    /// Notes that pages were clean after the reports that are not fresh. These pages may have changed before.
    pub(super) fn note_clean(&mut self, clean: &[(u64, u64)]) {
        for (first, end) in clean {
            if self.is_ready {
                self.pending.insert(*first, *end);
            }
            self.dirty.remove(*first, *end);
        }
        self.dirty.add(&self.fresh);
    }

    /// Moves the reports of the tracker to the sets of pages.
    pub(super) fn take_reports(&mut self) -> Result<()> {
        let Self { tracked, pending, dirty, fresh, .. } = self;
        let is_complete = tracked.take(|first, bits| {
            for set in [&mut *pending, &mut *dirty, &mut *fresh] {
                set.insert_word(first, bits);
            }
        })?;
        if !is_complete {
            // Make room first, so that each change after this call is reported.
            self.tracked.make_room(PageCount(self.shadow.file_length()?.div_ceil(PAGE)))?;
            let pages = self.shadow.file_length()?.div_ceil(PAGE);
            for set in [&mut self.pending, &mut self.dirty, &mut self.fresh] {
                set.insert(0, pages);
            }
        }
        Ok(())
    }

    /// Returns the pages that a boundary must copy if the file has `size` bytes now.
    pub(super) fn residual(&self, size: u64) -> PageSet {
        let mut pages = self.pending.clone();
        pages.add(&self.dirty);
        pages.add(&self.called);
        pages.insert(self.called_from, size.div_ceil(PAGE));
        if size != self.length {
            let last = size.min(self.length) / PAGE;
            pages.insert(last, last + 1);
        }
        pages.cut(size.div_ceil(PAGE));
        pages
    }
}
