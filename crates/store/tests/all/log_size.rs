//! Tests of the size of a log: fewer checkpoints are kept in a small one, and wasted copies take no room.

use std::time::{Duration, Instant};

use image::{RecordSet, SpaceId};
use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use undying_store::{Base, CheckpointSink, LogOptions, LogStatus, RetentionPolicy, SizeLimit, Urgency};

use crate::common::log_model;
use crate::common::log_model::{address, meta};
use crate::common::scratch::{Scratch, options};

/// Commits 60 checkpoints, each of which rewrites all 1,600 pages. Returns the last status, after a test of all kept
/// checkpoints.
fn rewritten(size: SizeLimit) -> LogStatus {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { keep: RetentionPolicy::newest(8), size, ..options() });
    for sequence in 1..=40 {
        let epoch = writer.begin(Sequence(sequence), Base::Newest, Urgency::Precopy).unwrap().unwrap();
        for first in (0..1_600).step_by(16) {
            let mut batch = epoch.pool().buffer().unwrap();
            log_model::fill(batch.push(SpaceId(0), address(first), PageCount(16)).unwrap(), sequence + first);
            epoch.append(batch).unwrap();
        }
        epoch.commit(RecordSet::new(), meta(Sequence(sequence))).unwrap().wait().unwrap();
    }
    let status = writer.status();
    writer.close().unwrap();
    for sequence in &status.kept {
        scratch.store.read(&scratch.image(sequence.0)).unwrap().verify(|_| ()).unwrap();
    }
    status
}

#[test]
fn fewer_checkpoints_are_kept_if_the_log_would_be_too_large() {
    let memory = 1_600 * PAGE_BYTES;
    let free = rewritten(SizeLimit::None);
    assert_eq!((free.kept.len(), free.size_max, free.is_shortened), (8, None, false));
    assert!(free.disk.0 > 7 * memory, "{free:?}");
    let usual = rewritten(SizeLimit::OfPages);
    let max = usual.size_max.unwrap();
    assert!(max.0 <= 4 * memory, "{usual:?}");
    assert!(usual.is_shortened && (2..6).contains(&usual.kept.len()), "{usual:?}");
    assert!(usual.disk <= max, "{usual:?}");
    let least = rewritten(SizeLimit::Bytes(ByteCount(1)));
    assert_eq!((least.kept.len(), least.is_shortened), (2, true));
    let wide = rewritten(SizeLimit::Bytes(ByteCount(100 * memory)));
    assert_eq!((wide.kept.len(), wide.is_shortened), (8, false));
}

/// Before, an old checkpoint stayed beside the next one until its commit, and each page was stored as often as it was
/// copied: the log had six times the size of the memory.
#[test]
fn a_log_stays_within_its_limit_while_a_checkpoint_is_written_with_many_wasted_copies() {
    const PAGES: u64 = 4_000;
    let scratch = Scratch::new();
    let segment = ByteCount(1 << 20);
    let keep = RetentionPolicy::newest(8);
    let writer = scratch.open(LogOptions { keep, size: SizeLimit::OfPages, segment, ..options() });
    let mut largest = 0;
    for sequence in 1..=20 {
        let epoch = writer.begin(Sequence(sequence), Base::Newest, Urgency::Precopy).unwrap().unwrap();
        // All pages are copied twice, in two different orders.
        for (round, step) in [(0, 16), (1, 7 * 16)] {
            for number in 0..PAGES / 16 {
                let first = number * step % PAGES;
                let mut batch = epoch.pool().buffer().unwrap();
                let tag = 1 + sequence + first + 1_000_000 * round;
                log_model::fill(batch.push(SpaceId(0), address(first), PageCount(16)).unwrap(), tag);
                epoch.append(batch).unwrap();
            }
            largest = largest.max(scratch.log_bytes());
        }
        let done = epoch.commit(RecordSet::new(), meta(Sequence(sequence))).unwrap().wait().unwrap();
        assert!(100 * done.written.0 <= 105 * PAGES * PAGE_BYTES, "{} bytes", done.written);
        largest = largest.max(scratch.log_bytes());
        let held: Vec<Sequence> = [sequence.saturating_sub(1), sequence].map(Sequence).to_vec();
        writer.hold(&held);
        // Another thread removes segments.
        let began = Instant::now();
        while scratch.log_bytes() > 44 << 20 && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(held.iter().all(|one| one.0 == 0 || writer.status().kept.contains(one)), "{sequence}");
    }
    let status = writer.status();
    let max = status.size_max.unwrap().0;
    assert!(status.reused.0 > 10 * PAGES, "{status:?}");
    println!("{largest} bytes of at most {max}");
    assert!(largest <= max, "{largest} bytes of at most {max}: {status:?}");
    writer.close().unwrap();
    for sequence in [19, 20] {
        scratch.store.read(&scratch.image(sequence)).unwrap().verify(|_| ()).unwrap();
    }
}
