//! The tracker for older kernels. A write to a page sets the soft-dirty bit in its page map entry. One
//! request clears the bits of all pages.
//!
//! Owns: the kind, its tracker, and the meaning of a page map entry.
//! Invariants: the bits are cleared only while the process is stopped, after all of them were read. Discarded
//! pages are found by a comparison with the pages of the last scan.
//! Does not: watch shared memory. The soft-dirty bit of a shared page is lost when its page table entry is
//! removed.

use model::{AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::Error;
use sys::clear_refs::ClearRefs;
use sys::features::Feature;
use sys::pagemap::{PageEntry, Pagemap};
use tracee::procfs::Mapping;

use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::error::TrackError;
use crate::full::ContentScan;
use crate::populated::Populated;
use crate::runs::{Run, Runs, Verdict};
use crate::self_test;
use crate::tracker::{Attach, Coverage, Moment, Properties, Tracker, TrackerKind, UnwatchedReason};

/// Maximum number of entries in one read. These entries take 512 KiB and describe 256 MiB.
const ENTRIES_PER_READ: usize = 65_536;

#[derive(Debug)]
pub(crate) struct SoftDirty;

#[derive(Debug)]
struct SoftDirtyTracker {
    pid: Pid,
    bits: ClearRefs,
    runs: Runs,
    content_scan: ContentScan,
    entries: Vec<PageEntry>,
}

impl TrackerKind for SoftDirty {
    fn name(&self) -> &'static str {
        "soft-dirty"
    }

    fn purpose(&self) -> &'static str {
        "finds dirty pages on kernels before 6.7 while the subject stands; shared memory is copied whole"
    }

    fn features(&self) -> &'static [Feature] {
        &[Feature::SoftDirty]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: false, automatic: true }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        self_test::soft_dirty(self.name())
    }

    fn prepare(&self, pid: Pid, _: &[Mapping]) -> Result<Attach, TrackError> {
        let tracker = SoftDirtyTracker {
            pid,
            bits: ClearRefs::open(pid)?,
            runs: Runs::default(),
            content_scan: ContentScan::open(pid)?,
            entries: vec![PageEntry::default(); ENTRIES_PER_READ],
        };
        Ok(Box::new(|_| Ok(Box::new(tracker))))
    }
}

impl Tracker for SoftDirtyTracker {
    fn kind(&self) -> &'static dyn TrackerKind {
        &SoftDirty
    }

    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError> {
        self.runs.renew(mappings, |_, class| match class {
            Class::Shared => Verdict::Unwatched(UnwatchedReason::Shared),
            Class::Anonymous | Class::PrivateFile => Verdict::Watched,
        });
        Ok(&self.runs.coverage)
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        let Self { pid, runs, content_scan, entries, .. } = self;
        let outcome = runs.list.iter_mut().try_for_each(|run| {
            if !run.watched {
                return content_scan.report_all(run, into);
            }
            let all = std::mem::take(&mut run.new);
            scan_run(&content_scan.map, run, all, entries, into)
        });
        outcome.map_err(|error| TrackError::of_scan(*pid, error))?;
        if !self.content_scan.map.is_alive()? {
            return Err(TrackError::Gone(self.pid));
        }
        if moment == Moment::Stopped {
            self.bits.clear_soft_dirty()?;
        }
        Ok(())
    }
}

fn scan_run(
    map: &Pagemap,
    run: &mut Run,
    all: bool,
    entries: &mut [PageEntry],
    into: &mut DirtyPages,
) -> Result<(), Error> {
    let held = &mut run.held;
    map.for_each_part(run.range, |range| {
        let mut start = range.start;
        while start < range.end {
            let rest = AddressRange::new(start, range.end).pages().get() as usize;
            let part = &mut entries[..rest.min(ENTRIES_PER_READ)];
            map.read_entries_at(start, part)?;
            for entry in part {
                let page = AddressRange::new(start, start + ByteCount(PAGE_BYTES));
                judge(*entry, page, all, held, into);
                start = page.end;
            }
        }
        Ok(())
    })?;
    run.held.finish(|gone| into.push(gone, Content::Absent));
    Ok(())
}

/// Reports a page if it may have changed, and notes it in `held` if it has content.
fn judge(entry: PageEntry, page: AddressRange, all: bool, held: &mut Populated, into: &mut DirtyPages) {
    if entry.is_guard() {
        into.push(page, Content::Guard);
    } else if entry.is_populated() && !entry.is_file_or_shared() {
        held.note(page);
        // A read access to a discarded page maps the zero page, and sets no soft-dirty bit. The zero page is
        // not exclusive to this process, so all pages that are not exclusive are reported. This includes
        // pages that processes share after a fork; they are copied needlessly.
        let not_exclusive = entry.is_present() && !entry.is_exclusive();
        if all || entry.is_soft_dirty() || not_exclusive {
            into.push(page, if entry.is_present() { Content::Unknown } else { Content::Swapped });
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Address;

    use super::*;

    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    const GUARD: u64 = 1 << 58;
    const EXCLUSIVE: u64 = 1 << 56;
    const SOFT_DIRTY: u64 = 1 << 55;

    fn page(number: u64) -> AddressRange {
        AddressRange::new(Address(number << 12), Address((number + 1) << 12))
    }

    fn judged(entries: &[u64], held: &mut Populated) -> Vec<(u64, Content)> {
        let mut into = DirtyPages::new();
        for (number, entry) in entries.iter().enumerate() {
            // Only even page numbers are used, so that no ranges are joined.
            judge(PageEntry(*entry), page(2 * number as u64), false, held, &mut into);
        }
        held.finish(|gone| into.push(gone, Content::Absent));
        into.ranges().iter().map(|dirty| (dirty.range.start.get() >> 13, dirty.content)).collect()
    }

    #[test]
    fn an_entry_says_whether_its_page_may_have_changed() {
        let mut held = Populated::default();
        let entries = [
            PRESENT | EXCLUSIVE,
            PRESENT | EXCLUSIVE | SOFT_DIRTY,
            PRESENT,
            PRESENT | FILE | SOFT_DIRTY,
            SWAPPED,
            SWAPPED | SOFT_DIRTY,
            0,
            SWAPPED | GUARD,
        ];
        let expected =
            [(1, Content::Unknown), (2, Content::Unknown), (5, Content::Swapped), (7, Content::Guard)];
        assert_eq!(judged(&entries, &mut held), expected);
        // Two of the five pages with content have lost it.
        let entries = [PRESENT | EXCLUSIVE, 0, PRESENT | FILE, 0, SWAPPED, SWAPPED, 0, 0];
        assert_eq!(judged(&entries, &mut held), [(1, Content::Absent), (2, Content::Absent)]);
        assert_eq!(judged(&entries, &mut held), []);
    }
}
