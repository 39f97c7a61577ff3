//! Round trips: every part of an image decodes to the encoded value.
//!
//! Further tests check that records are found and counted, and that later copies of a page supersede earlier copies.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use image::{
    Checksum, Commit, Extent, ImageKind, Owner, Packing, PageChecksum, PageIndex, PageMap, Record, RecordSet,
    SealedFile, SegmentFile, SegmentId, Source, SpaceId, StoredRun, Timings,
};
use model::{Address, AddressRange, ByteCount, DescriptionId, PAGE_BYTES, PageCount, Pid, Sequence, Tid};
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

    #[test]
    fn the_last_copy_of_a_page_counts(steps in prop::collection::vec(step(), 0..60)) {
        let mut model = Model::default();
        steps.into_iter().for_each(|step| model.apply(step));
        model.check()?;
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

#[derive(Clone, Copy, Debug)]
enum Step {
    Store { space: u32, page: u64, pages: u64 },
    Zero { space: u32, page: u64, pages: u64 },
    Discard { space: u32, page: u64, pages: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    (0..3u8, 0..2u32, 0..700u64, 0..400u64).prop_map(|(what, space, page, pages)| match what {
        0 => Step::Store { space, page, pages },
        1 => Step::Zero { space, page, pages: pages / 10 },
        _ => Step::Discard { space, page, pages: pages / 10 },
    })
}

/// A page map, the segment that the map refers to, and the expected content of each page.
#[derive(Default)]
struct Model {
    map: PageMap,
    segment: Vec<u8>,
    pages: BTreeMap<(u32, u64), u8>,
}

impl Model {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Store { space, page, pages } => {
                let offset = ByteCount(self.segment.len() as u64);
                for number in 0..pages {
                    let value = (self.segment.len() as u64 / PAGE_BYTES % 255 + 1) as u8;
                    self.segment.resize(self.segment.len() + PAGE_BYTES as usize, value);
                    self.pages.insert((space, page + number), value);
                }
                let stored = &self.segment[offset.0 as usize..];
                let checksums: Vec<PageChecksum> =
                    stored.as_chunks().0.iter().map(PageChecksum::of).collect();
                self.map.store(SpaceId(space), Address(page * PAGE_BYTES), SegmentId(0), offset, &checksums);
            }
            Step::Zero { space, page, pages } => {
                self.map.zero(SpaceId(space), Address(page * PAGE_BYTES), PageCount(pages));
                self.pages.extend((page..page + pages).map(|page| ((space, page), 0)));
            }
            Step::Discard { space, page, pages } => {
                let (start, end) = (Address(page * PAGE_BYTES), Address((page + pages) * PAGE_BYTES));
                self.map.discard(SpaceId(space), AddressRange::new(start, end));
                self.pages.retain(|key, _| key.0 != space || !(page..page + pages).contains(&key.1));
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let index = self.map.index().unwrap();
        prop_assert_eq!(index.pages().0, self.pages.len() as u64);
        for extent in index.extents() {
            let stored =
                extent.stored().map(|(_, place)| &self.segment[place.start as usize..place.end as usize]);
            if let (Some(bytes), Source::Stored { checksum, .. }) = (stored, extent.source) {
                prop_assert_eq!(Checksum::of(bytes), checksum, "{:?}", extent);
            }
            for number in 0..extent.pages.0 {
                let found = stored.map_or(0, |bytes| bytes[(number * PAGE_BYTES) as usize]);
                let key = (extent.space.0, extent.start.0 / PAGE_BYTES + number);
                prop_assert_eq!(self.pages.get(&key), Some(&found), "page {:?}", key);
            }
        }
        let stored = self.map.stored();
        let page = |run: &StoredRun, page: u64| {
            let offset = (run.offset.0 + page * PAGE_BYTES) as usize;
            ((run.space.0, run.start.0 / PAGE_BYTES + page), self.segment[offset])
        };
        let found: Vec<_> = stored
            .iter()
            .flat_map(|run| (0..run.checksums.len() as u64).map(move |number| page(run, number)))
            .collect();
        let expected: Vec<_> =
            self.pages.iter().filter(|row| *row.1 > 0).map(|(key, value)| (*key, *value)).collect();
        prop_assert_eq!(found, expected);
        Ok(())
    }
}

#[test]
fn neighbours_become_one_extent_up_to_the_limit() {
    let mut map = PageMap::new();
    for page in 0..600u64 {
        let (start, offset) = (Address(page * PAGE_BYTES), ByteCount(page * PAGE_BYTES));
        map.store(SpaceId(1), start, SegmentId(0), offset, &[PageChecksum(page as u32)]);
    }
    let pages: Vec<u64> = map.index().unwrap().extents().iter().map(|extent| extent.pages.0).collect();
    assert_eq!(pages, [256, 256, 88]);
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
