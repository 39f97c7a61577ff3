//! Tests of decoders with hostile input: no input makes a decoder panic, accept damage, or allocate without limit.
//!
//! Some tests build files with correct checksums and bad content by hand, from docs/format.md alone.

use image::{
    ChunkTable, Error, LogHeader, LogPart, LogPartEncoder, LogPlace, LogRoot, LogSegment, LogSlot, Owner,
    PageChecksum, PageIndex, Record, RecordKey, RecordSet, SpaceId,
};
use model::{Address, AddressRange, ByteCount, PageCount};
use proptest::prelude::*;

use undying_image as image;

/// Returns a file with this body, in which all checksums are correct.
fn sealed(letter: u8, items: u32, body: &[u8]) -> Vec<u8> {
    let mut file = vec![0x89, b'u', b'n', b'd', b'y', letter, b'\r', b'\n'];
    file.extend(1u32.to_le_bytes());
    file.extend(0u32.to_le_bytes());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend(items.to_le_bytes());
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    file.extend(body);
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    file
}

fn decode_all(file: &[u8]) -> [Result<(), Error>; 8] {
    [
        LogHeader::decode(file).map(drop),
        LogSlot::decode(file).map(drop),
        LogRoot::decode(file).map(drop),
        LogPart::decode(file).map(drop),
        image::Commit::decode(file).map(drop),
        RecordSet::decode(file).map(drop),
        PageIndex::decode(file).map(drop),
        ChunkTable::decode(file).map(drop),
    ]
}

fn samples() -> Vec<Vec<u8>> {
    let records: RecordSet =
        (0..5).map(|number| Record::new("kind", 1, Owner::Object(number), vec![7; 20])).collect();
    let extent = |page: u64| image::Extent {
        space: image::SpaceId(0),
        start: Address(page * 4096),
        pages: PageCount(2),
        source: image::Source::Stored {
            segment: image::SegmentId(0),
            offset: ByteCount(page * 4096),
            checksum: image::Checksum(5),
        },
    };
    let index = PageIndex::from_extents(vec![extent(4), extent(0), extent(8)]).unwrap();
    let chunk = |length| image::StoredChunk { length, checksum: image::Checksum(9) };
    let chunks = ChunkTable::new(ByteCount(3 << 16), &[chunk(7), chunk(1 << 16)]).unwrap();
    vec![records.encode().unwrap(), index.encode().unwrap(), part(), chunks.encode().unwrap()]
}

/// Returns a delta with an entry of every type.
fn part() -> Vec<u8> {
    let mut part = LogPartEncoder::new(false);
    part.dropped(SpaceId(0), AddressRange::new(Address(0), Address(40 << 12)));
    part.dropped(SpaceId(3), AddressRange::new(Address(1 << 40), Address((1 << 40) + 4096)));
    part.zero(SpaceId(0), Address(3 << 12), PageCount(200));
    let place = LogPlace { segment: LogSegment(9), block: 700 };
    part.stored(SpaceId(2), Address(1 << 46), place, &[PageChecksum(7), PageChecksum(8)]);
    part.removed(&RecordKey { kind: "gone".into(), owner: Owner::Tree, ordinal: 2 });
    part.record(1, &Record::new("kind", 1, Owner::Object(4), vec![7; 20]).to_bytes());
    part.finish().unwrap()
}

/// When a process ends, the next delta drops the whole address space of the process.
#[test]
fn a_whole_address_space_can_be_dropped() {
    let all = AddressRange::new(Address(0), Address(0x7fff_ffff_f000));
    let mut part = LogPartEncoder::new(false);
    part.dropped(SpaceId(4), all);
    let part = LogPart::decode(&part.finish().unwrap()).unwrap();
    assert!(part.dropped.iter().all(|(space, _)| *space == SpaceId(4)));
    let (first, last) = (part.dropped.first().unwrap().1, part.dropped.last().unwrap().1);
    assert_eq!((first.start, last.end), (all.start, all.end));
    assert!(part.dropped.windows(2).all(|pair| pair[0].1.end == pair[1].1.start));
}

#[test]
fn a_delta_comes_back_as_it_was_written() {
    let part = LogPart::decode(&part()).unwrap();
    assert!(!part.full);
    assert_eq!(part.dropped.len(), 2);
    assert_eq!(part.dropped[1].1.start, Address(1 << 40));
    let runs: Vec<_> = part
        .runs()
        .map(|(run, sums)| (run.space.0, run.start.0, run.pages.0, run.place, sums.to_vec()))
        .collect();
    let place = LogPlace { segment: LogSegment(9), block: 700 };
    let stored = (2, 1 << 46, 2, Some(place), vec![PageChecksum(7), PageChecksum(8)]);
    assert_eq!(runs, [(0, 3 << 12, 200, None, vec![]), stored]);
    assert_eq!((part.removed[0].kind.as_str(), part.removed[0].ordinal), ("gone", 2));
    assert_eq!((part.records[0].0, part.records[0].1.payload.len()), (1, 20));
}

