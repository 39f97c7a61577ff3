//! The thread that makes and updates the copies of tracked files between the boundaries.
//!
//! Owns: the first copy of each file, writeback of dirty pages, and copying of pages that are clean.
//! Invariants: the thread holds the lock of the watch only for short operations. It does not change the log after the
//! end of the subject. It ends when no file is tracked.
//! Does not: decide which files are tracked; `tracked` does.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use sys::dirty_tracker::DirtyTracker;

use super::Watch;
use super::epoch::Id;
use super::mapped::{Mapped, PAGE, Shadow};
use super::state::State;
use super::threads::{Shared, spawn};
use crate::error::Result;

/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(20);
/// Maximum number of pages of all tracked files that stay dirty. Each boundary copies these pages, which takes about a
/// millisecond.
const DIRTY_PAGES_MAX: u64 = 256;
/// Minimum of the share of one file in `DIRTY_PAGES_MAX`.
const DIRTY_PAGES_MIN: u64 = 8;
/// Maximum number of bytes that one round copies for the first time.
const FIRST_COPY_BYTES: u64 = 64 << 20;
/// The time between two pieces of a copy, in which other threads can take the lock. A yield would last longer on a busy
/// machine.
const BREATH: Duration = Duration::from_micros(50);
/// Maximum number of dirty pages for which one round starts writeback.
const WRITEBACK_PAGES_MAX: u64 = 4096;
/// Maximum number of clean pages between two ranges of dirty pages for which writeback is started together.
const WRITEBACK_GAP: u64 = 16;
/// Maximum number of pages that are copied while the lock is held.
const COPIED_AT_ONCE: u64 = 32;
/// Maximum number of pages of a file that one round copies.
const COPIED_PAGES_MAX: u64 = 4096;

/// Tends the tracked files until there are none.
fn tend(shared: &Shared) {
    while shared.tend_once() {
        std::thread::sleep(ROUND);
    }
}

impl Watch {
    /// Starts the thread that tends the tracked files, if there are any and the thread does not run.
    pub(super) fn tend(&self, mut state: MutexGuard<'_, State>) {
        if state.watched.mapped.needs_tender() {
            let shared = Arc::clone(&self.shared);
            let started = spawn("undying-mapped", move || tend(&shared));
            state.watched.mapped.note_tender(started.is_ok());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state().watched.mapped.clear();
    }
}

impl Shared {
    /// Returns `false` if no file is tracked.
    fn tend_once(&self) -> bool {
        self.begin_wanted();
        let mut state = self.state();
        let files = &mut state.watched.mapped;
        if files.files.is_empty() && files.wanted.is_empty() {
            files.is_tended = false;
            return false;
        }
        let tracked: Vec<(Id, Arc<Shadow>, bool)> = files
            .files
            .iter()
            .map(|(id, mapped)| (*id, Arc::clone(&mapped.shadow), mapped.is_ready))
            .collect();
        drop(state);
        let dirty_max = (DIRTY_PAGES_MAX / tracked.len().max(1) as u64).max(DIRTY_PAGES_MIN);
        for (id, shadow, is_ready) in tracked {
            let outcome = if is_ready {
                self.clean(id, &shadow, dirty_max).and_then(|()| self.copy_clean(id, &shadow))
            } else {
                self.first_copy(id, &shadow, dirty_max)
            };
            if let Err(error) = outcome {
                self.state().give_up(id, &shadow, &error.to_string());
            }
        }
        true
    }

    /// Begins to track the files that boundaries have requested.
    fn begin_wanted(&self) {
        let needs_tracker = {
            let state = self.state();
            !state.watched.mapped.wanted.is_empty() && state.watched.mapped.tracker.is_none()
        };
        let tracker = needs_tracker.then(DirtyTracker::new);
        let mut state = self.state();
        let files = &mut state.watched.mapped;
        let mut why = None;
        match tracker {
            Some(Ok(tracker)) => files.tracker = Some(tracker),
            Some(Err(error)) => why = Some(error.to_string()),
            None => {}
        }
        for wanted in std::mem::take(&mut files.wanted) {
            match &why {
                Some(why) => {
                    let refusal = (wanted.key, why.clone());
                    state.watched.mapped.refused.insert(wanted.id, refusal);
                }
                None => state.begin_tracking(wanted),
            }
        }
    }

    /// Continues the first copy of a file.
    fn first_copy(&self, id: Id, shadow: &Arc<Shadow>, dirty_max: u64) -> Result<()> {
        let Some(from) = self.state().mapped(id, shadow).map(|mapped| mapped.length) else { return Ok(()) };
        if from == 0 {
            // Pages that are clean before the first copy are not copied again.
            self.clean(id, shadow, dirty_max)?;
        }
        let (to, is_complete) = shadow.copy_from(from, FIRST_COPY_BYTES)?;
        if let Some(mapped) = self.state().mapped(id, shadow) {
            (mapped.length, mapped.is_ready) = (to, is_complete);
        }
        Ok(())
    }

