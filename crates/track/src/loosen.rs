//! Ends the protection of memory between two scans of a tracker, from any thread.
//!
//! Owns: the requests.
//! Invariants: a page whose protection has ended counts as written, so no scan misses a change.
//! Does not: choose the memory.

use std::sync::{Arc, Weak};

use model::{AddressRange, ByteCount};
use sys::pagemap::{PageQuery, PageRegions, Pagemap};
use sys::{Errno, userfaultfd};

use crate::class::Class;
use crate::handler::Descriptors;
use crate::query;

/// Bytes of memory whose protection is lifted by one request. A request takes about 25 microseconds. The
/// process cannot change its mappings during a request.
pub(crate) const LIFT_BYTES: ByteCount = ByteCount(1 << 20);

/// A handle on one tracked address space. It does not keep the tracker alive.
#[derive(Debug)]
pub struct Loosener {
    map: Arc<Pagemap>,
    descriptors: Weak<Descriptors>,
}

impl Loosener {
    pub(crate) fn new(map: &Arc<Pagemap>, descriptors: Weak<Descriptors>) -> Self {
        Self { map: Arc::clone(map), descriptors }
    }

    /// Calls `found` for the present pages of a range that have changed since the last scan, in rising order. Begins no new
    /// round.
    ///
    /// # Errors
    ///
    /// The error of the kernel. Some pages may have been reported.
    pub fn changed(
        &self,
        range: AddressRange,
        regions: &mut PageRegions,
        found: impl FnMut(AddressRange),
    ) -> Result<(), Errno> {
        self.ask(&query::CHANGED, range, regions, found)
    }

    /// Like `changed`, for all kinds of memory, and with pages that are swapped out. In memory that is not watched, each
    /// page counts as written. Absent pages may be missing. `changed` is faster if a range has many absent pages.
    ///
    /// # Errors
    ///
    /// The same as `changed`.
    pub fn written(
        &self,
        range: AddressRange,
        regions: &mut PageRegions,
        found: impl FnMut(AddressRange),
    ) -> Result<(), Errno> {
        self.ask(&query::WRITTEN, range, regions, found)
    }

    fn ask(
        &self,
        query: &PageQuery,
        range: AddressRange,
        regions: &mut PageRegions,
        mut found: impl FnMut(AddressRange),
    ) -> Result<(), Errno> {
        let asked = query::ask(&self.map, query, range, regions, |region, _| found(region));
        asked.map_err(|error| error.errno)
    }

    /// Ends the protection of ranges of anonymous memory until the next scan: their pages cause no more faults, and the next
    /// scan reports all of them. Where the kernel refuses, or the tracking has ended, nothing changes.
    pub fn loosen(&self, ranges: &[AddressRange]) {
        for piece in ranges.iter().flat_map(|range| range.pieces(LIFT_BYTES)) {
            let Some(descriptors) = self.descriptors.upgrade() else { return };
            // After a refused request, the pages stay protected.
            let _ = userfaultfd::lift(descriptors.fd_for(Class::Anonymous), piece);
        }
    }
}
