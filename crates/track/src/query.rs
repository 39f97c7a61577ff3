//! The queries of trackers to the page map.
//!
//! Owns: the queries, and the meaning of their results.
//! Invariants: queries inside a pause use no category for which the kernel inspects the descriptor of every page (11 ms
//! per GiB), except for the few private pages of file mappings.
//! Does not: keep anything between scans.

use std::sync::OnceLock;

use model::{Address, AddressRange, PAGE_BYTES, Pid};
use sys::pagemap::{Categories, PageQuery, PageRegions, Pagemap};
use sys::{Errno, Error};

use crate::dirty::Content;

const POPULATED: Categories = Categories::PRESENT.and(Categories::SWAPPED);

/// Written pages, protected again, without a word on what they hold: the kernel has a short way for exactly this
/// question, twice as fast as any other.
pub(crate) const REARM: PageQuery = PageQuery {
    all_of: Categories::WRITTEN,
    any_of: Categories::NONE,
    inverted: Categories::NONE,
    tell: Categories::WRITTEN,
    rearm: true,
};

/// Written pages, protected again, with what they held before that. Afterwards it cannot be told any more: where no
/// page is, the protection looks like a page that is swapped out.
pub(crate) fn rearm_telling() -> PageQuery {
    PageQuery { tell: told(), ..REARM }
}

/// Written pages.
pub(crate) fn written() -> PageQuery {
    PageQuery { rearm: false, ..rearm_telling() }
}

/// Pages that are there.
pub(crate) const fn present() -> PageQuery {
    PageQuery {
        all_of: Categories::NONE,
        any_of: POPULATED,
        inverted: Categories::NONE,
        tell: POPULATED.and(Categories::ZERO_PAGE),
        rearm: false,
    }
}

/// Pages of a process's own, in mappings of files.
pub(crate) const fn own() -> PageQuery {
    PageQuery { all_of: Categories::FILE, inverted: Categories::FILE, tell: POPULATED, ..present() }
}

/// What each page of a range holds.
pub(crate) fn content() -> PageQuery {
    PageQuery { tell: told(), ..PageQuery::default() }
}

fn told() -> Categories {
    POPULATED.and(Categories::ZERO_PAGE).and(guard())
}

/// What the categories of a page say of its content.
pub(crate) fn meaning(categories: Categories) -> Content {
    if categories.has(Categories::GUARD) {
        Content::Guard
    } else if categories.has(Categories::ZERO_PAGE) {
        Content::Zero
    } else if categories.has(Categories::PRESENT) {
        Content::Present
    } else if categories.has(Categories::SWAPPED) {
        Content::Swapped
    } else {
        Content::Absent
    }
}

/// Puts a question about a range, in as many requests as it takes.
pub(crate) fn ask(
    map: &Pagemap,
    query: &PageQuery,
    range: AddressRange,
    regions: &mut PageRegions,
    mut found: impl FnMut(AddressRange, Categories),
) -> Result<(), Error> {
    let mut start = range.start;
    while start < range.end {
        let asked = map.select(query, AddressRange::new(start, range.end), regions);
        regions.iter().for_each(|(region, categories)| found(region, categories));
        start = asked?;
    }
    Ok(())
}

/// The category of guard regions, where the kernel has them. That is asked for once, before the first scan.
fn guard() -> Categories {
    static GUARD: OnceLock<Categories> = OnceLock::new();
    *GUARD.get_or_init(|| {
        let nothing = AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES));
        let query = PageQuery { tell: Categories::GUARD, ..PageQuery::default() };
        let map = Pagemap::open(Pid(std::process::id() as i32));
        let asked = map.and_then(|map| map.select(&query, nothing, &mut PageRegions::new()));
        match asked {
            Err(error) if error.errno == Errno::EINVAL => Categories::NONE,
            _ => Categories::GUARD,
        }
    })
}
