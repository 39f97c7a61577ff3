//! Scans by worker threads report the same pages as other scans.

use crate::common::case::{Case, pages};
use crate::common::{part, worker_pool};
use model::{AddressRange, ByteCount, PAGE_BYTES};
use undying_track::{DirtyPages, Moment};

#[test]
fn a_scan_that_is_begun_ahead_tells_the_same() {
    const PAGES: u64 = 4096;
    let Some(worker_pool) = worker_pool() else { return };
    let Some(mut case) = Case::new("pagemap-scan", &[("anon", PAGES), ("shared", 1024)]) else { return };
    let areas = case.areas.clone();
    case.cover();
    for area in &areas {
        case.scan(*area);
    }
    for round in 0..20 {
        let first = 17 * round;
        case.subject.act("write", part(areas[0], first, first + 3), round);
        case.subject.act("write", part(areas[0], PAGES - 100, PAGES - 50), round);
        case.subject.act("write", part(areas[1], 1000 - round, 1001 - round), round);
        let mut dirty = DirtyPages::new();
        worker_pool.dismiss();
        case.tracker.post_scan(&worker_pool, ByteCount(1 << 20));
        worker_pool.begin();
        if round % 4 == 3 {
            // The stop is aborted. The pages that the workers have found must be reported all the same.
            case.tracker.scan(Moment::Running, &mut dirty).unwrap();
        } else {
            case.tracker.scan(Moment::Stopped, &mut dirty).unwrap();
        }
        assert_eq!(pages_in(&dirty, areas[0]), [first..first + 3, PAGES - 100..PAGES - 50], "round {round}");
        let one: Vec<_> = std::iter::once(1000 - round..1001 - round).collect();
        assert_eq!(pages_in(&dirty, areas[1]), one, "round {round}");
    }
}

#[test]
fn a_mapping_that_is_replaced_under_a_scan_begun_ahead_costs_no_report() {
    const PAGES: u64 = 4096;
    let Some(worker_pool) = worker_pool() else { return };
    let Some(mut case) = Case::new("pagemap-scan", &[("anon", PAGES)]) else { return };
    let area = case.areas[0];
    case.subject.act("write", part(area, 7, 8), 5);
    case.subject.act("write", part(area, 4000, 4001), 5);
    case.subject.act("again", part(area, 1000, 1100), 0);
    let mut dirty = DirtyPages::new();
    case.tracker.post_scan(&worker_pool, ByteCount(1 << 20));
    worker_pool.begin();
    case.tracker.scan(Moment::Stopped, &mut dirty).unwrap();
    let told =
        |page: u64| dirty.ranges().iter().any(|found| found.range.contains(part(area, page, page + 1).start));
    assert!(told(7) && told(4000), "what was written beside it");
    assert!((1000..1100).all(told), "the new mapping");
    assert!(!told(500) && !told(3000), "what nobody wrote");
    assert_eq!(case.after("write", 2000, 2001, 3), (pages(2000, 2001), vec![]));
}

/// Returns the pages of a mapping that were reported and must be read, as joined ranges of page numbers.
fn pages_in(dirty: &DirtyPages, area: AddressRange) -> Vec<std::ops::Range<u64>> {
    let mut found: Vec<u64> = dirty
        .ranges()
        .iter()
        .filter(|dirty| area.overlaps(dirty.range) && dirty.content.must_read())
        .flat_map(|dirty| {
            let first = (dirty.range.start - area.start).get() / PAGE_BYTES;
            first..first + dirty.range.pages().get()
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.chunk_by(|one, next| one + 1 == *next).map(|run| run[0]..run[run.len() - 1] + 1).collect()
}
