//! In the steady state a scan allocates nothing, nor does the look whether areas have changed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Subject, attach, part};
use sys::allocation_count::{Counting, requests};
use undying_track::{DirtyPages, Layout, Moment};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_scan_allocates_nothing() {
    const PAGES: u64 = 4096;
    for name in ["pagemap-scan", "write-protect"] {
        let Some(mut subject) = Subject::start("obedient", &[]) else { return };
        let area = subject.map("anon", PAGES);
        let file = subject.map("file", 64);
        subject.act("write", area, 1);
        subject.act("write", file, 1);
        let Some(mut tracker) = attach(name, subject.pid()) else { continue };
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
        assert_eq!(counted, [0, 0], "{name}: allocations while running and standing");
    }
}