    /// Finds pages that are not dirty any more. If more than `dirty_max` pages stay dirty, starts writeback and finds the
    /// pages that are clean then.
    fn clean(&self, id: Id, shadow: &Arc<Shadow>, dirty_max: u64) -> Result<()> {
        let mut runs = self.find_clean(id, shadow, dirty_max)?;
        if runs.is_empty() {
            return Ok(());
        }
        let mut left = WRITEBACK_PAGES_MAX;
        while left > 0
            && let Some((first, end, pages)) = pop_near(&mut runs, left)
        {
            shadow.write_back((first, end))?;
            left = left.saturating_sub(pages);
        }
        self.find_clean(id, shadow, dirty_max).map(drop)
    }

    /// Finds pages that are not dirty any more. Returns the dirty pages if they are more than `dirty_max`.
    fn find_clean(&self, id: Id, shadow: &Arc<Shadow>, dirty_max: u64) -> Result<Vec<(u64, u64)>> {
        let (tracker, candidates) = {
            let mut state = self.state();
            let Some(mapped) = state.mapped(id, shadow) else { return Ok(Vec::new()) };
            mapped.take_reports()?;
            mapped.fresh.clear();
            if mapped.dirty.count() <= dirty_max {
                return Ok(Vec::new());
            }
            (Arc::clone(mapped.tracked.tracker()), mapped.dirty.runs(0))
        };
        // A report can arrive before the page counts as dirty. The next call ends this interval for all reports that
        // were taken above. Pages that are reported later are fresh.
        tracker.settle()?;
        let clean = shadow.clean(candidates)?;
        let mut state = self.state();
        let Some(mapped) = state.mapped(id, shadow) else { return Ok(Vec::new()) };
        mapped.note_clean(&clean);
        let is_much = mapped.dirty.count() > dirty_max;
        Ok(if is_much { mapped.dirty.runs(0) } else { Vec::new() })
    }

    /// Copies pages that were reported and are clean again.
    fn copy_clean(&self, id: Id, shadow: &Arc<Shadow>) -> Result<()> {
        let mut left = COPIED_PAGES_MAX;
        while left > 0 {
            let mut state = self.state();
            if state.is_restoring || state.watched.mapped.is_stopped {
                return Ok(());
            }
            let Some(mapped) = state.mapped(id, shadow) else { return Ok(()) };
            let Some((first, end)) = mapped.pending.first_run_without(&mapped.dirty) else { return Ok(()) };
            let end = end.min(first + COPIED_AT_ONCE);
            mapped.pending.remove(first, end);
            mapped.length = mapped.length.max(shadow.file_length()?.min(end * PAGE));
            let outcome = state.copy_pages(id, shadow, (first, end));
            if outcome.is_err()
                && let Some(mapped) = state.mapped(id, shadow)
            {
                mapped.pending.insert(first, end);
            }
            let is_over = outcome.is_err();
            state.or_break(outcome, "the content of a mapped file");
            if is_over {
                return Ok(());
            }
            left = left.saturating_sub(end - first);
            drop(state);
            std::thread::sleep(BREATH);
        }
        Ok(())
    }
}

impl State {
    /// Returns a file if the file is still tracked with the same copy.
    fn mapped(&mut self, id: Id, shadow: &Arc<Shadow>) -> Option<&mut Mapped> {
        self.watched.mapped.files.get_mut(&id).filter(|mapped| Arc::ptr_eq(&mapped.shadow, shadow))
    }

    /// Stops tracking of a file, for a reason. If the present epoch needs the copy, the epoch is broken.
    fn give_up(&mut self, id: Id, shadow: &Arc<Shadow>, why: &str) {
        if self.mapped(id, shadow).is_none() {
            return;
        }
        let Some(mapped) = self.watched.mapped.files.remove(&id) else { return };
        if mapped.is_named {
            self.break_epoch(&format!(
                "the pages of {} can no longer be tracked: {why}",
                shadow.name.display()
            ));
        } else {
            let _ = self.keep.remove(&shadow.path);
        }
        self.watched.mapped.refused.insert(id, (mapped.key, why.to_owned()));
    }
}

/// Removes the last of rising ranges, together with the ranges before it that are near. Returns a range that contains
/// them, and the number of their pages. Takes about `max` pages.
fn pop_near(runs: &mut Vec<(u64, u64)>, max: u64) -> Option<(u64, u64, u64)> {
    let (first, end) = runs.pop()?;
    let mut first = first.max(end.saturating_sub(max));
    let mut pages = end - first;
    while pages < max
        && let Some((before, last)) = runs.pop_if(|(_, last)| first - *last <= WRITEBACK_GAP)
    {
        pages += last - before;
        first = before;
    }
    Some((first, end, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dirty_page_is_taken_once_and_clean_pages_count_for_nothing() {
        let gap = WRITEBACK_GAP;
        // More than `max` ranges with small gaps: no range at the beginning waits for ever.
        let mut runs: Vec<(u64, u64)> = (0..100).map(|index| (index * gap, index * gap + 1)).collect();
        assert_eq!(pop_near(&mut runs, 1000), Some((0, 99 * gap + 1, 100)));
        assert_eq!(pop_near(&mut runs, 1000), None);
        let mut runs = vec![(0, 10), (10 + gap, 20 + gap), (21 + 2 * gap, 50 + 2 * gap)];
        assert_eq!(pop_near(&mut runs, 1000), Some((21 + 2 * gap, 50 + 2 * gap, 29)));
        assert_eq!(pop_near(&mut runs, 5), Some((15 + gap, 20 + gap, 5)));
        assert_eq!(pop_near(&mut runs, 1000), Some((0, 10, 10)));
    }
}
