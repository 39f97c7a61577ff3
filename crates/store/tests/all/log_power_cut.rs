//! Power cuts while a log is written and compacted. The simulated disk preserves an arbitrary part of the unsynced
//! data. Every completed checkpoint that the retention policy keeps must be readable byte for byte. A checkpoint that
//! was not finished must not be visible. A new writer must be able to continue the log.
//!
//! A failure prints the seed, which repeats the failure exactly, because all work is done in the thread of the test.
//! The usual run uses a few hundred seeds; with `UNDYING_LONG_TESTS`, thousands.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use model::{ByteCount, PageCount, Sequence};
use store::{
    BufferStock, Error, LogOptions, LogThreads, LogWriter, Medium, RetentionPolicy, SegmentCompression,
    SizeLimit, StorageService, Store, SubjectName,
};

use crate::common::log_model::Subject;
use crate::simulated::{Disk, Fault, Lie};

use undying_store as store;

const STORE: &str = "/store";

/// The number of epochs (checkpoints) of a writer without a fault.
const EPOCHS: u64 = 25;

/// The seed of a typical run in which several segments are compressed.
const USUAL: u64 = 2;

/// The number of kept checkpoints.
const KEPT: usize = 3;

fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("UNDYING_LONG_TESTS").is_some() { long } else { short }
}

fn name() -> SubjectName {
    "subject".parse().unwrap()
}

fn open(disk: &Arc<Disk>) -> store::Result<Store> {
    Store::open_on(Arc::clone(disk) as Arc<dyn Medium>, Path::new(STORE))
}

/// Whether segments are compressed as soon as they are full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Segments {
    Plain,
    Compressed,
}

fn options(segments: Segments) -> LogOptions {
    let codec = store::codec("lz4").unwrap();
    LogOptions {
        buffers: NonZeroUsize::new(3).unwrap(),
        service: StorageService::new(BufferStock::new(PageCount(4))),
        // A segment has space for twelve pages of data, so that one writer fills dozens of segments.
        segment: ByteCount(28 * 4096),
        keep: RetentionPolicy::newest(KEPT),
        size: SizeLimit::None,
        wasted_max: PageCount(2),
        compression: (segments == Segments::Compressed)
            .then_some(SegmentCompression::new(codec, Duration::ZERO)),
        threads: LogThreads::Caller,
    }
}

/// The result of one writer.
#[derive(Debug, Default)]
struct Incarnation {
    answered: Option<Sequence>,
    moved: u64,
    reused: u64,
    compressed: usize,
    error: Option<Error>,
}

/// Opens the log and takes checkpoints until an error occurs.
fn live(disk: &Arc<Disk>, subject: &mut Subject, epochs: u64, segments: Segments) -> Incarnation {
    let mut incarnation = Incarnation::default();
    // With the smallest size, old checkpoints are also removed between two commits.
    let size = if subject.random.bool() { SizeLimit::None } else { SizeLimit::Bytes(ByteCount(1)) };
    let options = LogOptions { size, ..options(segments) };
    let opened = open(disk).and_then(|store| store.open_log(&name(), options));
    let writer = match opened {
        Ok(writer) => writer,
        Err(error) => return Incarnation { error: Some(error), ..incarnation },
    };
    subject.restored(writer.base());
    incarnation.answered = writer.base();
    let result = run(&writer, subject, epochs, &mut incarnation);
    incarnation.moved = writer.status().moved.0;
    incarnation.reused = writer.status().reused.0;
    incarnation.compressed = writer.status().compressed;
    incarnation.error = result.and_then(|()| writer.close()).err();
    incarnation
}

fn run(
    writer: &LogWriter,
    subject: &mut Subject,
    epochs: u64,
    incarnation: &mut Incarnation,
) -> store::Result<()> {
    let mut waiting = Vec::new();
    for _ in 0..epochs {
        waiting.extend(subject.epoch(writer)?);
        // Sometimes one sync covers several checkpoints.
        if subject.random.u64(..3) > 0 || waiting.len() == store::EPOCHS_IN_FLIGHT_MAX {
            for ticket in waiting.drain(..) {
                incarnation.answered = Some(ticket.wait()?.sequence);
            }
            writer.hold(incarnation.answered.as_slice());
        }
    }
    for ticket in waiting {
        incarnation.answered = Some(ticket.wait()?.sequence);
    }
    Ok(())
}

