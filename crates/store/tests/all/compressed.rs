//! Tests of compressed segments: the pages are unchanged, the files are smaller, and damage is found as in other
//! segments.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use image::{CHUNK_BYTES, Extent, Source, SpaceId};
use model::{Address, PAGE_BYTES, PageCount};
use store::{CODECS, Codec, Error, ImageReader, ImageWriter, PageSink, Store, WriteOptions};

use crate::common::{meta, records, verify};

use undying_store as store;

const PAGE: usize = PAGE_BYTES as usize;

/// Returns the content of a page: zeros, repeated text, a counter, or random bytes.
fn content(page: u64) -> Vec<u8> {
    match page % 97 / 20 {
        0 => vec![0; PAGE],
        1 => b"the same words again ".iter().copied().cycle().take(PAGE).collect(),
        2 => (0..PAGE as u64 / 8).flat_map(|word| (page * 512 + word).to_le_bytes()).collect(),
        _ => {
            let mut noise = vec![0; PAGE];
            fastrand::Rng::with_seed(page).fill(&mut noise);
            noise
        }
    }
}

fn options(codec: &'static dyn Codec, buffer: u64) -> WriteOptions {
    WriteOptions { buffers: 3.try_into().unwrap(), buffer_pages: PageCount(buffer), codec: Some(codec) }
}

/// Writes `pages` pages from address 0, in batches of `each` pages.
fn write(path: &Path, options: WriteOptions, pages: u64, each: u64) {
    let writer = ImageWriter::create(path, options).unwrap();
    let mut page = 0;
    while page < pages {
        let count = each.min(pages - page);
        let mut batch = writer.pool().buffer_for(PageCount(count)).unwrap();
        let bytes = batch.push(SpaceId(0), Address(page * PAGE_BYTES), PageCount(count)).unwrap();
        for (number, place) in bytes.chunks_mut(PAGE).enumerate() {
            place.copy_from_slice(&content(page + number as u64));
        }
        writer.append(batch).unwrap();
        page += count;
    }
    let committed = writer.finish(&records(), meta(1)).unwrap();
    let on_disk: u64 =
        files(path).iter().map(|(name, bytes)| if name == "commit" { 0 } else { bytes.len() as u64 }).sum();
    assert_eq!(committed.commit.bytes.0, on_disk);
}

fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let named =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    fs::read_dir(path).unwrap().map(|entry| named(entry.unwrap())).collect()
}

/// Checks that all pages have their content, with `load` and with `read_extent`.
fn check(path: &Path, pages: u64) {
    let image = ImageReader::open(path).unwrap();
    let expect = |extent: &Extent, bytes: &[u8]| {
        for (number, page) in bytes.chunks(PAGE).enumerate() {
            assert!(
                page == content(extent.start.0 / PAGE_BYTES + number as u64),
                "page {number} of {extent:?}"
            );
        }
    };
    let found = std::sync::atomic::AtomicU64::new(0);
    image
        .load(image.index().extents(), 2.try_into().unwrap(), |run| -> Result<(), Error> {
            for (extent, bytes) in run.iter() {
                expect(extent, bytes);
                found.fetch_add(extent.pages.0, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        })
        .unwrap();
    let mut zeros = 0;
    for extent in image.index().extents() {
        let mut bytes = vec![0xee; extent.pages.bytes().0 as usize];
        image.read_extent(extent, &mut bytes).unwrap();
        expect(extent, &bytes);
        zeros += if extent.source == Source::Zero { extent.pages.0 } else { 0 };
    }
    assert_eq!(found.into_inner() + zeros, pages);
    assert_eq!(verify(path).unwrap().pages, PageCount(pages));
}

#[test]
fn pages_come_back_whatever_the_codec_and_the_batches() {
    let scratch = tempfile::tempdir().unwrap();
    let chunk = CHUNK_BYTES.0 / PAGE_BYTES;
    for codec in CODECS {
        // The cases: single pages; all pages in one small batch; whole chunks; batches that end within a chunk; many
        // output buffers.
        for (number, (pages, each)) in
            [(21, 1), (90, 90), (4 * chunk, chunk), (2000, 37), (9000, 512)].into_iter().enumerate()
        {
            let path = scratch.path().join(format!("{}-{number}", codec.name()));
            write(&path, options(*codec, 512), pages, each);
            check(&path, pages);
            let stored: usize = (0..pages).filter(|page| page % 97 >= 20).count() * PAGE;
            let length = fs::metadata(path.join("pages-0.seg")).unwrap().len() as usize;
            assert!(length < stored, "{}: {length} bytes for {stored}", path.display());
        }
    }
}

#[test]
fn what_does_not_get_smaller_is_stored_as_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    for codec in CODECS {
        let path = scratch.path().join(codec.name());
        let writer = ImageWriter::create(&path, options(*codec, 512)).unwrap();
        let noise = (0..97_u64 * 30).filter(|page| page % 97 >= 60).take(1000);
        for (number, page) in noise.enumerate() {
            let mut batch = writer.pool().buffer_for(PageCount(1)).unwrap();
            let start = Address(number as u64 * PAGE_BYTES);
            batch.push(SpaceId(0), start, PageCount(1)).unwrap().copy_from_slice(&content(page));
            writer.append(batch).unwrap();
        }
        writer.finish(&records(), meta(1)).unwrap();
        assert_eq!(verify(&path).unwrap().pages, PageCount(1000));
        assert_eq!(fs::metadata(path.join("pages-0.seg")).unwrap().len(), 1000 * PAGE_BYTES);
    }
}

/// Tests flipped bits in all files, and files that are too short, too long or missing.
#[test]
fn damage_is_found_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    for codec in CODECS {
        let path = scratch.path().join(codec.name());
        write(&path, options(*codec, 64), 97, 16);
        for (name, whole) in files(&path) {
            let at = path.join(&name);
            let file = fs::File::options().write(true).open(&at).unwrap();
            let stride = if whole.len() > 10_000 { 67 } else { 1 };
            for place in (0..whole.len()).step_by(stride) {
                file.write_all_at(&[whole[place] ^ (1 << (place % 8))], place as u64).unwrap();
                let error = verify(&path).expect_err("a flipped bit passed");
                assert!(error.is_damage(), "{name}: byte {place}: {error}");
                assert!(error.to_string().contains(at.to_str().unwrap()), "{error} does not name the file");
                file.write_all_at(&whole[place..=place], place as u64).unwrap();
            }
            for length in [0, 1, whole.len() / 2, whole.len() - 1] {
                fs::write(&at, &whole[..length]).unwrap();
                assert!(ImageReader::open(&path).unwrap_err().is_damage(), "{name} cut to {length}");
            }
            fs::write(&at, [&whole[..], &[0]].concat()).unwrap();
            assert!(ImageReader::open(&path).unwrap_err().is_damage(), "{name} lengthened");
            fs::remove_file(&at).unwrap();
            assert!(ImageReader::open(&path).unwrap_err().is_damage(), "{name} removed");
            fs::write(&at, &whole).unwrap();
        }
        verify(&path).unwrap();
    }
}

