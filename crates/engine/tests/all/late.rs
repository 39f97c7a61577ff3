//! A tracker for tests of the pause. A tracker finds the pages that the subject has written.
//!
//! Owns: the tracker `late`.
//! Does not: choose the tests that use the tracker.

use model::Pid;
use sys::features::Feature;
use tracee::procfs::Mapping;
use track::{Attach, Coverage, DirtyPages, Moment, Properties, TrackError, Tracker, TrackerKind};

/// A tracker that finds no page while the subject runs. The pause then finds all changed pages, as if no page had
/// changed before the end of pre-copy.
#[derive(Debug)]
pub(crate) struct Late;

#[derive(Debug)]
struct LateTracker(Box<dyn Tracker>);

impl TrackerKind for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn purpose(&self) -> &'static str {
        "to have the pause copy everything"
    }

    fn features(&self) -> &'static [Feature] {
        &[]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: true, automatic: false }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        Ok(())
    }

    fn prepare(&self, pid: Pid, mappings: &[Mapping]) -> Result<Attach, TrackError> {
        let best = track::choose("auto").unwrap().kind.prepare(pid, mappings)?;
        Ok(Box::new(|session| Ok(Box::new(LateTracker(best(session)?)))))
    }
}

impl Tracker for LateTracker {
    fn kind(&self) -> &'static dyn TrackerKind {
        &Late
    }

    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError> {
        self.0.cover(mappings)
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        if moment == Moment::Running { Ok(()) } else { self.0.scan(moment, into) }
    }
}
