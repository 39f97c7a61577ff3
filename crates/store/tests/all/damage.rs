//! Tests that damage to a committed image is found before its content is used, and that the error names the file.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use store::{Error, ImageReader, Store};

use crate::common::{verify, write_image};

use undying_store as store;

fn files(image: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(image).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    write_image(&image, 1).unwrap();
    verify(&image).unwrap();
    for path in files(&image) {
        let whole = fs::read(&path).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // All bytes of small files are tested, and every 61st byte of the segment. This stride reaches every page and
        // different offsets in the pages.
        let stride = if whole.len() > 10_000 { 61 } else { 1 };
        for place in (0..whole.len()).step_by(stride) {
            file.write_all_at(&[whole[place] ^ (1 << (place % 8))], place as u64).unwrap();
            let error = verify(&image).expect_err("a flipped bit passed");
            assert!(error.is_damage(), "{}: byte {place}: {error}", path.display());
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error} does not name the file");
            file.write_all_at(&whole[place..=place], place as u64).unwrap();
        }
        verify(&image).unwrap();
    }
}

#[test]
fn a_truncated_lengthened_or_missing_file_is_found_at_open() {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    write_image(&image, 1).unwrap();
    for path in files(&image) {
        let whole = fs::read(&path).unwrap();
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(ImageReader::open(&image).unwrap_err().is_damage(), "{} cut to {length}", path.display());
        }
        fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
        assert!(ImageReader::open(&image).unwrap_err().is_damage(), "{} lengthened", path.display());
        fs::remove_file(&path).unwrap();
        assert!(ImageReader::open(&image).unwrap_err().is_damage(), "{} removed", path.display());
        fs::write(&path, &whole).unwrap();
        ImageReader::open(&image).unwrap();
    }
}

#[test]
fn files_of_two_images_do_not_mix() {
    let scratch = tempfile::tempdir().unwrap();
    let (one, two) = (scratch.path().join("one"), scratch.path().join("two"));
    write_image(&one, 1).unwrap();
    let writer = store::ImageWriter::create(&two, crate::common::options()).unwrap();
    crate::common::append(&writer, 0, 100, &[9; 32]).unwrap();
    writer.finish(&image::RecordSet::new(), crate::common::meta(2)).unwrap();
    for name in ["records", "index", "pages-0.seg"] {
        let own = fs::read(two.join(name)).unwrap();
        fs::copy(one.join(name), two.join(name)).unwrap();
        assert!(verify(&two).unwrap_err().is_damage(), "{name} of another image passed");
        fs::write(two.join(name), own).unwrap();
    }
    verify(&two).unwrap();
}

#[test]
fn a_directory_that_is_no_image_is_recognized() {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    assert!(matches!(verify(&image), Err(Error::NoPath { .. })));
    fs::create_dir(&image).unwrap();
    assert!(matches!(verify(&image), Err(Error::NotCommitted { .. })));
    fs::write(image.join("commit"), "#!/bin/sh\n").unwrap();
    assert!(matches!(verify(&image), Err(Error::Foreign { .. })));
    fs::remove_dir_all(&image).unwrap();

    write_image(&image, 1).unwrap();
    let mut commit = fs::read(image.join("commit")).unwrap();
    commit[8..12].copy_from_slice(&99u32.to_le_bytes());
    let header = crc32c::crc32c(&commit[..28]);
    commit[28..32].copy_from_slice(&header.to_le_bytes());
    fs::write(image.join("commit"), commit).unwrap();
    let error = verify(&image).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
}

#[test]
fn a_damaged_newest_image_is_not_chosen() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Store::open(&scratch.path().join("store")).unwrap();
    let name = "subject".parse().unwrap();
    for sequence in [1, 2] {
        let writer = store.begin(&name, model::Sequence(sequence), crate::common::options()).unwrap();
        writer.finish(&crate::common::records(), crate::common::meta(sequence)).unwrap();
    }
    let commit = scratch.path().join("store/subject/2/commit");
    let length = fs::metadata(&commit).unwrap().len();
    fs::File::options().write(true).open(&commit).unwrap().set_len(length - 1).unwrap();
    assert_eq!(store.newest(&name).unwrap().unwrap().0, model::Sequence(1));
    assert_eq!(store.list(&name).unwrap().len(), 1);
    assert_eq!(store.entries(&name).unwrap().len(), 2);
    assert_eq!(store.next_sequence(&name).unwrap(), model::Sequence(3));
    assert!(store.resolve("subject@2").unwrap_err().is_damage());
}
