//! The preferred tracker. The kernel lifts the write protection itself. One request reports the written pages
//! and protects them again.
//!
//! Owns: the kind.
//! Invariants: no writing thread waits for this program. Only a thread that discards pages of file mappings
//! or shared memory waits.
//! Does not: scan; `watch` does.

use model::Pid;
use sys::features::Feature;
use tracee::procfs::Mapping;

use crate::error::TrackError;
use crate::self_test;
use crate::tracker::{Attach, Properties, TrackerKind};
use crate::watch::Watch;

#[derive(Debug)]
pub(crate) struct PagemapScan;

impl TrackerKind for PagemapScan {
    fn name(&self) -> &'static str {
        "pagemap-scan"
    }

    fn purpose(&self) -> &'static str {
        "finds dirty pages in 0.3 ms per GiB; a microsecond per first write"
    }

    fn features(&self) -> &'static [Feature] {
        &[Feature::PagemapScan, Feature::UserfaultfdAsync]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: true, automatic: true }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        self_test::watching(self.name())
    }

    fn prepare(&self, pid: Pid, mappings: &[Mapping]) -> Result<Attach, TrackError> {
        Watch::prepare(&PagemapScan, pid, mappings)
    }
}