/// Returns a sealed delta with these sections.
fn delta(dropped: &[u8], runs: &[u8], records: &[u8]) -> Vec<u8> {
    let mut body = 0u32.to_le_bytes().to_vec();
    body.extend((dropped.len() as u32).to_le_bytes());
    body.extend((runs.len() as u32).to_le_bytes());
    [dropped, runs, records].iter().for_each(|section| body.extend(*section));
    sealed(b'D', 0, &body)
}

#[test]
fn deltas_that_break_a_rule_are_refused() {
    let none: &[u8] = &[0, 0];
    assert!(LogPart::decode(&delta(&[], &[], none)).is_ok());
    // One stored page in segment 1, block 16, with its checksum.
    let run = [1 << 2 | 1, 0, 2, 16, 1, 2, 3, 4];
    assert!(LogPart::decode(&delta(&[], &run, none)).is_ok());
    let wide = [0xff; 9];
    let bad: &[(&[u8], &[u8], &[u8])] = &[
        (&run, &[], none),                                     // a dropped range with content
        (&[], &run[..7], none),                                // a truncated checksum
        (&[], &[0, 0], none),                                  // a run without pages
        (&[], &[1 << 2 | 3, 0], none),                         // an unknown kind
        (&[], &[2], none),                                     // a space number that does not rise
        (&[], &[1 << 2 | 1, 0, 1, 16, 1, 2, 3, 4], none),      // a negative segment number
        (&[], &wide, none),                                    // an integer without an end
        (&[], &[0xfc, 0xff, 0xff, 0xff, 0xff, 0x7f, 0], none), // more pages than a run can have
        (&[], &[], &[1, 0]),                                   // a missing record
        (&[], &[], &[0, 0, 0]),                                // bytes behind the end
        (&[], &[], &[0, 1, 0, 0]),                             // an empty record
        (&[], &[], &[]),                                       // missing counts
    ];
    for (number, (dropped, runs, records)) in bad.iter().enumerate() {
        assert!(LogPart::decode(&delta(dropped, runs, records)).is_err(), "case {number}");
    }
    let mut long = sealed(b'D', 0, &[0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    assert!(LogPart::decode(&long).is_err());
    long.truncate(20);
    assert!(LogPart::decode(&long).is_err());
}

#[test]
fn flipped_bits_and_truncations_are_found() {
    for sample in samples() {
        assert_eq!(decode_all(&sample).iter().filter(|result| result.is_ok()).count(), 1);
        for bit in 0..sample.len() * 8 {
            let mut damaged = sample.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_all(&damaged).iter().all(Result::is_err), "bit {bit}");
        }
        for length in 0..sample.len() {
            assert!(decode_all(&sample[..length]).iter().all(Result::is_err), "length {length}");
        }
    }
}

#[test]
fn counts_that_promise_more_than_there_is_are_refused_without_allocating() {
    for letter in *b"CRIHSTD" {
        let file = sealed(letter, u32::MAX, b"");
        assert!(decode_all(&file).iter().all(Result::is_err));
        let mut endless = sealed(letter, 1, b"abc");
        endless[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        let header = crc32c::crc32c(&endless[..28]);
        endless[28..32].copy_from_slice(&header.to_le_bytes());
        assert!(decode_all(&endless).iter().all(Result::is_err));
    }
    let mut long_record = u32::MAX.to_le_bytes().to_vec();
    long_record.extend([0; 40]);
    assert!(RecordSet::decode(&sealed(b'R', 1, &long_record)).is_err());
}

#[test]
fn extents_that_break_a_rule_are_named() {
    let extent = |space: u32, pages: u32, start: u64, segment: u32, checksum: u32, offset: u64| {
        let mut bytes = Vec::new();
        bytes.extend(space.to_le_bytes());
        bytes.extend(pages.to_le_bytes());
        bytes.extend(start.to_le_bytes());
        bytes.extend(segment.to_le_bytes());
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes
    };
    let good = extent(1, 2, 0x1000, 0, 9, 0x2000);
    assert!(PageIndex::decode(&sealed(b'I', 1, &good)).is_ok());
    let bad = [
        extent(1, 0, 0x1000, 0, 9, 0x2000),
        extent(1, 257, 0x1000, 0, 9, 0x2000),
        extent(1, 2, 0x1001, 0, 9, 0x2000),
        extent(1, 2, 0x1000, 0, 9, 0x2001),
        extent(1, 2, u64::MAX - 4095, 0, 9, 0x2000),
        extent(1, 2, 0x1000, 0, 9, u64::MAX - 4095),
        extent(1, 2, 0x1000, u32::MAX, 9, 0),
        extent(1, 2, 0x1000, u32::MAX, 0, 0x1000),
        [good.clone(), good.clone()].concat(),
        [good.clone(), extent(1, 2, 0x2000, 0, 9, 0)].concat(),
        [good.clone(), extent(0, 2, 0x9000, 0, 9, 0)].concat(),
    ];
    for body in bad {
        let file = sealed(b'I', (body.len() / 32) as u32, &body);
        assert!(matches!(PageIndex::decode(&file), Err(Error::Malformed { .. })), "{body:02x?}");
    }
    assert!(PageIndex::decode(&sealed(b'I', 2, &good)).is_err());
    assert!(PageIndex::decode(&sealed(b'I', 1, &good[..31])).is_err());
}

proptest! {
    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode_all(&noise).iter().all(Result::is_err));
    }

    #[test]
    fn noise_with_good_checksums_does_no_harm(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        items in 0..12u32,
        letter in prop::sample::select(b"CRI".to_vec()),
    ) {
        // At most one decoder accepts the file: the decoder for this letter.
        let good = decode_all(&sealed(letter, items, &noise)).iter().filter(|one| one.is_ok()).count();
        prop_assert!(good <= 1, "{good} kinds decode one file");
    }

    #[test]
    fn records_with_good_checksums_and_noise_inside_do_no_harm(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..5),
    ) {
        let mut body = Vec::new();
        for record in &records {
            body.extend((record.len() as u32).to_le_bytes());
            body.extend(crc32c::crc32c(record).to_le_bytes());
            body.extend(record);
        }
        if let Ok(set) = RecordSet::decode(&sealed(b'R', records.len() as u32, &body)) {
            prop_assert_eq!(set.len(), records.len());
        }
    }

    #[test]
    fn a_damaged_body_with_good_outer_checksums_is_found_by_the_inner_ones(
        sample in 0..2usize, place in any::<prop::sample::Index>(), flip in 1..=255u8,
    ) {
        let file = &samples()[sample];
        let mut body = file[32..file.len() - 4].to_vec();
        let place = place.index(body.len());
        body[place] ^= flip;
        let items = u32::from_le_bytes(file[24..28].try_into().unwrap());
        let results = decode_all(&sealed(file[5], items, &body));
        // Extents have no checksum of their own: a changed extent may decode to another extent, but a record may not.
        prop_assert!(sample == 1 || results.iter().all(Result::is_err));
    }
}