/// Checks the log after a writer has ended. Returns the reason if the log is wrong.
fn inspect(disk: &Arc<Disk>, subject: &Subject, incarnation: &Incarnation) -> Result<(), String> {
    let store = open(disk).map_err(|error| error.to_string())?;
    let whole = subject.compare_all(&store, &name())?;
    let newest = whole.last().copied();
    if newest < incarnation.answered {
        return Err(format!("{newest:?} is the newest, and {:?} was answered for", incarnation.answered));
    }
    // One more checkpoint is held.
    if whole.len() > KEPT + 1 {
        return Err(format!("{whole:?} are more than are kept"));
    }
    Ok(())
}

/// Returns the number of steps of a writer without a fault.
fn steps_of(seed: u64, segments: Segments) -> u64 {
    let disk = Disk::new(seed);
    let mut subject = Subject::new(seed, 40, 6);
    let incarnation = live(&disk, &mut subject, EPOCHS, segments);
    assert!(incarnation.error.is_none(), "seed {seed}: {:?}", incarnation.error);
    assert_eq!(incarnation.compressed > 1, segments == Segments::Compressed, "{incarnation:?}");
    inspect(&disk, &subject, &incarnation).unwrap();
    disk.steps()
}

/// Runs four writers in sequence on one disk. A power cut ends each of the first three. Returns the number of pages
/// moved by compaction, and the number of copies that were written to the place of an earlier copy.
fn incarnations(seed: u64, steps: u64, lie: Lie, segments: Segments) -> Result<[u64; 2], String> {
    let disk = Disk::new(seed);
    disk.lie(lie);
    let mut random = Rng::with_seed(seed);
    let mut subject = Subject::new(seed, 40, 6);
    let (mut moved, mut reused) = (0, 0);
    for number in 0..4 {
        let cut = number < 3;
        if cut {
            disk.plan(random.u64(..steps), Fault::PowerCut);
        }
        // Every second writer reads the compressed segments of its predecessor, but compresses nothing itself.
        let segments = if number % 2 == 0 { segments } else { Segments::Plain };
        let incarnation = live(&disk, &mut subject, EPOCHS, segments);
        if let Some(error) = incarnation.error.as_ref().filter(|_| !disk.hit()) {
            return Err(format!("incarnation {number}: {error}"));
        }
        disk.restart();
        inspect(&disk, &subject, &incarnation).map_err(|why| format!("incarnation {number}: {why}"))?;
        moved += incarnation.moved;
        reused += incarnation.reused;
    }
    Ok([moved, reused])
}

fn cut_at_any_step(seeds: u64, segments: Segments) {
    let steps = steps_of(USUAL, segments);
    assert!(steps > 100, "an incarnation has become implausibly short: {steps} steps");
    let (mut moved, mut reused) = (0, 0);
    for seed in 0..seeds {
        let counts = incarnations(seed, steps, Lie::Honest, segments);
        let [more_moved, more_reused] = counts.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        moved += more_moved;
        reused += more_reused;
    }
    println!("{seeds} seeds, {} power cuts, {moved} pages moved, {reused} places reused", 3 * seeds);
    assert!(moved > seeds, "cleaning took no part: {moved} pages moved");
    assert!(reused > seeds, "no places were reused: {reused}");
}

#[test]
fn a_power_cut_at_any_step_leaves_the_newest_commit() {
    cut_at_any_step(rounds(80, 5_000), Segments::Plain);
}

#[test]
fn a_power_cut_while_segments_are_compressed_leaves_the_newest_commit() {
    cut_at_any_step(rounds(80, 5_000), Segments::Compressed);
}

/// The newest commit that the next writer finds can be in the page cache only.
#[test]
fn a_power_cut_soon_after_a_kill_leaves_the_newest_commit() {
    let steps = steps_of(USUAL, Segments::Plain);
    for step in (0..steps).step_by(rounds(5, 1) as usize) {
        let disk = Disk::new(USUAL);
        let mut subject = Subject::new(USUAL, 40, 6);
        disk.plan(step, Fault::Kill);
        let killed = live(&disk, &mut subject, EPOCHS, Segments::Plain);
        for cut in 0..8 {
            let disk = disk.fork(step * 8 + cut);
            disk.plan(cut, Fault::PowerCut);
            let opened = open(&disk).and_then(|store| store.open_log(&name(), options(Segments::Plain)));
            drop(opened);
            disk.restart();
            inspect(&disk, &subject, &killed).unwrap_or_else(|why| panic!("step {step}, {cut}: {why}"));
        }
    }
}

