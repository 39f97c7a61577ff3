//! Power cuts at every step of a publication and of a prune. The simulated disk preserves an arbitrary part of the
//! unsynced data. Images that were committed before must stay readable. The new image must be complete or absent.
//!
//! A failure prints the seed and the step, which together repeat the failure exactly.

use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use image::{Owner, Record, RecordSet, SpaceId, Timings};
use model::{Address, ByteCount, PAGE_BYTES, PageCount, Pid, Sequence};
use store::{CommitMeta, Error, Medium, PageSink, Store, SubjectName, WriteOptions};

use crate::simulated::{Disk, Fault, Lie};

use undying_store as store;

/// The number of seeds. The design requires at least 1,000.
const SEEDS: u64 = 1_000;

/// Each seed tests one of this many steps, and consecutive seeds test different ones.
const STEPS_SHARE: u64 = 8;

const STORE: &str = "/store";

fn name() -> SubjectName {
    "subject".parse().unwrap()
}

fn open(disk: &Arc<Disk>) -> store::Result<Store> {
    Store::open_on(Arc::clone(disk) as Arc<dyn Medium>, Path::new(STORE))
}

/// Returns the byte that fills a page of a checkpoint.
fn fill(sequence: Sequence, page: u64) -> u8 {
    if page.is_multiple_of(4) { 0 } else { (sequence.0 * 31 + page) as u8 | 1 }
}

/// Returns write options. Every second checkpoint is compressed.
fn options(sequence: Sequence) -> WriteOptions {
    let codec = sequence.0.is_multiple_of(2).then(|| store::codec("lz4").unwrap());
    WriteOptions { buffers: 2.try_into().unwrap(), buffer_pages: PageCount(4), codec }
}

/// Writes an image. If all pages fit into one buffer, the pages are appended in one batch, like the pages of a small
/// program.
fn write(store: &Store, sequence: Sequence, pages: u64) -> store::Result<()> {
    let options = options(sequence);
    let writer = store.begin(&name(), sequence, options)?;
    let each = if PageCount(pages) < options.buffer_pages { pages } else { 1 };
    for first in (0..pages).step_by(each as usize) {
        let mut batch = writer.pool().buffer_for(PageCount(pages))?;
        for page in first..first + each {
            let address = Address(page * PAGE_BYTES);
            batch.push(SpaceId(0), address, PageCount(1)).unwrap().fill(fill(sequence, page));
        }
        writer.append(batch)?;
    }
    let records: RecordSet = (0..3)
        .map(|number| Record::new("kind", 1, Owner::Object(number), vec![sequence.0 as u8; 700]))
        .collect();
    let meta = CommitMeta {
        sequence,
        time: UNIX_EPOCH,
        subject: name().to_string(),
        pids: vec![Pid(1)],
        kernel_release: "0".into(),
        tool_version: "0".into(),
        timings: Timings::default(),
    };
    writer.finish(&records, meta).map(drop)
}

/// Checks all images of the store, and returns their sequence numbers. Returns the reason if an image is wrong.
fn inspect(disk: &Arc<Disk>, pages: u64) -> Result<Vec<Sequence>, String> {
    let store = open(disk).map_err(|error| error.to_string())?;
    let entries = store.entries(&name()).map_err(|error| error.to_string())?;
    let mut whole = Vec::new();
    for entry in entries {
        let commit = entry.commit.map_err(|error| format!("{}: {error}", entry.sequence))?;
        store
            .read(&entry.path)
            .and_then(|image| image.verify(|_| ()))
            .map_err(|error| format!("{}: {error}", entry.sequence))?;
        let image = store.read(&entry.path).map_err(|error| error.to_string())?;
        let mut seen = 0;
        for extent in image.index().extents() {
            let mut bytes = vec![0; extent.pages.bytes().0 as usize];
            image.read_extent(extent, &mut bytes).map_err(|error| error.to_string())?;
            for (number, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
                let expected = fill(entry.sequence, extent.start.0 / PAGE_BYTES + number as u64);
                if page.iter().any(|byte| *byte != expected) {
                    return Err(format!("{}: a page has other bytes", entry.sequence));
                }
                seen += 1;
            }
        }
        if (seen, image.records().len(), commit.sequence) != (pages, 3, entry.sequence) {
            return Err(format!("{}: not what was written", entry.sequence));
        }
        whole.push(entry.sequence);
    }
    Ok(whole)
}

/// Returns a disk with this number of images, each with this number of pages.
fn prepared(images: u64, pages: u64) -> Arc<Disk> {
    let disk = Disk::new(0);
    let store = open(&disk).unwrap();
    (1..=images).for_each(|number| write(&store, Sequence(number), pages).unwrap());
    disk
}

/// Returns the number of pages of an image for this seed.
fn pages_of(seed: u64) -> u64 {
    fastrand::Rng::with_seed(seed).u64(1..10)
}

