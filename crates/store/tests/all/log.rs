//! Tests of logs in a real directory: committed checkpoints can be read, disk usage stays bounded, and readers and the
//! writer do not disturb each other.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use image::{ImageKind, RecordSet, SpaceId};
use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use store::{
    Base, CheckpointSink, EPOCHS_IN_FLIGHT_MAX, Error, ImageReader, LogOptions, LogThreads, LogWriter,
    OpenCheckpoint, RetentionPolicy, SubjectName, Urgency,
};

use crate::common::log_model;
use crate::common::log_model::{Subject, address, meta};
use crate::common::scratch::{Scratch, compressing, options};

use undying_store as store;

/// Commits one page with this tag, as a change of the previous checkpoint.
fn commit(writer: &LogWriter, sequence: u64, page: u64, tag: u64) {
    let epoch = writer.begin(Sequence(sequence), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let mut batch = epoch.pool().buffer().unwrap();
    log_model::fill(batch.push(SpaceId(0), address(page), PageCount(1)).unwrap(), tag);
    epoch.append(batch).unwrap();
    epoch.commit(RecordSet::new(), meta(Sequence(sequence))).unwrap().wait().unwrap();
}

#[test]
fn random_epochs_are_restored_from_many_segments_and_incarnations() {
    for (seed, options) in [
        (1, options()),
        (2, LogOptions { threads: LogThreads::Caller, ..options() }),
        (3, compressing("lz4")),
        (4, LogOptions { threads: LogThreads::Caller, ..compressing("zstd") }),
    ] {
        let scratch = Scratch::new();
        let mut subject = Subject::new(seed, 400, 60);
        for _ in 0..3 {
            let writer = scratch.open(options.clone());
            assert_eq!(writer.base(), subject.history.keys().last().copied());
            subject.restored(writer.base());
            let mut last = None;
            for _ in 0..45 {
                if let Some(ticket) = subject.epoch(&writer).unwrap() {
                    if subject.random.u64(..3) > 0 {
                        let committed = ticket.wait().unwrap();
                        assert_eq!(committed.commit.pages.0, subject.now.pages.len() as u64);
                    }
                    last = Some(ticket);
                }
                if let Some(ticket) = &last
                    && subject.random.u64(..10) == 0
                {
                    ticket.wait().unwrap();
                    subject.compare_all(&scratch.store, &scratch.name).unwrap();
                }
            }
            writer.close().unwrap();
            let whole = subject.compare_all(&scratch.store, &scratch.name).unwrap();
            let newest: Vec<Sequence> = subject.history.keys().rev().take(3).rev().copied().collect();
            assert_eq!(whole, newest, "seed {seed}");
            for sequence in &whole {
                scratch.store.read(&scratch.image(sequence.0)).unwrap().verify(|_| ()).unwrap();
            }
        }
    }
}

#[test]
fn a_log_stays_near_its_live_pages_and_old_segments_are_removed() {
    let scratch = Scratch::new();
    let writer = scratch.open(options());
    let mut subject = Subject::new(9, 1_000, 40);
    let mut most = 0;
    for _ in 0..350 {
        if let Some(ticket) = subject.epoch(&writer).unwrap() {
            ticket.wait().unwrap();
        }
        most = most.max(writer.status().disk.0);
    }
    let status = writer.status();
    assert!(status.moved.0 > 0, "nothing was cleaned: {status:?}");
    assert!(status.full_indexes > 1 && status.syncs > 100, "{status:?}");
    // The limit covers 2.5 times the size of at most 2,000 live pages, slack, the pages of three kept checkpoints, and the
    // heads of segments.
    let live = 2_000 * PAGE_BYTES;
    assert!(most < 4 * live, "{} KiB of disk for {} KiB live", most >> 10, live >> 10);
    writer.close().unwrap();
    assert!(scratch.log_bytes() < 4 * live);
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
}

#[test]
fn readers_see_whole_checkpoints_while_the_writer_cleans() {
    readers_see_whole_checkpoints(options());
}

#[test]
fn readers_see_whole_checkpoints_while_segments_are_compressed() {
    readers_see_whole_checkpoints(compressing("lz4"));
}

fn readers_see_whole_checkpoints(options: LogOptions) {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { keep: RetentionPolicy::newest(2), ..options });
    let stop = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut opened = Vec::new();
                    while !stop.load(Ordering::Acquire) {
                        let Some((sequence, path)) = scratch.store.newest(&scratch.name).unwrap() else {
                            continue;
                        };
                        match scratch.store.read(&path) {
                            // The image stays open while the log continues, and is compared at the end.
                            Ok(image) if opened.len() < 40 => opened.push((sequence, image)),
                            Ok(image) => {
                                image
                                    .load::<Error>(image.index().extents(), NonZeroUsize::MIN, |_| Ok(()))
                                    .unwrap();
                            }
                            // Two more checkpoints were committed between `newest` and `read`.
                            Err(Error::NotCommitted { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    opened
                })
            })
            .collect();
        let mut subject = Subject::new(5, 600, 60);
        for _ in 0..200 {
            if let Some(ticket) = subject.epoch(&writer).unwrap() {
                ticket.wait().unwrap();
            }
        }
        stop.store(true, Ordering::Release);
        let opened: Vec<_> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        (subject, opened)
    });
    let (subject, opened) = opened;
    assert!(opened.len() > 2, "the readers opened {} images", opened.len());
    assert!(writer.status().moved.0 > 0, "nothing was cleaned");
    for (sequence, image) in opened {
        subject.compare(sequence, &image).unwrap();
    }
    // A segment that was superseded while it was compressed leaves nothing.
    writer.close().unwrap();
    let garbage = scratch.store.garbage(false).unwrap();
    let is_compressed = |path: &std::path::Path| path.extension().is_some_and(|kind| kind != "seg");
    assert!(!garbage.found.iter().any(|(path, _)| is_compressed(path)), "{:?}", garbage.found);
}

