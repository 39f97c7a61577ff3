//! Round trips: every part of an image decodes to the encoded value.
//!
//! Further tests check that records are found and counted.

use std::time::{Duration, UNIX_EPOCH};

use image::{
    Checksum, Commit, Extent, ImageKind, Owner, Packing, PageIndex, Record, RecordSet, SealedFile,
    SegmentFile, SegmentId, Source, SpaceId, Timings,
};
use model::{Address, ByteCount, DescriptionId, PAGE_BYTES, PageCount, Pid, Sequence, Tid};
use proptest::prelude::*;

use undying_image as image;

fn owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        Just(Owner::Tree),
        any::<i32>().prop_map(|pid| Owner::Process(Pid(pid))),
        any::<i32>().prop_map(|tid| Owner::Thread(Tid(tid))),
        (0..3u32).prop_map(|id| Owner::Description(DescriptionId(id))),
        any::<u64>().prop_map(Owner::Object),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    ("[a-c]{1,2}", any::<u32>(), owner(), prop::collection::vec(any::<u8>(), 0..200))
        .prop_map(|(kind, version, owner, payload)| Record::new(kind, version, owner, payload))
}

proptest! {
    #[test]
    fn records_come_back_in_order(records in prop::collection::vec(record(), 0..40)) {
        let set: RecordSet = records.iter().cloned().collect();
        let decoded = RecordSet::decode(&set.encode().unwrap()).unwrap();
        prop_assert_eq!(decoded.len(), records.len());
        prop_assert_eq!(decoded.iter().cloned().collect::<Vec<_>>(), records);
    }

    #[test]
    fn every_record_is_taken_exactly_once(records in prop::collection::vec(record(), 0..40), choice in any::<u64>()) {
        let mut set: RecordSet = records.iter().cloned().collect();
        let mut taken = Vec::new();
        for (number, record) in records.iter().enumerate() {
            match (choice >> (number % 64)) % 3 {
                0 => taken.extend(set.take(&record.kind, record.owner)),
                1 => taken.extend(set.take_each(&record.kind, record.owner)),
                _ => taken.extend(set.take_all(&record.kind)),
            }
            prop_assert_eq!(set.len() + taken.len(), records.len());
        }
        prop_assert!(set.is_empty() && set.first_left().is_none());
        let key = |record: &Record| (record.kind.clone(), record.version, record.owner, record.payload.clone());
        let (mut taken, mut pushed) = (taken, records);
        taken.sort_by_key(key);
        pushed.sort_by_key(key);
        prop_assert_eq!(taken, pushed);
    }

    #[test]
    fn an_index_comes_back(extents in extents()) {
        let index = PageIndex::from_extents(extents.clone()).unwrap();
        prop_assert_eq!(&PageIndex::decode(&index.encode().unwrap()).unwrap(), &index);
        for extent in &extents {
            let last = Address(extent.range().end.0 - 1);
            prop_assert_eq!(index.find(extent.space, extent.start), Some(extent));
            prop_assert_eq!(index.find(extent.space, last), Some(extent));
            prop_assert!(index.of_space(extent.space).contains(extent));
        }
        prop_assert_eq!(index.pages().0, extents.iter().map(|extent| extent.pages.0).sum::<u64>());
    }
}

/// Generates non-overlapping extents in two spaces.
fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let one = (0..2u32, 1..=256u64, 0..5u64, prop::option::of((0..4u32, 0..1000u64, any::<u32>())));
    prop::collection::vec(one, 0..50).prop_map(|parts| {
        let mut end = 0;
        let place = |(space, pages, gap, source): (u32, u64, u64, Option<(u32, u64, u32)>)| {
            let start = end + gap * PAGE_BYTES;
            end = start + pages * PAGE_BYTES;
            let source = source.map_or(Source::Zero, |(segment, page, checksum)| Source::Stored {
                segment: SegmentId(segment),
                offset: ByteCount(page * PAGE_BYTES),
                checksum: Checksum(checksum),
            });
            Extent { space: SpaceId(space), start: Address(start), pages: PageCount(pages), source }
        };
        let extents: Vec<Extent> = parts.into_iter().map(place).collect();
        extents.into_iter().rev().collect()
    })
}

#[test]
fn records_are_found_by_kind_and_owner() {
    let mut set = RecordSet::new();
    let area = |owner, payload| Record::new("area", 1, owner, vec![payload]);
    let (first, second) = (Owner::Process(Pid(1)), Owner::Process(Pid(2)));
    set.push(area(first, 1));
    set.push(area(second, 2));
    set.push(area(first, 3));
    set.push(Record::new("unknown", 4, Owner::Tree, vec![]));
    assert_eq!(set.take("area", Owner::Thread(Tid(1))), None);
    assert_eq!(set.take("area", first).unwrap().payload[..], [1]);
    let rest: Vec<u8> = set.take_all("area").into_iter().map(|record| record.payload[0]).collect();
    assert_eq!(rest, [2, 3]);
    let left = set.first_left().unwrap();
    assert_eq!((left.kind.as_str(), left.owner.to_string().as_str()), ("unknown", "the tree"));
}

#[test]
fn a_commit_record_comes_back() {
    let file = |name: &str| SealedFile { name: name.into(), length: ByteCount(7), checksum: Checksum(9) };
    let commit = Commit {
        sequence: Sequence(u64::MAX),
        time: UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789),
        subject: "redis-server".into(),
        kind: ImageKind::Delta,
        pids: vec![Pid(1), Pid(77)],
        kernel_release: "6.12.0".into(),
        tool_version: "0.1.0".into(),
        timings: Timings { pause: Duration::from_micros(281), ..Timings::default() },
        pages: PageCount(12),
        bytes: ByteCount(34),
        records: file("records"),
        index: file("index"),
        segments: vec![SegmentFile {
            id: SegmentId(3),
            name: "pages-3.seg".into(),
            length: ByteCount(4096),
            packing: None,
        }],
    };
    assert_eq!(Commit::decode(&commit.encode().unwrap()).unwrap(), commit);
    assert_eq!(commit.encode().unwrap()[8], 1, "readers of the first format can read it");

    let mut compressed = commit.clone();
    compressed.segments[0].packing = Some(Packing { codec: "lz4".into(), chunks: file("chunks-3") });
    assert_eq!(Commit::decode(&compressed.encode().unwrap()).unwrap(), compressed);
    assert_eq!(compressed.encode().unwrap()[8], 2, "readers of the first format are told that it is later");
    compressed.segments[0].packing = Some(Packing { codec: String::new(), chunks: file("chunks-3") });
    assert!(Commit::decode(&compressed.encode().unwrap()).is_err(), "chunks and no codec");

    for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b"] {
        let hostile = Commit { records: file(name), ..commit.clone() };
        assert!(Commit::decode(&hostile.encode().unwrap()).is_err(), "{name:?} leads out of the image");
    }
    let early = Commit { time: UNIX_EPOCH - Duration::from_secs(1), ..commit };
    assert!(early.encode().is_err());
}
