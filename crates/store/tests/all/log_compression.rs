//! Tests of logs whose old segments are compressed.

use std::time::{Duration, Instant};

use image::{RecordSet, SpaceId};
use model::{ByteCount, PageCount, Sequence};
use store::{
    Base, CheckpointSink, Error, LogOptions, LogThreads, LogWriter, OpenCheckpoint, SegmentCompression,
    SizeLimit, Urgency,
};
use sys::clock::Clock;

use crate::common::log_model::{Subject, address, fill, meta};
use crate::common::scratch::{Scratch, compressing, options};

use undying_store as store;

/// The maximum time that the compression may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Takes this number of checkpoints.
fn go_on(writer: &LogWriter, subject: &mut Subject, epochs: usize) {
    for _ in 0..epochs {
        if let Some(ticket) = subject.epoch(writer).unwrap() {
            ticket.wait().unwrap();
        }
    }
}

/// Takes checkpoints until this number of segments is compressed. The compressing thread has the lowest priority, and
/// each checkpoint can make a segment change too often to be compressed. So the pauses between checkpoints grow.
fn compress(writer: &LogWriter, subject: &mut Subject, segments: usize) {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        go_on(writer, subject, 1);
        if writer.status().compressed >= segments {
            return;
        }
        std::thread::sleep(begun.elapsed() / 50);
    }
    panic!("no segment was compressed: {:?}", writer.status());
}

#[test]
fn segments_that_rarely_change_are_compressed_with_their_content() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(11, 600, 8);
    let writer = scratch.open(compressing("zstd"));
    compress(&writer, &mut subject, 3);
    writer.close().unwrap();
    assert!(scratch.files(".zstd") > 2, "{}", scratch.files(".zstd"));
    assert_eq!(scratch.files(".zstd"), scratch.files(".chunks"));
    let whole = subject.compare_all(&scratch.store, &scratch.name).unwrap();
    let newest = whole.last().unwrap();
    let image = scratch.image(newest.0);
    scratch.store.read(&image).unwrap().verify(|_| ()).unwrap();

    // A writer without compression can read the compressed segments and continue. The format version of the root still
    // tells older releases that they cannot read the log.
    let writer = scratch.open(options());
    assert!(writer.status().compressed > 0, "{:?}", writer.status());
    subject.restored(writer.base());
    go_on(&writer, &mut subject, 2);
    writer.close().unwrap();
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
    // One of the three kept checkpoints is older than this writer. Compaction may have moved all live pages out of the
    // compressed segments.
    if scratch.files(".zstd") > 0 {
        assert_eq!(scratch.newest_root_version(), 2);
    }
}

/// Appends changed pages to an open epoch.
fn append(epoch: &dyn OpenCheckpoint, subject: &mut Subject, pages: impl Iterator<Item = u64>) {
    for page in pages {
        let mut batch = epoch.pool().buffer().unwrap();
        let tag = subject.random.u64(..);
        fill(batch.push(SpaceId(0), address(page), PageCount(1)).unwrap(), tag);
        epoch.append(batch).unwrap();
        subject.now.pages.insert((0, page), tag);
    }
}

/// Writes one epoch that changes these pages.
fn write(writer: &LogWriter, subject: &mut Subject, pages: impl Iterator<Item = u64>) {
    let sequence = subject.next;
    subject.next = Sequence(sequence.0 + 1);
    let epoch = writer.begin(sequence, Base::Newest, Urgency::Precopy).unwrap().unwrap();
    append(&*epoch, subject, pages);
    subject.history.insert(sequence, subject.now.clone());
    epoch.commit(RecordSet::default(), meta(sequence)).unwrap().wait().unwrap();
}

#[test]
fn what_a_subject_leaves_half_empty_and_alone_is_compressed_too() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(15, 0, 0);
    let writer = scratch.open(options());
    write(&writer, &mut subject, 0..192);
    write(&writer, &mut subject, (0..192).step_by(2));
    writer.close().unwrap();
    // The log now has four half-empty segments and two full segments.
    assert!(scratch.files(".seg") >= 6, "{}", scratch.files(".seg"));
    let writer = scratch.open(compressing("lz4"));
    // The loop is needed because the compressing thread has the lowest priority.
    let begun = Instant::now();
    while writer.status().compressed < 6 && begun.elapsed() < LIMIT {
        write(&writer, &mut subject, 0..1);
        std::thread::sleep(Duration::from_millis(1));
    }
    let status = writer.status();
    writer.close().unwrap();
    // The uncompressed segments are the active segment, segments created in advance, and segments not yet inspected.
    assert!(scratch.files(".lz4") >= 6 && scratch.files(".seg") <= 4, "{status:?}");
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
}