#[test]
fn a_checkpoint_costs_what_changed() {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { segment: ByteCount(16 << 20), ..options() });
    let epoch = writer.begin(Sequence(1), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    for number in 0..100 {
        let mut batch = epoch.pool().buffer().unwrap();
        for (place, page) in
            batch.push(SpaceId(0), address(number * 16), PageCount(16)).unwrap().chunks_mut(4096).enumerate()
        {
            log_model::fill(page, number * 16 + place as u64 + 1);
        }
        epoch.append(batch).unwrap();
    }
    let records: RecordSet = (0..50)
        .map(|number| image::Record::new("kind", 1, image::Owner::Object(number), vec![3; 1000]))
        .collect();
    let first = epoch.commit(records.clone(), meta(Sequence(1))).unwrap().wait().unwrap();
    assert_eq!((first.commit.kind, first.commit.pages), (ImageKind::Full, PageCount(1600)));
    assert!(first.written.0 > 1600 * PAGE_BYTES + 50_000);
    let epoch = writer.begin(Sequence(2), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let mut batch = epoch.pool().buffer().unwrap();
    log_model::fill(batch.push(SpaceId(0), address(7), PageCount(1)).unwrap(), 9);
    epoch.append(batch).unwrap();
    let second = epoch.commit(records.clone(), meta(Sequence(2))).unwrap().wait().unwrap();
    assert_eq!((second.commit.kind, second.commit.pages), (ImageKind::Delta, PageCount(1600)));
    assert!(second.written.0 <= 4 * PAGE_BYTES, "{} bytes for one page", second.written.0);
    let epoch = writer.begin(Sequence(3), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let third = epoch.commit(records, meta(Sequence(3))).unwrap().wait().unwrap();
    assert!(third.written.0 <= 3 * PAGE_BYTES, "{} bytes for nothing", third.written.0);
    let image = scratch.store.read(&scratch.image(3)).unwrap();
    assert_eq!((image.records().len(), image.index().pages()), (50, PageCount(1600)));
}

#[test]
fn limits_are_reported_without_waiting() {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { threads: LogThreads::Caller, ..options() });
    let epoch = writer.begin(Sequence(1), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    assert!(
        matches!(writer.begin(Sequence(2), Base::Newest, Urgency::Precopy), Err(Error::Io(_))),
        "one epoch is open at a time"
    );
    let taken: Vec<_> = std::iter::from_fn(|| epoch.pool().free_buffer().unwrap()).collect();
    assert_eq!(taken.len(), 4, "the pool has its buffers and no more");
    taken.into_iter().for_each(|batch| epoch.append(batch).unwrap());
    assert!(epoch.pool().free_buffer().unwrap().is_none());
    assert!(epoch.pool().buffer().unwrap().is_empty(), "waiting lets the writer work");
    epoch.commit(RecordSet::new(), meta(Sequence(1))).unwrap();
    for sequence in 2..=EPOCHS_IN_FLIGHT_MAX as u64 {
        let epoch = writer.begin(Sequence(sequence), Base::Newest, Urgency::Precopy).unwrap().unwrap();
        epoch.commit(RecordSet::new(), meta(Sequence(sequence))).unwrap();
    }
    assert_eq!(writer.behind(), EPOCHS_IN_FLIGHT_MAX);
    assert!(
        writer.begin(Sequence(9), Base::Newest, Urgency::Precopy).unwrap().is_none(),
        "no more epochs than the limit"
    );
    assert!(matches!(writer.begin(Sequence(9), Base::Newest, Urgency::Precopy), Ok(None)));
    writer.close().unwrap();
    assert_eq!(scratch.listed(), [2, 3, 4]);
}

#[test]
fn no_caller_waits_for_a_buffer_beyond_the_limit_or_after_waits_are_called_off() {
    let scratch = Scratch::new();
    let writer = scratch.open(options());
    let epoch = writer.begin(Sequence(1), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let held: Vec<_> = (0..4).map(|_| epoch.pool().buffer().unwrap()).collect();
    let limit = Duration::from_millis(20);
    epoch.pool().limit_waits(Some(limit));
    let begun = std::time::Instant::now();
    assert!(matches!(epoch.pool().buffer(), Err(Error::Slow(waited)) if waited == limit));
    assert!(begun.elapsed() >= limit);
    epoch.pool().limit_waits(None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| epoch.pool().buffer());
        std::thread::sleep(limit);
        assert!(!waiting.is_finished());
        writer.call_off_waits(true);
        assert!(matches!(waiting.join().unwrap(), Err(Error::CalledOff)));
    });
    writer.call_off_waits(false);
    for batch in held {
        epoch.append(batch).unwrap();
    }
    drop(epoch.pool().buffer().unwrap());
}

#[test]
fn a_subject_that_went_back_leaves_newer_checkpoints_behind() {
    for threads in [LogThreads::Own, LogThreads::Caller] {
        let scratch = Scratch::new();
        let writer = scratch.open(LogOptions { threads, keep: RetentionPolicy::newest(8), ..options() });
        for sequence in 1..=5 {
            commit(&writer, sequence, sequence, sequence);
        }
        writer.void_above(Sequence(3)).unwrap();
        // After an abandoned epoch, the next epoch must still be a full checkpoint.
        drop(writer.begin(Sequence(6), Base::Newest, Urgency::Precopy).unwrap().unwrap());
        commit(&writer, 7, 9, 9);
        assert_eq!(scratch.listed(), [1, 2, 3, 7]);
        let image = ImageReader::open(&scratch.image(7)).unwrap();
        assert_eq!(image.commit().kind, ImageKind::Full);
        assert_eq!(image.index().pages(), PageCount(1), "pages of the life that was left");
        assert_eq!(ImageReader::open(&scratch.image(3)).unwrap().index().pages(), PageCount(3));
        commit(&writer, 8, 10, 10);
        assert_eq!(ImageReader::open(&scratch.image(8)).unwrap().commit().kind, ImageKind::Delta);
    }
}

#[test]
fn completions_arrive_at_the_event() {
    let scratch = Scratch::new();
    let writer = scratch.open(options());
    commit(&writer, 1, 0, 1);
    commit(&writer, 5, 0, 2);
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(writer.event(), rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap(), 1);
    let done = writer.take_completions();
    assert_eq!(done.iter().map(|(sequence, _)| sequence.0).collect::<Vec<_>>(), [1, 5]);
    assert!(done.iter().all(|(_, result)| result.is_ok()));
    assert_eq!(rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap(), 0);
    let epoch = writer.begin(Sequence(6), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let ticket = epoch.commit(RecordSet::new(), meta(Sequence(6))).unwrap();
    assert_eq!(ticket.wait_for(Duration::from_secs(20)).unwrap().unwrap().sequence, Sequence(6));
    assert!(ticket.poll().unwrap().is_some());
    assert!(
        matches!(writer.begin(Sequence(6), Base::Newest, Urgency::Precopy), Err(Error::Exists { .. })),
        "numbers rise"
    );
}

#[test]
fn a_log_has_one_writer_and_its_checkpoints_are_images_of_the_store() {
    let scratch = Scratch::new();
    let writer = scratch.open(options());
    (1..=5).for_each(|sequence| commit(&writer, sequence, sequence, sequence));
    let refused = scratch.store.open_log(&scratch.name, options());
    assert!(matches!(refused, Err(Error::LogBusy { .. })));
    assert_eq!(scratch.listed(), [3, 4, 5]);
    for keep in [1, 0] {
        let refused = scratch.store.prune(&scratch.name, keep);
        assert!(matches!(refused, Err(Error::LogBusy { .. })), "a writer's log is its own: {refused:?}");
    }
    assert_eq!(scratch.store.next_sequence(&scratch.name).unwrap(), Sequence(6));
    assert_eq!(scratch.store.resolve("subject").unwrap(), scratch.image(5));
    assert_eq!(scratch.store.resolve("subject@4").unwrap(), scratch.image(4));
    assert!(matches!(scratch.store.resolve("subject@1"), Err(Error::NotFound { .. })));
    assert!(matches!(ImageReader::open(&scratch.image(1)), Err(Error::NotCommitted { .. })));
    let image = scratch.store.image(&scratch.name, Sequence(4)).unwrap();
    assert_eq!((image.commit().sequence, image.index().pages()), (Sequence(4), PageCount(4)));
    writer.close().unwrap();
    assert_eq!(scratch.store.prune(&scratch.name, 2).unwrap(), [Sequence(3)]);
    assert_eq!(scratch.listed(), [4, 5]);
    scratch.store.read(&scratch.image(4)).unwrap().verify(|_| ()).unwrap();
    let writer = scratch.open(options());
    assert_eq!(writer.base(), Some(Sequence(5)));
    commit(&writer, 6, 9, 9);
    writer.close().unwrap();
    assert_eq!(scratch.listed(), [4, 5, 6]);
    assert_eq!(ImageReader::open(&scratch.image(6)).unwrap().index().pages(), PageCount(6));
    assert_eq!(scratch.store.prune(&scratch.name, 0).unwrap(), [4, 5, 6].map(Sequence));
    assert!(!scratch.store.root().join("subject/log").exists());
}

#[test]
fn held_checkpoints_stay_until_others_are_held() {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { keep: RetentionPolicy::newest(2), ..options() });
    (1..=3).for_each(|count| commit(&writer, count, 3, count));
    writer.hold(&[Sequence(1), Sequence(3)]);
    (4..=9).for_each(|count| commit(&writer, count, 3, count));
    assert_eq!(writer.status().kept, [3, 8, 9].map(Sequence), "the first was gone by then");
    scratch.store.read(&scratch.image(3)).unwrap().verify(|_| ()).unwrap();
    writer.hold(&[Sequence(8)]);
    (10..=12).for_each(|count| commit(&writer, count, 3, count));
    writer.close().unwrap();
    assert_eq!(scratch.listed(), [8, 11, 12]);
}

#[test]
fn checkpoints_are_thinned_with_age() {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { keep: RetentionPolicy::thinned(8), ..options() });
    // The clock of the model advances by 10 ms for each sequence number.
    (1..=400).for_each(|count| commit(&writer, 5 * count, count % 50, count));
    let kept = writer.status().kept;
    assert!(kept.len() <= 8, "{kept:?}");
    let ages: Vec<u64> = kept.iter().map(|sequence| (2_000 - sequence.0) * 10).collect();
    assert!(ages.iter().any(|age| (200..1_000).contains(age)), "{ages:?}");
    assert!(ages.iter().any(|age| (1_000..10_000).contains(age)), "{ages:?}");
    assert!(ages.iter().any(|age| (10_000..20_000).contains(age)), "{ages:?}");
    assert!(ages.ends_with(&[100, 50, 0]), "{ages:?}");
    writer.close().unwrap();
    for sequence in kept {
        scratch.store.read(&scratch.image(sequence.0)).unwrap().verify(|_| ()).unwrap();
    }
}

