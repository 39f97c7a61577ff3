//! Tests that pages written to an image directory are read back, with every write method and from several threads.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use image::{Extent, ImageKind, Source, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
use store::{Directory, Error, ImageReader, ImageWriter, PageBatch, PageSink};
use sys::direct_io::Method;
use sys::page_buffer::PageBuffer;

use crate::common::{append, meta, options, records, verify, write_image};

use undying_store as store;

const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// Returns every page of an image, with the byte that fills the page.
fn pages(image: &ImageReader) -> BTreeMap<(u32, u64), u8> {
    let found = Mutex::new(BTreeMap::new());
    let note = |extent: &Extent, bytes: &[u8]| {
        for (number, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            assert!(page.iter().all(|byte| *byte == page[0]), "a page has mixed bytes");
            let key = (extent.space.0, extent.start.0 / PAGE_BYTES + number as u64);
            assert_eq!(found.lock().unwrap().insert(key, page[0]), None, "a page came twice");
        }
    };
    let all = image.index().extents();
    image
        .load(all, TWO, |run| -> Result<(), Error> {
            run.iter().for_each(|(extent, bytes)| note(extent, bytes));
            Ok(())
        })
        .unwrap();
    for extent in all.iter().filter(|extent| extent.source == Source::Zero) {
        note(extent, &vec![0; extent.pages.bytes().0 as usize]);
    }
    found.into_inner().unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn an_image_comes_back_with_every_method() {
    let scratch = tempfile::tempdir().unwrap();
    let values: Vec<u8> = (0..100).map(|page| if page % 7 < 2 { 0 } else { page as u8 }).collect();
    for method in [Method::Ring, Method::Direct, Method::Buffered] {
        let path = scratch.path().join(format!("{method:?}"));
        let medium = Arc::new(Directory::with_method(method));
        let writer = ImageWriter::create_on(medium, &path, options()).unwrap();
        append(&writer, 3, 1000, &values).unwrap();
        let committed = writer.finish(&records(), meta(5)).unwrap();

        let mut image = ImageReader::open(&path).unwrap();
        assert_eq!(image.path(), path);
        assert_eq!(image.commit(), &committed.commit);
        assert_eq!((image.commit().kind, image.commit().pages), (ImageKind::Full, PageCount(100)));
        assert_eq!(image.take_records().len(), 3);
        let expected: BTreeMap<(u32, u64), u8> =
            values.iter().enumerate().map(|(page, value)| ((3, 1000 + page as u64), *value)).collect();
        assert_eq!(pages(&image), expected);
        assert_eq!(verify(&path).unwrap().pages, PageCount(100));
        let on_disk: u64 = ["records", "index", "pages-0.seg"]
            .iter()
            .map(|name| path.join(name).metadata().unwrap().len())
            .sum();
        assert_eq!(committed.commit.bytes, ByteCount(on_disk));
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 3, "nothing hidden stays");
}

#[test]
fn images_are_for_their_owner_only() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    write_image(&path, 1).unwrap();
    assert_eq!(mode(&path), 0o700);
    for entry in std::fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.file_name());
    }
}

#[test]
fn later_pages_supersede_earlier_ones_and_discarded_ones_are_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    append(&writer, 0, 0, &[1; 64]).unwrap();
    append(&writer, 0, 10, &[2, 0, 3]).unwrap();
    append(&writer, 1, 0, &[9]).unwrap();
    writer
        .discard(SpaceId(0), AddressRange::new(Address(60 * PAGE_BYTES), Address(99 * PAGE_BYTES)))
        .unwrap();
    append(&writer, 0, 62, &[4]).unwrap();
    writer.finish(&records(), meta(1)).unwrap();

    let mut expected: BTreeMap<(u32, u64), u8> = (0..60).map(|page| ((0, page), 1)).collect();
    expected.extend([((0, 10), 2), ((0, 11), 0), ((0, 12), 3), ((0, 62), 4), ((1, 0), 9)]);
    let image = ImageReader::open(&path).unwrap();
    assert_eq!(pages(&image), expected);

    let index = image.index();
    let extent = index.find(SpaceId(0), Address(10 * PAGE_BYTES)).unwrap();
    let mut bytes = vec![7; extent.pages.bytes().0 as usize];
    image.read_extent(extent, &mut bytes).unwrap();
    assert_eq!(bytes[0], 2);
    let zero = index.find(SpaceId(0), Address(11 * PAGE_BYTES)).unwrap();
    assert_eq!(zero.source, Source::Zero);
    let mut bytes = vec![7; 4096];
    image.read_extent(zero, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(image.read_extent(zero, &mut bytes[1..]).is_err(), "a buffer of another size");
}

