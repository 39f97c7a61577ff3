//! Finds the pages that several processes share, copy-on-write.
//!
//! process_vm_readv(2) pins the pages that it reads. Before the kernel pins a page that several processes share, it
//! gives the process a copy of its own (FAULT_FLAG_UNSHARE, since Linux 5.19). A checkpoint that read all memory in this
//! way would end the sharing. A read of `/proc/PID/mem` pins no page, but takes up to twice as long. So only pages that
//! may be shared are read through `/proc/PID/mem`.
//!
//! Owns: the division of a range into shared and other pages.
//! Invariants: the pages are divided before they are read. A process can fork in between, and then the read of a shared
//! page can end the sharing of this page. The content of a checkpoint does not depend on this.
//! Does not: read the content of pages.

use model::{AddressRange, ByteCount, PAGE_BYTES, PageCount};
use sys::pagemap::PageEntry;

use super::address_space::AddressSpace;

/// In the pause of a continuous checkpoint, shorter ranges are not divided. For a short range, a read of the page map
/// would take about as long as the copying. Nearly all pages in short ranges were written since the last checkpoint, and
/// a write ends the sharing of a page.
pub(super) const PAUSE_PAGES_MIN: PageCount = PageCount(8);

/// Pages between two shared pages count as shared if there are fewer than this number of them. One read of several pages
/// is faster than many reads.
const GAP_PAGES: usize = 8;

/// Divides a range into parts that other processes share (`true`) and other parts (`false`). A range with fewer than
/// `pages_min` pages is one part that is not shared.
pub(super) fn parts(
    space: &AddressSpace,
    range: AddressRange,
    pages_min: PageCount,
) -> impl Iterator<Item = (AddressRange, bool)> {
    let mut entries = Vec::new();
    if space.may_share && range.pages() >= pages_min {
        entries.resize(range.pages().get() as usize, PageEntry::default());
        // An entry that cannot be read stays zero, and its page counts as not shared.
        let _ = space.pagemap.read_entries_at(range.start, &mut entries);
    }
    // Most ranges are not divided, and need no allocation.
    let whole = entries.is_empty().then_some((range.pages().get() as usize, false));
    let lengths = lengths(&entries.iter().map(is_shared).collect::<Vec<_>>());
    let mut start = range.start;
    whole.into_iter().chain(lengths).map(move |(pages, is_shared)| {
        let part = AddressRange::new(start, start + ByteCount(pages as u64 * PAGE_BYTES));
        start = part.end;
        (part, is_shared)
    })
}

/// Reports whether other processes may map the private page of an entry. The page map does not show whether a page in
/// swap is shared.
fn is_shared(entry: &PageEntry) -> bool {
    entry.is_populated() && !entry.is_file_or_shared() && !entry.is_exclusive()
}

/// Returns the lengths of the runs of equal flags. Short runs of `false` between two runs of `true` belong to them.
fn lengths(shared: &[bool]) -> Vec<(usize, bool)> {
    let mut runs: Vec<(usize, bool)> = Vec::new();
    for run in shared.chunk_by(|one, next| one == next) {
        match &mut runs[..] {
            [.., (before, true), (gap, false)] if run[0] && *gap < GAP_PAGES => {
                *before += *gap + run.len();
                runs.pop();
            }
            _ => runs.push((run.len(), run[0])),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_between_shared_pages_count_as_shared() {
        let flags = |runs: &[(usize, bool)]| {
            runs.iter().flat_map(|(count, flag)| vec![*flag; *count]).collect::<Vec<_>>()
        };
        let mixed = [(3, false), (1, true), (7, false), (2, true), (8, false), (1, true), (2, false)];
        let expected = [(3, false), (10, true), (8, false), (1, true), (2, false)];
        assert_eq!(lengths(&flags(&mixed)), expected);
        assert_eq!(lengths(&flags(&[(5, true)])), [(5, true)]);
        assert_eq!(lengths(&[]), []);
    }
}
