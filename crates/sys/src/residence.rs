//! Finds mappings (VMAs) of a process that contain no page. Such a mapping is called "bare" here.
//!
//! Owns: reading the page counts in `/proc/PID/smaps` and `/proc/PID/statm`.
//! Invariants: a mapping is reported as bare only if the mapping is anonymous memory and the kernel counts neither
//! a resident nor a swapped-out page. The kernel counts by walking its page tables, and skips ranges without page
//! tables. The count does not include the shared zero page, pages lost to a memory failure, and guard regions.
//! Does not: find the pages inside a mapping; `pagemap` does.
//!
//! Man page: proc_pid_smaps(5), proc_pid_statm(5)
//! Since: Linux 2.6.25
//! Probe: none needed; without these files no mapping is reported as bare
//! Fallback: every entry of the page map is read

use std::fs;

use model::{Address, AddressRange, PageCount, Pid};

/// Smallest mapping, in pages, for which smaps is read. The page map entries of this many pages take one
/// millisecond to read.
const ASK_MIN: PageCount = PageCount(1 << 18);
/// Cost of a resident page in smaps (32 ns), divided by the cost of an entry of the page map (3.3 ns).
const SMAPS_COST: u64 = 10;

/// Reports whether finding the bare mappings of a range costs less than reading the page map entries of the range.
pub(crate) fn is_worth_asking(pid: Pid, range: AddressRange) -> bool {
    let resident = || {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    };
    range.pages() >= ASK_MIN
        && resident().is_some_and(|resident| range.pages().get() / SMAPS_COST >= resident)
}

/// Returns the large bare mappings inside a range, in rising order. The list is empty if smaps cannot be read.
pub(crate) fn bare_mappings(pid: Pid, range: AddressRange) -> Vec<AddressRange> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    bare_in(&text, range)
}

fn bare_in(text: &str, range: AddressRange) -> Vec<AddressRange> {
    let mut found = Vec::new();
    let mut area = None;
    let mut amounts = 0;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        match first {
            "Rss:" | "Swap:" if words.next() == Some("0") => amounts += 1,
            // `VmFlags:` begins the last line of every entry.
            "VmFlags:" => {
                found.extend(area.take().filter(|_| amounts == 2));
                amounts = 0;
            }
            _ if first.ends_with(':') => {}
            _ => area = anonymous(line).and_then(|area| inside(area, range)),
        }
    }
    found
}

/// Parses the range of a mapping from the first line of its smaps entry; `None` if a file is mapped.
fn anonymous(line: &str) -> Option<AddressRange> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let inode = words.nth(3)?;
    let number = |text| u64::from_str_radix(text, 16).ok().map(Address);
    (inode == "0").then_some(AddressRange::new(number(start)?, number(end)?))
}

fn inside(area: AddressRange, range: AddressRange) -> Option<AddressRange> {
    let (start, end) = (area.start.max(range.start), area.end.min(range.end));
    let part = (start < end).then(|| AddressRange::new(start, end))?;
    (part.pages() >= ASK_MIN).then_some(part)
}

#[cfg(test)]
mod tests {
    use model::ByteCount;

    use super::*;
    use crate::scratch::Scratch;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    /// Reports whether bare mappings cover the whole range.
    fn is_bare(range: AddressRange) -> bool {
        let bare = bare_mappings(own(), range);
        bare.iter().map(|part| part.pages().get()).sum::<u64>() == range.pages().get()
    }

    #[test]
    fn a_mapping_is_bare_until_a_page_is_written_and_after_its_pages_were_discarded() {
        let mut memory = Scratch::new(ASK_MIN).unwrap();
        // The advice keeps the kernel from merging this mapping with a mapping of another test.
        memory.prefer_huge_pages();
        assert!(is_bare(memory.range()));
        memory.write(PageCount(ASK_MIN.get() / 2 + 3), 1);
        assert!(bare_mappings(own(), memory.range()).is_empty());
        memory.discard(PageCount(0), ASK_MIN).unwrap();
        assert!(is_bare(memory.range()));
    }

    #[test]
    fn only_large_anonymous_mappings_are_reported() {
        let area = |inode: &str, rss: &str, swap: &str| {
            format!(
                "7f0000000000-7f4000000000 ---p 00000000 00:00 {inode} \nSize: 1 kB\nRss:  {rss} kB\n\
                 Swap:  {swap} kB\nSwapPss: 0 kB\nVmFlags: mr mw me\n"
            )
        };
        let whole = AddressRange::new(Address(0x7f00_0000_0000), Address(0x7f40_0000_0000));
        let around = AddressRange::new(Address(0x7e00_0000_0000), Address(0x7f80_0000_0000));
        assert_eq!(bare_in(&area("0", "0", "0"), around), [whole]);
        assert_eq!(bare_in(&area("0", "4", "0"), around), []);
        assert_eq!(bare_in(&area("0", "0", "4"), around), []);
        assert_eq!(bare_in(&area("77", "0", "0"), around), []);
        let two = area("0", "0", "8") + &area("0", "0", "0");
        assert_eq!(bare_in(&two, around), [whole]);
        // An amount that is missing for one mapping is not replaced by an amount of the next mapping.
        let cut = area("0", "0", "0").replace("Swap:  0 kB\n", "") + &area("0", "0", "4");
        assert_eq!(bare_in(&cut, around), []);
        let page = AddressRange::new(whole.start, whole.start + ByteCount(4096));
        assert_eq!(bare_in(&area("0", "0", "0"), page), []);
    }
}
