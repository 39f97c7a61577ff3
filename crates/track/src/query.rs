//! The queries of trackers to the page map.
//!
//! Owns: the queries, and the meaning of their results.
//! Invariants: inside a pause, no query uses a category for which the kernel inspects the `struct page` of
//! every page (11 ms per GiB). The only exception is the query for private pages of file mappings.
//! Does not: store state between scans.

use std::sync::OnceLock;

use model::{Address, AddressRange, PAGE_BYTES, Pid};
use sys::pagemap::{Categories, PageQuery, PageRegions, Pagemap};
use sys::{Errno, Error};

use crate::dirty::Content;

const POPULATED: Categories = Categories::PRESENT.and(Categories::SWAPPED);

/// Selects written pages and protects them again, without categories for their content. The kernel has a fast
/// path for exactly this query, which is twice as fast as any other query.
pub(crate) const REARM: PageQuery = PageQuery {
    all_of: Categories::WRITTEN,
    any_of: Categories::NONE,
    inverted: Categories::NONE,
    reported: Categories::WRITTEN,
    rearm: true,
};

/// Returns the query that selects written pages, reports their content, and protects them again. A later
/// query cannot report the content: where no page is present, the protection looks like a swapped-out page.
pub(crate) fn rearm_with_content() -> PageQuery {
    PageQuery { reported: content_categories(), ..REARM }
}

/// Selects present pages that are written, without protecting them.
pub(crate) const CHANGED: PageQuery = PageQuery {
    all_of: Categories::WRITTEN.and(Categories::PRESENT),
    any_of: Categories::NONE,
    inverted: Categories::NONE,
    reported: Categories::WRITTEN,
    rearm: false,
};

/// Selects written pages, also pages that are not present, without protecting them. As for [`REARM`], the kernel has a fast
/// path for this query.
pub(crate) const WRITTEN: PageQuery = PageQuery { rearm: false, ..REARM };

/// Returns the query that selects present and swapped-out pages.
pub(crate) const fn present() -> PageQuery {
    PageQuery {
        all_of: Categories::NONE,
        any_of: POPULATED,
        inverted: Categories::NONE,
        reported: POPULATED.and(Categories::ZERO_PAGE),
        rearm: false,
    }
}

/// Returns the query that selects the private pages of a process in file mappings.
pub(crate) const fn own() -> PageQuery {
    PageQuery { all_of: Categories::FILE, inverted: Categories::FILE, reported: POPULATED, ..present() }
}

/// Returns the query that selects all pages and reports their content.
pub(crate) fn content() -> PageQuery {
    PageQuery { reported: content_categories(), ..PageQuery::default() }
}

fn content_categories() -> Categories {
    POPULATED.and(Categories::ZERO_PAGE).and(guard())
}

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

/// Queries a range with as many requests as necessary, and calls `found` for each region.
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

/// Returns the category of guard regions, or no category if the kernel does not know it. Only the first call,
/// before the first scan, asks the kernel.
fn guard() -> Categories {
    static GUARD: OnceLock<Categories> = OnceLock::new();
    *GUARD.get_or_init(|| {
        let nothing = AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES));
        let query = PageQuery { reported: Categories::GUARD, ..PageQuery::default() };
        let map = Pagemap::open(Pid(std::process::id() as i32));
        let asked = map.and_then(|map| map.select(&query, nothing, &mut PageRegions::with_room(1)));
        match asked {
            Err(error) if error.errno == Errno::EINVAL => Categories::NONE,
            _ => Categories::GUARD,
        }
    })
}