#[test]
fn named_copies_and_exports_stay_when_the_log_goes_on() {
    let scratch = Scratch::new();
    let writer = scratch.open(options());
    let mut subject = Subject::new(11, 300, 60);
    let mut copies = Vec::new();
    let target = scratch.store.root().parent().unwrap().join("exported");
    let committed = (0..150).filter_map(|_| subject.epoch(&writer).unwrap());
    for (number, ticket) in committed.enumerate() {
        let sequence = ticket.wait().unwrap().sequence;
        if number % 30 == 10 {
            let name: SubjectName = format!("copy-{number}").parse().unwrap();
            let path = scratch.store.link(&scratch.image(sequence.0), &name).unwrap();
            assert!(matches!(
                scratch.store.link(&scratch.image(sequence.0), &name),
                Err(Error::Exists { .. })
            ));
            copies.push((sequence, name, path));
        }
        if number == 70 {
            scratch.store.export(&scratch.image(sequence.0), &target, None).unwrap();
            copies.push((sequence, scratch.name.clone(), target.clone()));
        }
    }
    writer.close().unwrap();
    // Copy a copy, then remove the source.
    let (sequence, name, path) = copies[0].clone();
    let second = scratch.store.link(&path, &"second".parse().unwrap()).unwrap();
    assert!(scratch.store.remove(&name, sequence).unwrap());
    assert!(!scratch.store.remove(&name, sequence).unwrap());
    copies[0].2 = second;
    scratch.store.prune(&scratch.name, 0).unwrap();
    assert!(scratch.listed().is_empty());
    for (sequence, _, path) in copies {
        scratch.store.read(&path).unwrap().verify(|_| ()).unwrap();
        subject.compare(sequence, &ImageReader::open(&path).unwrap()).unwrap();
    }
    assert_eq!(std::fs::metadata(target.join("pages-0.seg")).unwrap().len() % PAGE_BYTES, 0);
    assert!(scratch.store.resolve("second").is_ok());
}

