//! The tracker that works on every kernel: all pages with content count as dirty.
//!
//! Owns: finding all pages with content, and all pages that have lost their content.
//! Invariants: changes nothing in the process, and needs no kernel interface except the page map.
//! Does not: watch memory.

use std::sync::Arc;

use model::{AddressRange, Pid};
use sys::Error;
use sys::features::{self, Feature};
use sys::pagemap::{PageRegions, Pagemap};
use tracee::procfs::Mapping;

use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::error::TrackError;
use crate::populated::Populated;
use crate::query;
use crate::runs::{Run, Runs, Verdict};
use crate::tracker::{Attach, Coverage, Moment, Properties, Tracker, TrackerKind, UnwatchedReason};

#[derive(Debug)]
pub(crate) struct Full;

#[derive(Debug)]
struct FullTracker {
    pid: Pid,
    runs: Runs,
    content_scan: ContentScan,
}

#[derive(Debug)]
pub(crate) struct ContentScan {
    pub(crate) map: Arc<Pagemap>,
    regions: PageRegions,
    /// The kernel supports the request PAGEMAP_SCAN, which returns ranges. Otherwise every entry of the page
    /// map is read.
    by_ranges: bool,
}

impl TrackerKind for Full {
    fn name(&self) -> &'static str {
        "full"
    }

    fn purpose(&self) -> &'static str {
        "copies everything at every checkpoint; works everywhere"
    }

    fn features(&self) -> &'static [Feature] {
        &[]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: false, automatic: true }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        Ok(())
    }

    fn prepare(&self, pid: Pid, _: &[Mapping]) -> Result<Attach, TrackError> {
        let tracker = FullTracker { pid, runs: Runs::default(), content_scan: ContentScan::open(pid)? };
        Ok(Box::new(|_| Ok(Box::new(tracker))))
    }
}

impl Tracker for FullTracker {
    fn kind(&self) -> &'static dyn TrackerKind {
        &Full
    }

    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError> {
        self.runs.renew(mappings, |_, _| Verdict::Unwatched(UnwatchedReason::Chosen));
        Ok(&self.runs.coverage)
    }

    fn scan(&mut self, _: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        let Self { pid, runs, content_scan } = self;
        let outcome = runs.list.iter_mut().try_for_each(|run| content_scan.report_all(run, into));
        outcome.map_err(|error| TrackError::of_scan(*pid, error))?;
        if self.content_scan.map.is_alive()? { Ok(()) } else { Err(TrackError::Gone(self.pid)) }
    }
}

impl ContentScan {
    pub(crate) fn open(pid: Pid) -> Result<Self, Error> {
        let map = Arc::new(Pagemap::open(pid)?);
        let by_ranges = features::enabled(Feature::PagemapScan) && map.supports_scan();
        Ok(Self { map, regions: PageRegions::new(), by_ranges })
    }

    /// Reports all pages of a run that have content. Pages that had content at the last scan and have none
    /// now are reported as absent. Shared memory is reported completely, with unknown content.
    pub(crate) fn report_all(&mut self, run: &mut Run, into: &mut DirtyPages) -> Result<(), Error> {
        match run.class {
            Class::Shared => {
                into.push(run.range, Content::Unknown);
                return Ok(());
            }
            class => self.report_held(run.range, class, &mut run.held, into)?,
        }
        if std::mem::take(&mut run.new) {
            // The run is new or was watched before, so its content at the last scan is not known. All pages
            // without content are reported as absent.
            report_gaps(run.range, &run.held.now, into);
        }
        run.held.finish(|gone| into.push(gone, Content::Absent));
        Ok(())
    }

    fn report_held(
        &mut self,
        range: AddressRange,
        class: Class,
        held: &mut Populated,
        into: &mut DirtyPages,
    ) -> Result<(), Error> {
        if !self.by_ranges {
            let found = self.map.scan_range(range)?;
            found.private.iter().for_each(|range| {
                held.note(*range);
                into.push(*range, Content::Unknown);
            });
            found.guards.iter().for_each(|range| into.push(*range, Content::Guard));
            return Ok(());
        }
        let question = if class == Class::PrivateFile { query::own() } else { query::present() };
        query::ask(&self.map, &question, range, &mut self.regions, |range, categories| {
            held.note(range);
            into.push(range, query::meaning(categories));
        })
    }
}

/// Reports the gaps between the pages with content as absent.
fn report_gaps(bounds: AddressRange, held: &[AddressRange], into: &mut DirtyPages) {
    let mut start = bounds.start;
    for range in held {
        if start < range.start {
            into.push(AddressRange::new(start, range.start), Content::Absent);
        }
        start = range.end;
    }
    if start < bounds.end {
        into.push(AddressRange::new(start, bounds.end), Content::Absent);
    }
}