#[test]
fn the_test_notices_when_syncs_are_missing() {
    for segments in [Segments::Plain, Segments::Compressed] {
        let steps = steps_of(USUAL, segments);
        for lie in [Lie::Files, Lie::Directories] {
            let noticed = (0..500).any(|seed| incarnations(seed, steps, lie, segments).is_err());
            assert!(noticed, "{lie:?}, {segments:?}: the simulated disk lied, and nobody noticed");
        }
    }
}

#[test]
fn a_full_disk_leaves_the_last_commit_and_is_reported() {
    full_at_any_step(Segments::Plain);
}

#[test]
fn a_full_disk_leaves_a_segment_as_it_is() {
    full_at_any_step(Segments::Compressed);
}

fn full_at_any_step(segments: Segments) {
    let steps = steps_of(USUAL, segments);
    let mut full = 0;
    for step in (0..steps).step_by(rounds(5, 1) as usize) {
        let disk = Disk::new(USUAL);
        let mut subject = Subject::new(USUAL, 40, 6);
        disk.plan(step, Fault::Full);
        let incarnation = live(&disk, &mut subject, EPOCHS, segments);
        if let Some(error) = &incarnation.error {
            assert!(matches!(error, Error::Full(_)), "step {step}: {error}");
            full += 1;
        }
        disk.heal();
        inspect(&disk, &subject, &incarnation).unwrap_or_else(|why| panic!("step {step}: {why}"));
        let incarnation = live(&disk, &mut subject, 5, segments);
        assert!(incarnation.error.is_none(), "step {step}: {:?}", incarnation.error);
        inspect(&disk, &subject, &incarnation).unwrap_or_else(|why| panic!("step {step}: {why}"));
    }
    assert!(full > 20, "only {full} times the disk was full");
}

#[test]
fn a_power_cut_while_a_log_is_pruned_leaves_what_was_to_stay() {
    for seed in 0..rounds(7, 1_000) {
        let disk = Disk::new(seed);
        let mut subject = Subject::new(seed, 40, 6);
        let segments = if seed % 2 == 0 { Segments::Plain } else { Segments::Compressed };
        let incarnation = live(&disk, &mut subject, 10, segments);
        for keep in [1, 0] {
            for step in 0.. {
                let disk = disk.fork(seed * 100 + step);
                let store = open(&disk).unwrap();
                disk.plan(step, Fault::PowerCut);
                let pruned = store.prune(&name(), keep);
                let hit = disk.hit();
                disk.restart();
                let store = open(&disk).unwrap();
                let whole = subject
                    .compare_all(&store, &name())
                    .unwrap_or_else(|why| panic!("seed {seed}, step {step}, keep {keep}: {why}"));
                match keep {
                    0 => assert!(pruned.is_err() || whole.is_empty(), "seed {seed}, step {step}: {whole:?}"),
                    _ => {
                        assert_eq!(whole.last().copied(), incarnation.answered, "seed {seed}, step {step}");
                        assert!(pruned.is_err() || whole.len() == 1, "seed {seed}, step {step}: {whole:?}");
                    }
                }
                if !hit {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_power_cut_while_a_log_is_squashed_leaves_every_checkpoint() {
    let mut cuts = 0;
    for seed in 0..rounds(6, 500) {
        let disk = Disk::new(seed);
        let mut subject = Subject::new(seed, 40, 6);
        let segments = if seed % 2 == 0 { Segments::Plain } else { Segments::Compressed };
        let incarnation = live(&disk, &mut subject, 10, segments);
        let before = subject.compare_all(&open(&disk).unwrap(), &name()).unwrap();
        assert_eq!(before.last().copied(), incarnation.answered);
        for step in 0.. {
            let disk = disk.fork(seed * 100 + step);
            let store = open(&disk).unwrap();
            disk.plan(step, Fault::PowerCut);
            let squashed = store.squash(&name());
            let hit = disk.hit();
            disk.restart();
            let store = open(&disk).unwrap();
            let whole = subject
                .compare_all(&store, &name())
                .unwrap_or_else(|why| panic!("seed {seed}, step {step}: {why}"));
            assert_eq!(whole, before, "seed {seed}, step {step}");
            cuts += u64::from(hit);
            if !hit {
                assert!(squashed.is_ok_and(|done| done.is_some()), "seed {seed}");
                break;
            }
        }
    }
    assert!(cuts > 200, "only {cuts} cuts");
}

#[test]
fn incarnations_are_repeated_exactly() {
    for segments in [Segments::Plain, Segments::Compressed] {
        assert_eq!(steps_of(7, segments), steps_of(7, segments));
    }
}
