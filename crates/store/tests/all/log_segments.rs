//! Tests of the lengths of segments: they follow the size of the log, and all checkpoints can be read.

use std::cell::Cell;
use std::collections::BTreeSet;

use image::{RecordSet, SpaceId};
use model::{AddressRange, PageCount, Sequence};
use store::{Base, CheckpointSink, LogWriter, Urgency};

use crate::common::log_model;
use crate::common::log_model::{address, meta};
use crate::common::scratch::{Scratch, options};

use undying_store as store;

/// Writes a checkpoint of `pages` random pages among the first `span` pages.
fn write_some(writer: &LogWriter, sequence: u64, (pages, span): (u64, u64), random: &mut fastrand::Rng) {
    let epoch = writer.begin(Sequence(sequence), Base::Newest, Urgency::Precopy).unwrap().unwrap();
    for _ in 0..pages / 16 {
        let mut batch = epoch.pool().buffer().unwrap();
        let first = random.u64(..span / 16) * 16;
        let bytes = batch.push(SpaceId(0), address(first), PageCount(16)).unwrap();
        for (number, page) in bytes.chunks_mut(4096).enumerate() {
            log_model::fill(page, sequence << 32 | first | number as u64);
        }
        epoch.append(batch).unwrap();
    }
    epoch.commit(RecordSet::new(), meta(Sequence(sequence))).unwrap().wait().unwrap();
}

#[test]
fn the_segments_of_a_large_log_are_large_and_those_of_a_small_one_small() {
    const SMALL: u64 = 1 << 18;
    let seed = fastrand::u64(..1 << 32);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let scratch = Scratch::new();
    let lengths = || -> BTreeSet<u64> {
        let entries = std::fs::read_dir(scratch.log()).unwrap();
        // Another thread may remove an entry meanwhile.
        entries
            .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
            .filter(|length| *length > 0)
            .collect()
    };
    let verify = || {
        for sequence in scratch.listed() {
            scratch.store.read(&scratch.image(sequence)).unwrap().verify(|_| ()).unwrap();
        }
    };
    let (sequence, mut writer) = (Cell::new(0), scratch.open(options()));
    let next = || sequence.replace(sequence.get() + 1) + 1;
    let mut write = |writer: &LogWriter, times: u64, part: (u64, u64)| {
        (0..times).for_each(|_| write_some(writer, next(), part, &mut random));
    };
    write(&writer, 2, (64, 64));
    assert_eq!((lengths(), scratch.newest_root_version()), (BTreeSet::from([SMALL]), 1));
    // A held checkpoint keeps small segments.
    writer.hold(&[Sequence(2)]);
    // 17.5 MiB: one of 64 parts of the four times as large maximum is more than 1 MiB.
    write(&writer, 24, (1024, 4480));
    assert_eq!(lengths().last(), Some(&(4 * SMALL)));
    verify();
    writer.close().unwrap();
    assert_eq!(scratch.newest_root_version(), 3, "earlier releases say that they do not know it");
    // The next writer finds segments of several lengths, and moves their pages.
    writer = scratch.open(options());
    write(&writer, 20, (512, 4480));
    assert_eq!(lengths().last(), Some(&(4 * SMALL)));
    verify();
    let shrunk = Sequence(next());
    let epoch = writer.begin(shrunk, Base::Newest, Urgency::Precopy).unwrap().unwrap();
    epoch.discard(SpaceId(0), AddressRange::new(address(64), address(4480))).unwrap();
    epoch.commit(RecordSet::new(), meta(shrunk)).unwrap().wait().unwrap();
    write(&writer, 40, (64, 64));
    assert_eq!(sequence.get(), scratch.listed().last().copied().unwrap());
    verify();
    writer.close().unwrap();
    assert_eq!(lengths(), BTreeSet::from([SMALL]), "the large segments are gone");
    drop(scratch.open(options()));
    verify();
}
