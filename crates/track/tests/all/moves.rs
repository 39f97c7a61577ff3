//! Tests mappings that are replaced, moved or enlarged while they are watched.

use crate::common::case::{Case, DONTNEED, NONE, PAGEMAP_SCAN, pages, split};
use crate::common::part;
use model::{Address, AddressRange};
use undying_track::{DirtyPages, Layout, Moment};

#[test]
fn a_mapping_replaced_by_an_equal_one_reports_itself() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 256)]) else { return };
    let area = case.areas[0];
    let mut layout = Layout::open(case.pid()).unwrap();
    assert!(layout.changed().unwrap());
    case.subject.act("again", part(area, 100, 200), 0);
    case.subject.act("write", part(area, 150, 151), 9);
    let mut dirty = DirtyPages::new();
    case.tracker.scan(Moment::Stopped, &mut dirty).unwrap();
    let inside = |at: Address| dirty.ranges().iter().filter(|found| found.range.contains(at)).count();
    for page in 100..200 {
        assert!(inside(part(area, page, page + 1).start) > 0, "page {page} of the new mapping");
    }
    assert_eq!(inside(part(area, 99, 100).start), 0, "the old mapping is as it was");
    assert!(dirty.replaced().iter().any(|range| range.overlaps(area)));
    // The new mapping is watched now.
    assert_eq!(case.after("write", 160, 161, 3), (pages(160, 161), vec![]));
    assert_eq!(case.after("write", 5, 6, 3), (pages(5, 6), vec![]));
}

#[test]
fn moved_and_grown_memory_is_new() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 64)]) else { return };
    let start = Address(case.subject.act("move", case.areas[0], 0));
    let moved = AddressRange::new(start, start + case.areas[0].len());
    let (fresh, unwatched) = case.cover();
    assert!(fresh.contains(&moved) && unwatched.iter().all(|area| !area.range.overlaps(moved)));
    assert_eq!(split(&case.scan(moved)), (pages(0, 64), vec![]));
    case.areas = vec![moved];
    assert_eq!(case.after("write", 9, 10, 1), (pages(9, 10), vec![]));
    // The memory is shrunk and enlarged again in place. Its second half is new and empty.
    case.subject.act("resize", moved, 32);
    assert_eq!(case.subject.act("resize", part(moved, 0, 32), 64), start.get());
    let (fresh, _) = case.cover();
    let (read, nothing) = split(&case.scan(moved));
    let told = [read, nothing].concat();
    assert!(!fresh.is_empty() || (32..64).all(|page| told.contains(&page)), "{fresh:?} {told:?}");
    assert_eq!(case.after("write", 40, 41, 1), (pages(40, 41), vec![]));
}

#[test]
fn memory_that_is_moved_beside_other_memory_takes_nothing_from_its_watch() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 64)]) else { return };
    let home = case.areas[0];
    let (stays, place) = (part(home, 0, 32), part(home, 32, 64));
    // Half of the mapping is moved away and back. The kernel then merges both halves.
    let away = Address(case.subject.act("move", place, 0));
    let away = AddressRange::new(away, away + place.len());
    case.cover();
    case.scan(home);
    assert_eq!(split(&case.scan(home)), NONE);
    assert_eq!(Address(case.subject.act("moveto", away, place.start.get())), place.start);
    // The half that was not moved is still protected from before the move.
    case.subject.act("write", part(stays, 7, 8), 5);
    case.subject.act("write", part(place, 9, 10), 6);
    case.cover();
    let (read, _) = split(&case.scan(home));
    assert!(read.contains(&7), "a write beside what was moved: {read:?}");
    assert!((32..64).all(|page| read.contains(&page)), "what was moved: {read:?}");
    assert_eq!(case.after("write", 8, 9, 7), (pages(8, 9), vec![]));
    assert_eq!(case.after("write", 40, 41, 7), (pages(40, 41), vec![]));
}

#[test]
fn memory_without_pages_that_is_moved_beside_other_memory_takes_nothing_either() {
    let Some(mut case) = Case::new(PAGEMAP_SCAN, &[("anon", 64)]) else { return };
    let home = case.areas[0];
    let place = part(home, 32, 64);
    let away = Address(case.subject.act("move", place, 0));
    let away = AddressRange::new(away, away + place.len());
    case.subject.act("advise", away, DONTNEED);
    case.cover();
    case.scan(home);
    assert_eq!(split(&case.scan(home)), NONE);
    assert_eq!(Address(case.subject.act("moveto", away, place.start.get())), place.start);
    case.subject.act("write", part(home, 7, 8), 5);
    case.cover();
    let (read, _) = split(&case.scan(home));
    assert!(read.contains(&7), "a write beside what was moved: {read:?}");
    assert_eq!(case.after("write", 8, 9, 7), (pages(8, 9), vec![]));
}
