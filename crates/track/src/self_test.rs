//! Tests on memory of this program whether the kernel reports every change.
//!
//! Owns: the changes that the kernel must report, and their names in an error.
//! Invariants: the test leaves nothing behind. Some kernels do not report discarded pages. With such a
//! kernel, a restore would bring back content that the program had discarded.
//! Does not: test memory other than private anonymous memory; the soak test does.

use std::os::fd::AsFd;

use model::{PageCount, Pid};
use sys::clear_refs::ClearRefs;
use sys::pagemap::{PageEntry, PageQuery, PageRegions, Pagemap};
use sys::scratch::{HUGE_PAGE_BYTES, Scratch};
use sys::userfaultfd::{self, Discards};

use crate::error::TrackError;
use crate::query;

/// Number of pages that one page table covers.
const TABLE: u64 = HUGE_PAGE_BYTES / model::PAGE_BYTES;
/// Number of pages of the tested memory: three page tables.
const PAGES: PageCount = PageCount(3 * TABLE);
/// Number of the first pages, which contain all changes of single pages.
const SINGLE: u64 = 64;
/// Distance of the populated pages behind these. Each page fault takes time at every start of a guardian.
const STEP: usize = 8;

/// A change of memory, its name in an error, and the number of pages that it changes.
struct Change {
    name: &'static str,
    make: fn(&mut Scratch) -> sys::Result<()>,
    pages: PageCount,
}

const CHANGES: &[Change] = &[
    Change { name: "that nothing was written", make: |_| Ok(()), pages: PageCount(0) },
    Change { name: "a write", make: write, pages: PageCount(1) },
    Change { name: "pages given back", make: discard, pages: PageCount(3) },
    Change { name: "a page given back and read again", make: discard_and_read, pages: PageCount(1) },
    Change { name: "a page given back and written again", make: discard_and_write, pages: PageCount(1) },
    Change { name: "two megabytes given back", make: discard_table, pages: PageCount(TABLE) },
    Change {
        name: "two megabytes given back and read again",
        make: discard_table_and_read,
        pages: PageCount(TABLE),
    },
];

fn write(scratch: &mut Scratch) -> sys::Result<()> {
    scratch.write(PageCount(5), 1);
    Ok(())
}

fn discard(scratch: &mut Scratch) -> sys::Result<()> {
    scratch.discard(PageCount(8), PageCount(3))
}

fn discard_and_read(scratch: &mut Scratch) -> sys::Result<()> {
    scratch.discard(PageCount(20), PageCount(1))?;
    let _ = scratch.read(PageCount(20));
    Ok(())
}

fn discard_and_write(scratch: &mut Scratch) -> sys::Result<()> {
    scratch.discard(PageCount(30), PageCount(1))?;
    scratch.write(PageCount(30), 1);
    Ok(())
}

fn discard_table(scratch: &mut Scratch) -> sys::Result<()> {
    scratch.discard(PageCount(TABLE), PageCount(TABLE))
}

fn discard_table_and_read(scratch: &mut Scratch) -> sys::Result<()> {
    scratch.discard(PageCount(2 * TABLE), PageCount(TABLE))?;
    for page in (2 * TABLE..3 * TABLE).step_by(STEP) {
        let _ = scratch.read(PageCount(page));
    }
    Ok(())
}

/// Tests the watch by a userfaultfd, with base pages and with huge pages, and with each query that a tracker
/// uses.
pub(crate) fn watching(tracker: &'static str) -> Result<(), TrackError> {
    for huge in [false, true] {
        for rearm in [query::REARM, query::rearm_with_content()] {
            watching_with(tracker, huge, STEP, rearm)?;
        }
    }
    Ok(())
}

