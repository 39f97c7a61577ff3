//! The tracker that reports a page before it changes. The writing thread waits until the handler has lifted
//! the protection.
//!
//! Owns: the kind.
//! Invariants: see `handler`.
//! Does not: suit a program that writes to many pages. Each first write to a page costs two context switches.

use model::Pid;
use sys::features::Feature;
use sys::userfaultfd::Mode;
use tracee::procfs::Mapping;

use crate::error::TrackError;
use crate::self_test;
use crate::tracker::{Attach, Properties, TrackerKind};
use crate::watch::Watch;

/// The tracker kind `write-protect`.
#[derive(Debug)]
pub(crate) struct WriteProtect;

impl TrackerKind for WriteProtect {
    fn name(&self) -> &'static str {
        "write-protect"
    }

    fn purpose(&self) -> &'static str {
        "copies pages before they change, beside the running subject; dear for subjects that write much"
    }

    fn features(&self) -> &'static [Feature] {
        &[Feature::PagemapScan, Feature::UserfaultfdSync]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: true, reports_before_change: true, automatic: false }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        self_test::watching(self.name())
    }

    fn prepare(&self, pid: Pid, mappings: &[Mapping]) -> Result<Attach, TrackError> {
        Watch::prepare(&WriteProtect, pid, Mode::Sync, mappings)
    }
}