#[test]
fn a_segment_is_compressed_once_nothing_was_written_to_it_for_so_long() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(16, 0, 0);
    let (clock, after) = (Clock::by_hand(), Duration::from_secs(3600));
    let compression = SegmentCompression { codec: store::codec("lz4").unwrap(), after, clock: clock.clone() };
    let writer =
        scratch.open(LogOptions { compression: Some(compression), threads: LogThreads::Caller, ..options() });
    write(&writer, &mut subject, 0..192);
    write(&writer, &mut subject, 0..1);
    clock.advance(after - Duration::from_secs(1));
    write(&writer, &mut subject, 0..1);
    assert_eq!(writer.status().compressed, 0);
    // The compressor inspects the segments only at intervals.
    clock.advance(after / 8);
    write(&writer, &mut subject, 0..1);
    write(&writer, &mut subject, 0..1);
    assert!(writer.status().compressed > 0, "{:?}", writer.status());
}

#[test]
fn a_copy_shares_compressed_segments_and_outlives_them() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(12, 600, 8);
    let writer = scratch.open(compressing("lz4"));
    compress(&writer, &mut subject, 3);
    let newest = *subject.history.keys().last().unwrap();
    let copy = scratch.store.link(&scratch.image(newest.0), &"kept".parse().unwrap()).unwrap();
    let was = subject.clone();
    go_on(&writer, &mut subject, 300);
    writer.close().unwrap();
    let image = scratch.store.read(&copy).unwrap();
    was.compare(newest, &image).unwrap();
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
}

#[test]
fn segments_of_a_codec_that_is_not_here_are_refused_by_name() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(13, 600, 8);
    let writer = scratch.open(compressing("lz4"));
    compress(&writer, &mut subject, 1);
    let kept = writer.status().kept;
    writer.close().unwrap();
    for entry in std::fs::read_dir(scratch.log()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|codec| codec == "lz4") {
            std::fs::rename(&path, path.with_extension("lzma")).unwrap();
        }
    }
    // The segment may belong only to an earlier checkpoint.
    let refusal = kept.iter().find_map(|sequence| scratch.store.read(&scratch.image(sequence.0)).err());
    assert!(matches!(&refusal, Some(Error::UnknownCodec { codec, .. }) if codec == "lzma"), "{refusal:?}");
    let opened = scratch.store.open_log(&scratch.name, options());
    assert!(matches!(&opened, Err(Error::UnknownCodec { .. })), "{opened:?}");
}

#[test]
fn what_was_begun_and_not_completed_is_removed() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(14, 600, 8);
    let writer = scratch.open(options());
    go_on(&writer, &mut subject, 20);
    writer.close().unwrap();
    let plain = std::fs::read_dir(scratch.log()).unwrap().map(|entry| entry.unwrap().path());
    for path in plain.collect::<Vec<_>>() {
        std::fs::write(path.with_extension("seg.lz4"), "half of it").unwrap();
        std::fs::write(path.with_extension("chunks"), "none of them").unwrap();
        std::fs::write(path.with_extension("chunks.new"), "").unwrap();
    }
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
    scratch.open(options()).close().unwrap();
    assert_eq!((scratch.files(".lz4"), scratch.files(".chunks"), scratch.files(".new")), (0, 0, 0));
    subject.compare_all(&scratch.store, &scratch.name).unwrap();
}

#[test]
fn segments_that_the_open_checkpoint_can_write_again_are_not_compressed() {
    let scratch = Scratch::new();
    let mut subject = Subject::new(17, 0, 0);
    let codec = store::codec("lz4").unwrap();
    let writer = scratch.open(LogOptions {
        compression: Some(SegmentCompression::new(codec, Duration::ZERO)),
        segment: ByteCount(28 * 4096),
        size: SizeLimit::Bytes(ByteCount(1)),
        wasted_max: PageCount(0),
        threads: LogThreads::Caller,
        ..options()
    });
    for number in 1..=4 {
        write(&writer, &mut subject, 0..2);
        writer.hold(&(1..=number).map(Sequence).collect::<Vec<_>>());
    }
    let sequence = subject.next;
    let epoch = writer.begin(sequence, Base::Newest, Urgency::Precopy).unwrap().unwrap();
    append(&*epoch, &mut subject, 0..40);
    // The log drops older checkpoints, and plans the compression of full segments.
    writer.hold(&[]);
    append(&*epoch, &mut subject, 0..40);
    subject.history.insert(sequence, subject.now.clone());
    epoch.commit(RecordSet::default(), meta(sequence)).unwrap().wait().unwrap();
    assert!(writer.status().reused > PageCount(20), "{:?}", writer.status());
    let whole = subject.compare_all(&scratch.store, &scratch.name).unwrap();
    assert_eq!(whole.last(), Some(&sequence));
}
