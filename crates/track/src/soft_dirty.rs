//! The tracker of older kernels: bits in the page map that a write sets and one request clears for all pages.
//!
//! Owns: the kind, its tracker, and the meaning of an entry of the page map.
//! Invariants: bits are cleared only while the process is stopped, after all of them were read. Discarded pages are
//! found by comparing the present pages.
//! Does not: watch shared memory: its bits are lost with its page table entries.

use model::{AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::Error;
use sys::clear_refs::ClearRefs;
use sys::features::Feature;
use sys::pagemap::{PageEntry, Pagemap};
use tracee::procfs::Area;

use crate::class::Class;
use crate::dirty::{Content, DirtyPages};
use crate::error::TrackError;
use crate::full::Look;
use crate::populated::Populated;
use crate::runs::{Run, Runs, Verdict};
use crate::self_test;
use crate::tracker::{Attach, Coverage, Moment, Properties, Tracker, TrackerKind, Why};

/// Entries read at once: 512 KiB describe 256 MiB.
const ENTRIES_PER_READ: usize = 65_536;

/// The kind.
#[derive(Debug)]
pub(crate) struct SoftDirty;

#[derive(Debug)]
struct SoftDirtyTracker {
    pid: Pid,
    bits: ClearRefs,
    runs: Runs,
    look: Look,
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
        Properties { rearms_running: false, sees_before: false, automatic: true }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        self_test::soft_dirty(self.name())
    }

    fn prepare(&self, pid: Pid, _: &[Area]) -> Result<Attach, TrackError> {
        let tracker = SoftDirtyTracker {
            pid,
            bits: ClearRefs::open(pid)?,
            runs: Runs::default(),
            look: Look::open(pid)?,
            entries: vec![PageEntry::default(); ENTRIES_PER_READ],
        };
        Ok(Box::new(|_| Ok(Box::new(tracker))))
    }
}

impl Tracker for SoftDirtyTracker {
    fn kind(&self) -> &'static dyn TrackerKind {
        &SoftDirty
    }

    fn cover(&mut self, areas: &[Area]) -> Result<&Coverage, TrackError> {
        self.runs.renew(areas, |_, class| match class {
            Class::Shared => Verdict::Unwatched(Why::Shared),
            Class::Anonymous | Class::PrivateFile => Verdict::Watched,
        });
        Ok(&self.runs.coverage)
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        let Self { pid, runs, look, entries, .. } = self;
        let outcome = runs.list.iter_mut().try_for_each(|run| {
            if !run.watched {
                return look.report_all(run, into);
            }
            let all = std::mem::take(&mut run.new);
            scan_run(&look.map, run, all, entries, into)
        });
        outcome.map_err(|error| TrackError::of_scan(*pid, error))?;
        if !self.look.map.is_alive()? {
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
    map.for_parts(run.range, |range| {
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

/// Reports one page if it may have changed, and remembers it if it holds something.
fn judge(entry: PageEntry, page: AddressRange, all: bool, held: &mut Populated, into: &mut DirtyPages) {
    if entry.is_guard() {
        into.push(page, Content::Guard);
    } else if entry.is_populated() && !entry.is_file_or_shared() {
        held.note(page);
        // The page of zeros, when it takes the place of one that was discarded, sets no bit. It is shared
        // by all processes; so are pages shared by fork, which are copied without need.
        let unclear = entry.is_present() && !entry.is_exclusive();
        if all || entry.is_soft_dirty() || unclear {
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
            // Every second number, so that no ranges are joined.
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
        // Of the five that were there, two went.
        let entries = [PRESENT | EXCLUSIVE, 0, PRESENT | FILE, 0, SWAPPED, SWAPPED, 0, 0];
        assert_eq!(judged(&entries, &mut held), [(1, Content::Absent), (2, Content::Absent)]);
        assert_eq!(judged(&entries, &mut held), []);
    }
}