/// Returns the length of the segment of an image in pages.
fn segment_pages(path: &std::path::Path) -> u64 {
    std::fs::metadata(path.join("pages-0.seg")).unwrap().len() / PAGE_BYTES
}

/// Before, an image contained all copies of a page that was copied again and again.
#[test]
fn an_image_is_hardly_larger_than_its_memory_if_pages_are_copied_again() {
    const PAGES: u64 = 4_000;
    let scratch = tempfile::tempdir().unwrap();
    for (number, method) in [Method::Ring, Method::Direct, Method::Buffered].into_iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(number as u64);
        let path = scratch.path().join(number.to_string());
        let medium = Arc::new(Directory::with_method(method));
        let writer = ImageWriter::create_on(medium, &path, options()).unwrap();
        let mut expected = BTreeMap::new();
        let mut put = |writer: &ImageWriter, page: u64, values: &[u8]| {
            append(writer, 0, page, values).unwrap();
            expected.extend(values.iter().zip(page..).map(|(value, page)| ((0, page), *value)));
        };
        put(&writer, 0, &vec![1; PAGES as usize]);
        for _ in 0..2_000 {
            let length = random.u64(1..20);
            let page = random.u64(0..PAGES + 100);
            let values: Vec<u8> = (0..length).map(|_| random.u8(0..20)).collect();
            put(&writer, page, &values);
        }
        writer.finish(&records(), meta(1)).unwrap();
        let image = ImageReader::open(&path).unwrap();
        assert_eq!(pages(&image), expected);
        verify(&path).unwrap();
        let length = segment_pages(&path);
        assert!(length * 100 < (PAGES + 120) * 104 + 64 * 100, "{method:?}: {length} pages");
        assert!(length > PAGES - PAGES / 10, "{method:?}: {length} pages");
    }
}