#[test]
fn tables_of_chunks_that_break_a_rule_are_refused() {
    let table = |chunk: u32, zero: u32, whole: u64, lengths: &[u32]| {
        let mut body = chunk.to_le_bytes().to_vec();
        body.extend(zero.to_le_bytes());
        body.extend(whole.to_le_bytes());
        lengths.iter().for_each(|length| body.extend([length.to_le_bytes(), 5u32.to_le_bytes()].concat()));
        ChunkTable::decode(&sealed(b'K', lengths.len() as u32, &body))
    };
    let good = table(8192, 0, 12288, &[8192, 1]).unwrap();
    assert_eq!((good.whole(), good.stored()), (ByteCount(12288), ByteCount(8193)));
    assert_eq!(good.chunks(&(4096..8192)), 0..1);
    assert_eq!(good.chunks(&(4096..8193)), 0..2);
    assert_eq!((good.expanded(1), good.place(1).unwrap().0), (8192..12288, 8192..8193));
    assert!(good.place(2).is_none());
    let bad: [(u32, u32, u64, &[u32]); 9] = [
        (0, 0, 12288, &[1, 1]),       // empty chunks
        (100, 0, 12288, &[1; 123]),   // a chunk size that is not a multiple of the page size
        (1 << 30, 0, 12288, &[1]),    // chunks larger than the maximum
        (8192, 1, 12288, &[1, 1]),    // a field that must be zero
        (8192, 0, 12288, &[1]),       // one chunk too few
        (8192, 0, 12288, &[1, 1, 1]), // one chunk too many
        (8192, 0, 12289, &[1, 1]),    // a length that is not a multiple of the page size
        (8192, 0, 12288, &[1, 4097]), // more stored bytes than expanded bytes
        (8192, 0, 12288, &[0, 1]),    // an empty stored chunk
    ];
    for (number, (chunk, zero, whole, lengths)) in bad.into_iter().enumerate() {
        assert!(table(chunk, zero, whole, lengths).is_err(), "case {number}");
    }
    assert!(table(8192, 0, 0, &[]).is_err(), "a segment of nothing");
    assert!(table(8192, 0, u64::MAX - 4095, &[1]).is_err(), "more than there can be");
}