#[test]
fn bytes_that_no_codec_wrote_are_refused_without_harm() {
    for codec in CODECS {
        for seed in 0..2000_u64 {
            let mut stored: Vec<u8> = content(60 + seed % 37 + seed / 37 * 97);
            stored.truncate(1 + seed as usize * 7 % (PAGE - 1));
            let mut bytes = vec![0; PAGE * 4];
            assert!(!codec.expand(&stored, &mut bytes), "{}: seed {seed}", codec.name());
        }
        let mut compressor = codec.compressor(4 * PAGE).unwrap();
        let whole = [content(25), content(45), content(46), content(25)].concat();
        let stored = compressor.compress(&whole).unwrap().to_vec();
        let mut bytes = vec![0; whole.len()];
        assert!(codec.expand(&stored, &mut bytes) && bytes == whole, "{}", codec.name());
        assert!(!codec.expand(&stored, &mut bytes[..whole.len() - 1]), "{}: too short a place", codec.name());
        assert!(!codec.expand(&stored, &mut vec![0; whole.len() + 1]), "{}: too long a place", codec.name());
    }
}

#[test]
fn an_image_can_be_exported_with_another_codec_or_none_and_be_shared() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::open(&scratch.path().join("store")).unwrap();
    let first = scratch.path().join("first");
    write(&first, options(CODECS[0], 512), 500, 100);
    let others = [None, Some(CODECS[1]), Some(CODECS[0])];
    for (number, codec) in others.into_iter().enumerate() {
        let target = scratch.path().join(format!("export-{number}"));
        store.export(&first, &target, codec).unwrap();
        check(&target, 500);
        assert_eq!(target.join("chunks-0").exists(), codec.is_some());
    }
    let copy = store.link(&first, &"copy".parse().unwrap()).unwrap();
    fs::remove_dir_all(&first).unwrap();
    check(&copy, 500);
}

#[test]
fn a_codec_that_is_not_known_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    write(&path, options(CODECS[0], 64), 97, 16);
    let mut commit = image::Commit::decode(&fs::read(path.join("commit")).unwrap()).unwrap();
    commit.segments[0].packing.as_mut().unwrap().codec = "brotli".into();
    fs::write(path.join("commit"), commit.encode().unwrap()).unwrap();
    let error = verify(&path).unwrap_err();
    assert!(matches!(&error, Error::UnknownCodec { codec, .. } if codec == "brotli"), "{error}");
    assert!(error.is_damage() && error.to_string().contains("lz4, zstd"), "{error}");
}