/// The writer holds the first small batch until another order arrives.
#[test]
fn a_small_batch_is_superseded_by_what_comes_after_it() {
    let scratch = tempfile::tempdir().unwrap();
    let small = |writer: &ImageWriter, page: u64, value: u8| {
        let mut batch = writer.pool().buffer_for(PageCount(2)).unwrap();
        batch.push(SpaceId(0), Address(page * PAGE_BYTES), PageCount(2)).unwrap().fill(value);
        writer.append(batch).unwrap();
    };
    let page_of = |pages: &BTreeMap<(u32, u64), u8>, page| pages.get(&(0, page)).copied();
    type Then<'a> = &'a dyn Fn(&ImageWriter);
    let cases: [(&str, Then<'_>, [Option<u8>; 3]); 4] = [
        ("alone", &|_| {}, [Some(1), Some(1), None]),
        ("small", &|writer| small(writer, 1, 2), [Some(1), Some(2), Some(2)]),
        ("large", &|writer| append(writer, 0, 1, &[3, 4]).unwrap(), [Some(1), Some(3), Some(4)]),
        (
            "discarded",
            &|writer| {
                let first = AddressRange::new(Address(0), Address(PAGE_BYTES));
                writer.discard(SpaceId(0), first).unwrap();
            },
            [None, Some(1), None],
        ),
    ];
    for (name, then, expected) in cases {
        let path = scratch.path().join(name);
        let writer = ImageWriter::create(&path, options()).unwrap();
        // Discard pages that were never appended.
        writer.discard(SpaceId(0), AddressRange::new(Address(0), Address(9 * PAGE_BYTES))).unwrap();
        small(&writer, 0, 1);
        then(&writer);
        writer.finish(&records(), meta(1)).unwrap();
        verify(&path).unwrap();
        let found = pages(&ImageReader::open(&path).unwrap());
        assert_eq!([0, 1, 2].map(|page| page_of(&found, page)), expected, "{name}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 4, "nothing hidden stays");
}

#[test]
fn several_copiers_share_a_writer() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    std::thread::scope(|scope| {
        for space in 0..4u32 {
            let writer = &writer;
            scope.spawn(move || {
                let values: Vec<u8> = (0..500).map(|page| (page % 200) as u8 + space as u8).collect();
                append(writer, space, 0, &values).unwrap();
            });
        }
    });
    writer.finish(&records(), meta(1)).unwrap();
    let image = ImageReader::open(&path).unwrap();
    let found = pages(&image);
    assert_eq!(found.len(), 2000);
    assert!(found.iter().all(|((space, page), value)| u64::from(*value) == page % 200 + u64::from(*space)));
}

#[test]
fn a_batch_can_be_built_from_own_buffers_and_lose_pieces() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    let mut batch = PageBatch::over(PageBuffer::new(PageCount(6).bytes()).unwrap());
    for page in 0..3 {
        assert!(batch.push(SpaceId(0), Address(page * 2 * PAGE_BYTES), PageCount(2)).is_some());
    }
    assert!(batch.push(SpaceId(0), Address(0), PageCount(1)).is_none(), "no room");
    for (number, page) in batch.bytes_mut().chunks_mut(PAGE_BYTES as usize).enumerate() {
        page.fill(number as u8 + 1);
    }
    batch.retain(|piece| piece.start != Address(2 * PAGE_BYTES));
    let last = *batch.pieces().last().unwrap();
    assert_eq!(batch.bytes_mut()[last.at.bytes().get() as usize], 5);
    writer.append(batch).unwrap();
    let committed = writer.finish(&records(), meta(1)).unwrap();
    assert_eq!(committed.commit.segments[0].length, PageCount(4).bytes(), "pages left out are not stored");
    let expected = BTreeMap::from([((0, 0), 1), ((0, 1), 2), ((0, 4), 5), ((0, 5), 6)]);
    assert_eq!(pages(&ImageReader::open(&path).unwrap()), expected);
}

#[test]
fn an_image_without_stored_pages_has_no_segment() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    append(&writer, 0, 0, &[0; 50]).unwrap();
    let committed = writer.finish(&records(), meta(1)).unwrap();
    assert!(committed.commit.segments.is_empty());
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 3);
    let report = verify(&path).unwrap();
    assert_eq!((report.pages, report.bytes), (PageCount(50), ByteCount(0)));
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    append(&writer, 0, 0, &[1; 100]).unwrap();
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    assert!(!path.exists());
    drop(writer);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn what_exists_is_never_overwritten() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    write_image(&path, 1).unwrap();
    assert!(matches!(ImageWriter::create(&path, options()), Err(Error::Exists { .. })));
    let file = scratch.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(ImageWriter::create(&file, options()), Err(Error::Exists { .. })));
    assert!(matches!(ImageWriter::create(Path::new("/"), options()), Err(Error::Exists { .. })));

    let empty = scratch.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    write_image(&empty, 2).unwrap();
    assert_eq!((mode(&empty), verify(&empty).unwrap().records), (0o700, 3));

    let raced = scratch.path().join("raced");
    let writer = ImageWriter::create(&raced, options()).unwrap();
    std::fs::create_dir(&raced).unwrap();
    std::fs::write(raced.join("x"), "precious").unwrap();
    assert!(matches!(writer.finish(&records(), meta(1)), Err(Error::Exists { .. })));
    assert_eq!(std::fs::read(raced.join("x")).unwrap(), b"precious");
    let hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    assert!(!std::fs::read_dir(scratch.path()).unwrap().any(|entry| hidden(&entry.unwrap().file_name())));
}

#[test]
fn a_directory_that_is_not_there_or_not_ours_is_an_error() {
    let scratch = tempfile::tempdir().unwrap();
    let error = ImageWriter::create(&scratch.path().join("no/image"), options()).unwrap_err();
    assert!(error.to_string().contains("help:"), "{error}");
    assert!(matches!(error, Error::Io(_)));
}