#[test]
fn a_squashed_checkpoint_lies_in_one_piece_and_the_others_stay() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(23, 400, 60);
    let mut epochs = 120;
    let (listed, before, done) = loop {
        let writer = scratch.open(options());
        for _ in 0..epochs {
            let Some(ticket) = subject.epoch(&writer).unwrap() else { continue };
            ticket.wait().unwrap();
        }
        let refused = scratch.store.squash(&scratch.name);
        assert!(matches!(refused, Err(Error::LogBusy { .. })), "it has a writer");
        writer.close().unwrap();
        let listed = scratch.listed();
        let newest = *listed.last().unwrap();
        let before = scratch.store.read(&scratch.image(newest)).unwrap();
        let done = scratch.store.squash(&scratch.name).unwrap().unwrap();
        assert_eq!((done.sequence, done.older), (Sequence(newest), listed.len() - 1));
        if done.parts > 1 {
            break (listed, before, done);
        }
        // The log had just merged the deltas. The next epochs write new deltas.
        assert!(subject.next < Sequence(1000), "there were never deltas to merge");
        epochs = 10;
    };
    let newest = *listed.last().unwrap();
    assert_eq!(scratch.listed(), listed, "all that could be restored still can");
    for sequence in &listed {
        scratch.store.read(&scratch.image(*sequence)).unwrap().verify(|_| ()).unwrap();
        let image = scratch.store.read(&scratch.image(*sequence)).unwrap();
        subject.compare(Sequence(*sequence), &image).unwrap();
    }
    let after = scratch.store.read(&scratch.image(newest)).unwrap();
    assert_eq!(after.index().pages(), before.index().pages());
    assert!(
        after.index().extents().len() < before.index().extents().len(),
        "pages that follow each other lie so"
    );
    assert_eq!(after.commit().time, before.commit().time);
    // A reader that was opened before `squash` can still read.
    subject.compare(Sequence(newest), &before).unwrap();

    // Only the squashed checkpoint remains. The log then contains its pages, in whole segments, and the active segment.
    scratch.store.prune(&scratch.name, 1).unwrap();
    assert!(scratch.log_bytes() <= done.bytes.0 * 16 / 12 + 4 * (1 << 18), "{} bytes", scratch.log_bytes());
    subject.compare(Sequence(newest), &scratch.store.read(&scratch.image(newest)).unwrap()).unwrap();
    // A new writer continues from this checkpoint.
    let writer = scratch.open(options());
    assert_eq!(writer.base(), Some(Sequence(newest)));
    let ticket = subject.epoch(&writer).unwrap().unwrap();
    let sequence = ticket.wait().unwrap().sequence;
    writer.close().unwrap();
    subject.compare(sequence, &scratch.store.read(&scratch.image(sequence.0)).unwrap()).unwrap();
}

