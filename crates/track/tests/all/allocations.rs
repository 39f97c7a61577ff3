//! Some operations of a pause allocate no memory in the steady state: a scan, the check for changed mappings,
//! and operations on sets of ranges.

use crate::common::{Subject, attach, part};
use model::{Address, AddressRange, RangeSet};
use sys::allocation_count::{Counting, requests};
use undying_track::{DirtyPages, Layout, Moment};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_scan_allocates_nothing() {
    const PAGES: u64 = 4096;
    let Some(mut subject) = Subject::start("obedient", &[]) else { return };
    let area = subject.map("anon", PAGES);
    let file = subject.map("file", 64);
    subject.act("write", area, 1);
    subject.act("write", file, 1);
    let Some(mut tracker) = attach("pagemap-scan", subject.pid()) else { return };
    let mut layout = Layout::open(subject.pid()).unwrap();
    let mut dirty = DirtyPages::new();
    let mut counted = [0; 2];
    for round in 0..20 {
        for page in (round..PAGES).step_by(37) {
            subject.act("write", part(area, page, page + 1), round);
        }
        subject.act("write", part(file, round, round + 3), round);
        for (moment, counted) in [Moment::Running, Moment::Stopped].into_iter().zip(&mut counted) {
            dirty.clear();
            let before = requests();
            tracker.scan(moment, &mut dirty).unwrap();
            layout.changed().unwrap();
            if round > 2 {
                *counted += requests() - before;
            }
        }
    }
    assert_eq!(counted, [0, 0], "allocations while running and standing");
}

#[test]
fn a_set_of_ranges_allocates_only_when_it_outgrows_its_room() {
    let page = |number: u64| AddressRange::new(Address(number << 12), Address((number + 1) << 12));
    let everything = AddressRange::new(Address(0), Address(u64::MAX));
    let mut list = Vec::with_capacity(128);
    list.extend((0..64).rev().map(|number| page(4 * number)));
    let other: RangeSet = (0..64).map(|number| page(3 * number)).collect();
    let before = requests();
    let mut set = RangeSet::from(list);
    for number in 0..64 {
        // The range is merged with its neighbours, split in the middle, and removed.
        set.insert(AddressRange::new(page(4 * number).start, page(4 * number + 3).end));
        set.remove(page(4 * number + 1));
        assert_eq!(set.within(page(4 * number)).count() + set.gaps(page(4 * number)).count(), 1);
        set.remove(AddressRange::new(page(4 * number + 1).start, page(4 * number + 3).end));
    }
    // Of the first 48 pages of the set, every third page is also in the other set.
    assert_eq!(set.difference(&other).count(), 64 - 16);
    set.extend([page(1000), page(500)]);
    set.remove(everything);
    assert!(set.is_empty());
    assert_eq!(requests() - before, 0);
}