/// The segment alternates live pages and pages that no extent contains, like an old log. The pages are read with the whole file in the
/// page cache, and with no part of it cached.
#[test]
fn pages_scattered_in_a_segment_come_back_cached_or_not() {
    const PAGES: u64 = 3000;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    let mut expected = BTreeMap::new();
    for round in 0..3_u64 {
        for page in (0..PAGES).filter(|page| page % 3 == round) {
            let value = (page * 5 + round) as u8 | 1;
            append(&writer, 0, page, &[value]).unwrap();
            expected.insert((0, page), value);
            append(&writer, 1, page, &[7]).unwrap();
        }
    }
    writer.discard(SpaceId(1), AddressRange::new(Address(0), Address(PAGES * PAGE_BYTES))).unwrap();
    writer.finish(&records(), meta(1)).unwrap();
    let image = ImageReader::open(&path).unwrap();
    assert!(image.index().extents().len() > 1000, "pages that follow each other lie apart");
    for cached in [true, false] {
        let file = std::fs::File::open(path.join("pages-0.seg")).unwrap();
        match cached {
            true => drop(std::fs::read(path.join("pages-0.seg")).unwrap()),
            false => rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap(),
        }
        assert_eq!(pages(&image), expected, "cached: {cached}");
    }
}

#[test]
fn the_first_error_of_a_sink_ends_the_load() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    let writer = ImageWriter::create(&path, options()).unwrap();
    append(&writer, 0, 0, &vec![1; 3000]).unwrap();
    writer.finish(&records(), meta(1)).unwrap();
    let image = ImageReader::open(&path).unwrap();
    let refuse = |_: &store::LoadedRun<'_>| Err(Error::InvalidName { name: String::new(), why: "a test" });
    let result = image.load(image.index().extents(), TWO, refuse);
    assert!(matches!(result, Err(Error::InvalidName { .. })));
}

#[test]
fn pages_that_processes_share_are_stored_once() {
    let scratch = tempfile::tempdir().unwrap();
    for codec in [None, store::codec("zstd")] {
        let path = scratch.path().join(codec.map_or("plain", |codec| codec.name()));
        let writer = ImageWriter::create(&path, store::WriteOptions { codec, ..options() }).unwrap();
        let mut expected = BTreeMap::new();
        // Space 2 has changed page 20, space 3 has cleared page 21, and space 4 has no page in common with the others.
        for space in 1..=4 {
            let mut batch = writer.pool().buffer().unwrap();
            let bytes = batch.push(SpaceId(space), Address(16 * PAGE_BYTES), PageCount(16)).unwrap();
            for (number, page) in bytes.chunks_mut(PAGE_BYTES as usize).enumerate() {
                let value = match (space, 16 + number as u64) {
                    (2, 20) => 200,
                    (3, 21) => 0,
                    (4, page) => 100 + page as u8,
                    (_, page) => page as u8,
                };
                page.fill(value);
                expected.insert((space, 16 + number as u64), value);
            }
            batch.mark_shared();
            writer.append(batch).unwrap();
        }
        // The same content at another address, and the same content without a mark.
        append(&writer, 5, 16, &[16, 17]).unwrap();
        expected.extend([((5, 16), 16), ((5, 17), 17)]);
        writer.finish(&records(), meta(1)).unwrap();

        let image = ImageReader::open(&path).unwrap();
        assert_eq!(pages(&image), expected);
        if codec.is_none() {
            let stored = path.join("pages-0.seg").metadata().unwrap().len() / PAGE_BYTES;
            assert_eq!(stored, 16 + 1 + 16 + 2);
        }
        let range = AddressRange::new(Address(0), Address(99 * PAGE_BYTES));
        let common = |one, other| image.common_pages(SpaceId(one), SpaceId(other), range).same_place.pages();
        assert_eq!((common(1, 2), common(2, 3), common(1, 4)), (PageCount(15), PageCount(14), PageCount(0)));
        verify(&path).unwrap();
    }
}
