//! Tests of damage to the files of a log, at many offsets. A read returns the written data or an error that reports the
//! damage. An older checkpoint must never be presented as the newest.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use model::{ByteCount, PAGE_BYTES, PageCount, Sequence};
use store::{
    Base, BufferStock, CheckpointSink, Error, LogOptions, LogThreads, RetentionPolicy, SegmentCompression,
    SizeLimit, StorageService, Store, SubjectName, Urgency,
};

use crate::common::log_model::Subject;

use undying_store as store;

/// The distance between flipped bytes. The number is prime, so that every offset within a structure is tested.
const STRIDE: u64 = 2_003;

fn options(codec: Option<&str>) -> LogOptions {
    let compressed = |name| SegmentCompression::new(store::codec(name).unwrap(), std::time::Duration::ZERO);
    LogOptions {
        buffers: NonZeroUsize::new(4).unwrap(),
        service: StorageService::new(BufferStock::new(PageCount(16))),
        segment: ByteCount(48 << 12),
        keep: RetentionPolicy::newest(2),
        size: SizeLimit::None,
        wasted_max: PageCount(8),
        compression: codec.map(compressed),
        threads: LogThreads::Caller,
    }
}

struct Sample {
    _directory: tempfile::TempDir,
    store: Store,
    name: SubjectName,
    subject: Subject,
    newest: Sequence,
    files: Vec<PathBuf>,
}

fn sample(seed: u64, codec: Option<&str>) -> Sample {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&directory.path().join("store")).unwrap();
    let name: SubjectName = "subject".parse().unwrap();
    let writer = store.open_log(&name, options(codec)).unwrap();
    let mut subject = Subject::new(seed, 60, 12);
    for _ in 0..60 {
        if let Some(ticket) = subject.epoch(&writer).unwrap() {
            ticket.wait().unwrap();
        }
    }
    writer.close().unwrap();
    let newest = *subject.history.keys().last().unwrap();
    let entries = std::fs::read_dir(store.root().join("subject/log")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    Sample { _directory: directory, store, name, subject, newest, files }
}

impl Sample {
    /// Checks all checkpoints that the store lists. Returns whether the newest checkpoint is undamaged.
    fn check(&self) -> Result<bool, String> {
        let entries = self.store.entries(&self.name).map_err(|error| error.to_string())?;
        if entries.last().map(|entry| entry.sequence) != Some(self.newest) {
            return Err("the newest is not listed".into());
        }
        let mut good = false;
        for entry in entries {
            let image = match entry.commit.and_then(|_| self.store.read(&entry.path)) {
                Ok(image) => image,
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(format!("{}: {error}", entry.sequence)),
            };
            match image.load::<Error>(image.index().extents(), NonZeroUsize::MIN, |_| Ok(())) {
                Ok(()) => self.subject.compare(entry.sequence, &image)?,
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(format!("{}: {error}", entry.sequence)),
            }
            good |= entry.sequence == self.newest;
        }
        Ok(good)
    }
}

#[test]
fn a_flipped_bit_is_found_or_does_no_harm() {
    let (mut flips, mut found) = (0, 0);
    for (seed, codec) in [(1, None), (2, None), (3, Some("lz4")), (4, Some("zstd"))] {
        let sample = sample(seed, codec);
        let compressed = sample.files.iter().filter(|path| path.extension() == codec.map(OsStr::new)).count();
        assert!(codec.is_none() || compressed > 1, "seed {seed}: {:?}", sample.files);
        assert_eq!(sample.check(), Ok(true), "seed {seed}");
        for path in &sample.files {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            let length = file.metadata().unwrap().len();
            for offset in (seed * 31..length).step_by((length / 8).clamp(1, STRIDE) as usize) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, offset).unwrap();
                file.write_all_at(&[byte[0] ^ 1 << (offset % 8)], offset).unwrap();
                let good = sample.check();
                let good = good.unwrap_or_else(|why| panic!("{}, byte {offset}: {why}", path.display()));
                flips += 1;
                found += u32::from(!good);
                file.write_all_at(&byte, offset).unwrap();
            }
        }
        assert_eq!(sample.check(), Ok(true), "seed {seed}: the bytes are back");
    }
    println!("{flips} flips, {found} of them in what the newest needs");
    assert!(flips > 200 && found > 40, "{flips} flips, {found} found");
}

#[test]
fn a_missing_or_cut_segment_is_found() {
    for codec in [None, Some("lz4")] {
        each_missing_or_cut(&sample(4, codec));
    }
}

fn each_missing_or_cut(sample: &Sample) {
    for path in &sample.files {
        let content = std::fs::read(path).unwrap();
        let check = |what: &str| {
            // If the file that names the newest checkpoint is missing, the loss of this checkpoint may be undetectable.
            let listed = sample.store.entries(&sample.name);
            for entry in listed.into_iter().flatten() {
                let image = match entry.commit.and_then(|_| sample.store.read(&entry.path)) {
                    Ok(image) => image,
                    Err(error) if error.is_damage() => continue,
                    Err(error) => panic!("{what}: {error}"),
                };
                if image.load::<Error>(image.index().extents(), NonZeroUsize::MIN, |_| Ok(())).is_ok() {
                    sample
                        .subject
                        .compare(entry.sequence, &image)
                        .unwrap_or_else(|why| panic!("{what}: {why}"));
                }
            }
        };
        std::fs::remove_file(path).unwrap();
        check("missing");
        std::fs::write(path, &content[..content.len() / 2]).unwrap();
        check("cut");
        std::fs::write(path, &content).unwrap();
    }
    assert_eq!(sample.check(), Ok(true));
}

#[test]
fn a_log_goes_on_from_the_last_whole_checkpoint() {
    let sample = sample(5, None);
    // Damages the root of the newest checkpoint, which is the last data written. Both slots of the checkpoint remain
    // valid. A segment that was created in advance has only a header, and slots precede the data.
    const DATA_AT: usize = 16 * PAGE_BYTES as usize;
    let damaged = sample.files.iter().rev().find_map(|path| {
        let content = std::fs::read(path).unwrap();
        let last = content.iter().rposition(|byte| *byte != 0).filter(|last| *last >= DATA_AT)?;
        let mut changed = content;
        changed[last - 20] ^= 1;
        std::fs::write(path, changed).unwrap();
        Some(last)
    });
    assert!(damaged.is_some());
    assert_eq!(sample.check(), Ok(false));
    let mut subject = sample.subject.clone();
    let writer = sample.store.open_log(&sample.name, options(None)).unwrap();
    let base = writer.base().unwrap();
    assert!(base < sample.newest, "{base} is not older than {}", sample.newest);
    subject.restored(Some(base));
    assert!(
        matches!(writer.begin(sample.newest, Base::Newest, Urgency::Precopy), Err(Error::Exists { .. })),
        "its number is taken"
    );
    subject.next = Sequence(sample.newest.0 + 1);
    let ticket = std::iter::from_fn(|| Some(subject.epoch(&writer).unwrap())).flatten().next().unwrap();
    let sequence = ticket.wait().unwrap().sequence;
    writer.close().unwrap();
    assert_eq!(sample.store.newest(&sample.name).unwrap().unwrap().0, sequence);
    subject.compare_all(&sample.store, &sample.name).unwrap();
}