#[test]
fn garbage_is_what_nothing_refers_to_and_nobody_works_on() {
    let scratch = Scratch::new();
    let writer = scratch.open(options());
    let mut subject = Subject::new(5, 100, 20);
    let sequence = subject.epoch(&writer).unwrap().unwrap().wait().unwrap().sequence;
    let log = scratch.store.root().join("subject/log");
    let garbage = scratch.store.garbage(true).unwrap();
    assert_eq!((garbage.found.len(), &garbage.busy[..]), (0, &[scratch.name.clone()][..]), "it has a writer");
    writer.close().unwrap();
    // Create an unused segment and an unfinished image.
    let stray = log.join("0000009999.seg");
    std::fs::copy(log.join("0000000001.seg"), &stray).unwrap();
    let partial = scratch.store.root().join("subject/.7.1-1.partial");
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("pages-0.seg"), [1; 100]).unwrap();
    for (path, mode) in [(&partial, 0o700), (&partial.join("pages-0.seg"), 0o600)] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }

    let found = scratch.store.garbage(false).unwrap().found;
    let has = |path: &PathBuf| found.iter().any(|(found, _)| found == path);
    assert!(has(&stray) && has(&partial), "{found:?}");
    assert!(stray.exists() && partial.exists(), "looking removes nothing");
    assert_eq!(scratch.store.garbage(true).unwrap().found, found);
    assert!(!stray.exists() && !partial.exists());
    assert!(scratch.store.garbage(false).unwrap().found.is_empty());
    scratch.store.read(&scratch.image(sequence.0)).unwrap().verify(|_| ()).unwrap();

    // If the newest checkpoint is damaged, segments that may contain its data must not be removed.
    let first = log.join("0000000001.seg");
    let mut bytes = std::fs::read(&first).unwrap();
    bytes[16 * 4096..].fill(0xa5);
    std::fs::write(&first, bytes).unwrap();
    let garbage = scratch.store.garbage(true).unwrap();
    assert_eq!(garbage.damaged.len(), 1, "{garbage:?}");
    assert!(first.exists());
}