/// Writes a second image to a disk with one image, and cuts the power after `step` steps. Returns whether the power cut
/// occurred, or the reason if an image is wrong.
fn cut(disk: &Disk, seed: u64, step: u64, lie: Lie) -> Result<bool, String> {
    let (disk, pages) = (disk.fork(seed), pages_of(seed));
    let store = open(&disk).map_err(|error| error.to_string())?;
    disk.lie(lie);
    disk.plan(step, Fault::PowerCut);
    let written = write(&store, Sequence(2), pages);
    let hit = disk.hit();
    disk.restart();
    let whole = inspect(&disk, pages)?;
    let expected: &[&[u64]] = if written.is_ok() { &[&[1, 2]] } else { &[&[1], &[1, 2]] };
    let whole: Vec<u64> = whole.into_iter().map(Sequence::get).collect();
    if !expected.contains(&&whole[..]) {
        return Err(format!("images {whole:?} where one of {expected:?} was expected"));
    }
    if (seed + step).is_multiple_of(8) {
        after_restart(&disk, pages)?;
    }
    Ok(hit)
}

/// Checks that the store continues to work after a restart, and that no leftover of a dead writer remains.
fn after_restart(disk: &Arc<Disk>, pages: u64) -> Result<(), String> {
    let store = open(disk).map_err(|error| error.to_string())?;
    let next = store.next_sequence(&name()).map_err(|error| error.to_string())?;
    write(&store, next, pages).map_err(|error| format!("after the restart: {error}"))?;
    if inspect(disk, pages)?.last() != Some(&next) {
        return Err("the image after the restart is not the newest".into());
    }
    let subject = Path::new(STORE).join("subject");
    let hidden = disk.list(&subject).unwrap().into_iter().find(|entry| entry.name.starts_with('.'));
    hidden.map_or(Ok(()), |entry| Err(format!("{} stayed", entry.name)))
}

#[test]
fn a_power_cut_at_any_step_leaves_whole_images() {
    let (mut runs, mut steps_max) = (0, 0);
    for seed in 0..SEEDS {
        let disk = prepared(1, pages_of(seed));
        for step in (seed % STEPS_SHARE..).step_by(STEPS_SHARE as usize) {
            let hit = cut(&disk, seed, step, Lie::Honest);
            let hit = hit.unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
            runs += 1;
            steps_max = steps_max.max(step);
            if !hit {
                break;
            }
        }
    }
    println!("{SEEDS} seeds, up to {steps_max} steps each, {runs} power cuts");
    assert!(steps_max > 10, "the publish has become implausibly short");
}

#[test]
fn the_test_notices_when_syncs_are_missing() {
    for lie in [Lie::Files, Lie::Directories] {
        let noticed = (0..SEEDS).any(|seed| {
            let disk = prepared(1, pages_of(seed));
            (10..40).any(|step| cut(&disk, seed, step, lie).is_err())
        });
        assert!(noticed, "{lie:?}: the simulated disk lied, and nobody noticed");
    }
}

#[test]
fn a_power_cut_during_a_prune_leaves_whole_images() {
    let prepared = prepared(3, 2);
    for seed in 0..SEEDS {
        for step in 0.. {
            let disk = prepared.fork(seed);
            let store = open(&disk).unwrap();
            disk.plan(step, Fault::PowerCut);
            let pruned = store.prune(&name(), 1);
            let hit = disk.hit();
            disk.restart();
            let whole = inspect(&disk, 2).unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
            assert_eq!(whole.last(), Some(&Sequence(3)), "seed {seed}, step {step}");
            assert!(pruned.is_err() || whole.len() == 1, "seed {seed}, step {step}: {whole:?}");
            if (seed + step).is_multiple_of(8) {
                after_restart(&disk, 2).unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
            }
            if !hit {
                break;
            }
        }
    }
}

#[test]
fn a_full_disk_at_any_step_leaves_nothing_behind() {
    for (pages, step) in [3, 8].into_iter().flat_map(|pages| (0..60).map(move |step| (pages, step))) {
        let disk = Disk::new(step);
        let store = open(&disk).unwrap();
        write(&store, Sequence(1), pages).unwrap();
        let before = disk.list(&Path::new(STORE).join("subject")).unwrap();
        disk.plan(step, Fault::Full);
        let written = write(&store, Sequence(2), pages);
        if !disk.hit() {
            written.unwrap();
            continue;
        }
        let error = written.expect_err("a full disk took an image");
        assert!(matches!(error, Error::Full(_)), "{pages} pages, step {step}: {error}");
        assert_eq!(disk.list(&Path::new(STORE).join("subject")).unwrap(), before, "step {step}");
        assert_eq!(inspect(&disk, pages).unwrap(), [Sequence(1)], "step {step}");
        disk.heal();
        write(&store, Sequence(2), pages).unwrap();
    }
}

#[test]
fn the_first_image_of_a_new_store_is_whole_or_absent() {
    for seed in 0..SEEDS {
        for step in 0.. {
            let disk = Disk::new(seed);
            disk.plan(step, Fault::PowerCut);
            let written = open(&disk).and_then(|store| write(&store, Sequence(1), 3));
            let hit = disk.hit();
            disk.restart();
            let whole = inspect(&disk, 3).unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
            assert!(written.is_err() || whole == [Sequence(1)], "seed {seed}, step {step}: {whole:?}");
            if !hit {
                break;
            }
        }
    }
}

#[test]
fn steps_are_repeated_exactly() {
    let steps = |seed| {
        let disk = Disk::new(seed);
        write(&open(&disk).unwrap(), Sequence(1), 5).unwrap();
        disk.steps()
    };
    assert_eq!(steps(1), steps(1));
    assert_eq!(ByteCount(steps(1)), ByteCount(steps(2)));
}