/// `step` is the distance of the populated pages, as in [`populated`].
fn watching_with(tracker: &'static str, huge: bool, step: usize, rearm: PageQuery) -> Result<(), TrackError> {
    let mut scratch = populated(huge, step)?;
    let fd = userfaultfd::create(userfaultfd::USER_MODE_ONLY)?;
    userfaultfd::begin(fd.as_fd(), Discards::Silent)?;
    userfaultfd::register(fd.as_fd(), scratch.range())?;
    let map = own_map()?;
    let mut regions = PageRegions::new();
    let mut rearmed = |scratch: &Scratch| -> sys::Result<PageCount> {
        let mut pages = PageCount(0);
        let count = |range: model::AddressRange, _| pages += range.pages();
        query::ask(&map, &rearm, scratch.range(), &mut regions, count)?;
        Ok(pages)
    };
    if rearmed(&scratch)? != PAGES {
        return Err(TrackError::Unsound { tracker, change: "pages that were never protected" });
    }
    for change in CHANGES {
        (change.make)(&mut scratch)?;
        let pages = rearmed(&scratch)?;
        if pages < change.pages || (change.pages == PageCount(0)) != (pages == PageCount(0)) {
            return Err(TrackError::Unsound { tracker, change: change.name });
        }
    }
    Ok(())
}

pub(crate) fn soft_dirty(tracker: &'static str) -> Result<(), TrackError> {
    let mut scratch = populated(false, 1)?;
    let map = own_map()?;
    let bits = ClearRefs::open(own_pid())?;
    let mut entries = vec![PageEntry::default(); PAGES.get() as usize];
    bits.clear_soft_dirty()?;
    map.read_entries_at(scratch.range().start, &mut entries)?;
    if entries.iter().any(|entry| entry.is_soft_dirty()) {
        return Err(TrackError::Unsound { tracker, change: "that nothing was written" });
    }
    scratch.write(PageCount(5), 1);
    scratch.discard(PageCount(30), PageCount(2))?;
    scratch.write(PageCount(31), 1);
    map.read_entries_at(scratch.range().start, &mut entries)?;
    if !entries[5].is_soft_dirty() || !entries[31].is_soft_dirty() {
        return Err(TrackError::Unsound { tracker, change: "a write" });
    }
    if entries[30].is_populated() {
        return Err(TrackError::Unsound { tracker, change: "pages given back" });
    }
    let _ = scratch.read(PageCount(30));
    map.read_entries_at(scratch.range().start, &mut entries)?;
    if entries[30].is_exclusive() && !entries[30].is_soft_dirty() {
        return Err(TrackError::Unsound { tracker, change: "a page given back and read again" });
    }
    Ok(())
}

/// Returns memory whose first pages, and each `step`-th page of the rest, are populated.
fn populated(huge: bool, step: usize) -> sys::Result<Scratch> {
    let mut scratch = Scratch::new(PAGES)?;
    if huge {
        scratch.prefer_huge_pages();
    }
    (0..SINGLE).chain((SINGLE..PAGES.get()).step_by(step)).for_each(|page| scratch.write(PageCount(page), 1));
    Ok(scratch)
}

fn own_pid() -> Pid {
    Pid(std::process::id() as i32)
}

fn own_map() -> sys::Result<Pagemap> {
    Pagemap::open(own_pid())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sys::features::REGISTRY;
    use sys::pagemap::Categories;

    use super::*;

    #[test]
    fn a_kernel_that_hides_what_was_given_back_is_found_out() {
        for feature in ["pagemap-scan", "userfaultfd-async"] {
            let entry = REGISTRY.iter().find(|entry| entry.name() == feature).unwrap();
            if let Err(error) = (entry.probe)(Path::new("/")) {
                return println!("unsupported: {feature}: {error}");
            }
        }
        watching_with("test", false, 1, query::REARM).unwrap();
        watching_with("test", false, STEP, query::REARM).unwrap();
        // This query imitates such a kernel: only present pages count as written.
        let hiding = PageQuery { any_of: Categories::PRESENT, ..query::REARM };
        let outcome = watching_with("test", false, 1, hiding);
        assert!(
            matches!(outcome, Err(TrackError::Unsound { change: "pages given back", .. })),
            "{outcome:?}"
        );
        let deaf = PageQuery { all_of: Categories::WRITTEN.and(Categories::ZERO_PAGE), ..query::REARM };
        assert!(watching_with("test", false, 1, deaf).is_err());
    }
}