/// Takes all buffers that are available without a wait.
fn drain(epoch: &dyn OpenCheckpoint) -> Vec<store::PageBatch> {
    epoch.pool().limit_waits(Some(Duration::ZERO));
    let taken = std::iter::from_fn(|| match epoch.pool().buffer() {
        Err(Error::Slow { .. }) => None,
        batch => Some(batch.unwrap()),
    });
    let taken = taken.collect();
    epoch.pool().limit_waits(None);
    taken
}

#[test]
fn a_reserve_exists_beside_the_pool_and_its_excess_is_waited_for() {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { threads: LogThreads::Caller, ..options() });
    let epoch = writer.begin(Sequence(1), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    let reserved = epoch.pool().reserve(3).unwrap();
    let free: Vec<_> = std::iter::from_fn(|| epoch.pool().free_buffer().unwrap()).collect();
    assert_eq!(free.len(), 1, "in a stop none is made in place of those that are reserved");
    free.into_iter().for_each(|batch| epoch.pool().put_back(batch));
    let pool = drain(&*epoch);
    assert_eq!((reserved.len(), pool.len()), (3, 4), "the pool has its buffers beside the reserve");
    let spares: Vec<_> = (0..5).map(|_| epoch.pool().spare().unwrap()).collect();
    assert!(epoch.pool().free_buffer().unwrap().is_none());
    reserved.into_iter().for_each(|batch| epoch.pool().put_back(batch));
    writer.call_off_waits(true);
    assert!(
        matches!(epoch.pool().reserve(4), Err(Error::CalledOff)),
        "five more than there may be are still out"
    );
    writer.call_off_waits(false);
    // The spare buffers are written and then freed.
    spares.into_iter().for_each(|batch| epoch.append(batch).unwrap());
    let reserved = epoch.pool().reserve(4).unwrap();
    let spare = drain(&*epoch);
    assert_eq!((reserved.len(), spare.len()), (4, 0), "as many as may be");
    reserved.into_iter().chain(spare).chain(pool).for_each(|batch| epoch.pool().put_back(batch));
    for _ in 0..8 {
        epoch.pool().reserve(0).unwrap();
    }
    assert_eq!(drain(&*epoch).len(), 4, "in the end there are those of the pool");
}

#[test]
fn a_batch_that_is_lost_is_replaced() {
    let scratch = Scratch::new();
    let writer = scratch.open(LogOptions { threads: LogThreads::Caller, ..options() });
    let epoch = writer.begin(Sequence(1), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    for _ in 0..20 {
        drop(epoch.pool().buffer().unwrap());
    }
    assert_eq!(drain(&*epoch).len(), 4);
    assert_eq!(drain(&*epoch).len(), 4, "what was drained is lost, too");
}
