//! Tests of joined epochs on a real file system.
//!
//! Owns: the comparison of rollbacks with and without joined epochs, and the size of a log that is joined.
//! Does not: change files of a subject; `back::simulated` does.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use model::{ByteCount, Sequence};
use sys::file_rights::FileRights;
use tempfile::TempDir;

use super::*;
use crate::key::{Attributes, FileKey, Time};
use crate::log::joint::SUFFIX;
use crate::log::keep::KeepPlaces;
use crate::log::reader::{self, Depth};
use crate::log::record;
use crate::log::storage::{DiskStorage, Storage as _};
use crate::log::target::{self, TargetInode};
use crate::rights::{Aspects, Rights, RightsId, Touch};

const LARGE: ByteCount = ByteCount(1 << 40);
/// The length of each file in bytes.
const SIZE: u64 = 40;
const PLANS: u64 = 300;

fn key(inode: u64) -> FileKey {
    let handle = sys::file_handle::FileHandle { kind: 1, bytes: vec![7; 8] };
    FileKey { device: 1, inode, handle }
}

fn undo(directory: &TempDir) -> PathBuf {
    directory.path().join("undo")
}

fn new(max: ByteCount) -> (TempDir, UndoLog) {
    let directory = TempDir::new().unwrap();
    let mut log = UndoLog::create(&undo(&directory), Sequence(0), max).unwrap();
    log.join_always();
    (directory, log)
}

/// Writes an epoch in which `bytes` bytes of one file change, and begins the next epoch.
fn epoch(log: &mut UndoLog, bytes: usize, next: u64) {
    let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    log.range(inode, 0, &vec![1; bytes]).unwrap();
    log.boundary(Sequence(next)).unwrap();
    log.prepare().unwrap();
}

fn disk_bytes(directory: &TempDir) -> u64 {
    let names = fs::read_dir(undo(directory)).unwrap().map(|entry| entry.unwrap());
    let epochs = names.filter(|entry| entry.file_name().to_string_lossy().ends_with(".epoch"));
    epochs.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn a_file_that_changes_in_each_epoch_needs_its_size_for_each_retained_checkpoint() {
    let (directory, mut log) = new(LARGE);
    log.joining = Joining { bytes_min: 10_000, ..Joining::default() };
    let mut kept = vec![Sequence(0)];
    for next in 1..200 {
        epoch(&mut log, 10_000, next);
        if next % 50 == 0 {
            kept.push(Sequence(next));
        }
        kept.push(Sequence(next));
        log.retain(&kept).unwrap();
        kept.pop();
        while log.join().unwrap() {}
        log.writes().make().unwrap();
        let most = (kept.len() as u64 + 1) * 10_200 + 30_000 + 20_000;
        assert!(log.bytes().get() < most, "{next}: {} of {most}", log.bytes());
        assert!(disk_bytes(&directory) <= log.bytes().get() + 4096);
    }
    let present = Sequence(199);
    assert_eq!(
        log.sequences(),
        [0, 50, 100, 150].map(Sequence).into_iter().chain([present]).collect::<Vec<_>>()
    );
    let (reachable, _) = crate::back::reachable(&undo(&directory)).unwrap();
    assert!([0, 50, 100, 150].iter().all(|kept| reachable.contains(&Sequence(*kept))), "{reachable:?}");
}

#[test]
fn epochs_are_joined_only_if_nothing_can_be_added_to_them_and_it_is_worth_it() {
    let (_directory, mut log) = new(LARGE);
    for next in 1..4 {
        epoch(&mut log, 1000, next);
    }
    // The epochs of checkpoints 1 and 2 are before the newest two.
    log.retain(&[0, 2, 3].map(Sequence)).unwrap();
    assert!(!log.can_join(&foreign()));
    assert_eq!(log.to_join().unwrap().ordinals, [1, 2]);
    log.joining = Joining::default();
    assert!(log.to_join().is_none(), "too small");
    log.join_always();
    log.storage.reserve();
    log.idle().unwrap();
    assert!(log.to_join().is_none(), "no process runs");
    log.running().unwrap();
    log.bytes_max = log.bytes + 1;
    assert!(log.to_join().is_none(), "no room for a second copy");
}

#[test]
fn epochs_that_are_worth_joining_are_joined_although_others_have_more_bytes_and_are_not() {
    let (_directory, mut log) = new(LARGE);
    log.joining = Joining { bytes_min: 100, ..Joining::default() };
    for (next, bytes) in [(1, 9000), (2, 4000), (3, 1000), (4, 1000), (5, 1000), (6, 10), (7, 10), (8, 10)] {
        epoch(&mut log, bytes, next);
    }
    log.retain(&[0, 2, 5, 6, 7, 8].map(Sequence)).unwrap();
    assert_eq!(log.to_join().map(|joint| joint.ordinals), Some(vec![3, 4, 5]));
}

fn foreign() -> Joined {
    let (_directory, log) = new(LARGE);
    let (storage, log) = (Arc::clone(&log.storage), Arc::clone(&log.joining.log));
    Joined { storage, log, ordinals: vec![1], name: String::new(), length: 0, kept: Vec::new() }
}

#[test]
fn epochs_may_be_dropped_while_they_are_joined() {
    for dropped_until in [1, 2, 4] {
        let (directory, mut log) = new(LARGE);
        for next in 1..6 {
            epoch(&mut log, 1000, next);
        }
        log.retain(&[0, 4, 5].map(Sequence)).unwrap();
        let joined = log.to_join().unwrap().write().unwrap().unwrap();
        assert_eq!(joined.ordinals, [1, 2, 3, 4]);
        assert!(log.can_join(&joined));
        joined.publish().unwrap();
        while log.epochs.front().is_some_and(|epoch| epoch.ordinal <= dropped_until) {
            log.drop_oldest().unwrap();
        }
        log.joined(joined).unwrap();
        log.writes().make().unwrap();
        assert_eq!(log.sequences(), [4, 5].map(Sequence));
        let lengths: u64 = log.epochs.iter().map(|epoch| epoch.length).sum();
        assert_eq!((log.bytes, disk_bytes(&directory)), (lengths, lengths), "{dropped_until}");
        drop(log);
        let found = UndoLog::open(&undo(&directory), LARGE).unwrap().sequences();
        assert!(found.ends_with(&[4, 5].map(Sequence)), "{found:?}");
    }
}

#[test]
fn damage_prevents_a_join_and_later_attempts_need_more() {
    let (directory, mut log) = new(LARGE);
    for next in 1..5 {
        epoch(&mut log, 1000, next);
    }
    log.retain(&[0, 4].map(Sequence)).unwrap();
    let path = undo(&directory).join(epoch_name(2));
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let before = disk_bytes(&directory);
    assert!(log.to_join().unwrap().write().unwrap().is_none());
    (0..2).for_each(|_| log.join_failed());
    assert_eq!(disk_bytes(&directory), before);
    assert!(
        fs::read_dir(undo(&directory))
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().ends_with(SUFFIX) })
    );
    assert_eq!(log.to_join().map(|joint| joint.ordinals), None, "three epochs are not worth another attempt");
    log.joining.failures = 0;
    assert!(log.to_join().is_some());
}

#[test]
fn an_unpublished_epoch_is_removed_when_the_log_is_opened() {
    let (directory, mut log) = new(LARGE);
    for next in 1..5 {
        epoch(&mut log, 1000, next);
    }
    log.retain(&[0, 4].map(Sequence)).unwrap();
    let joined = log.to_join().unwrap().write().unwrap().unwrap();
    let path = undo(&directory).join(&joined.name);
    assert!(path.exists());
    drop(log);
    let log = UndoLog::open(&undo(&directory), LARGE).unwrap();
    assert!(!path.exists() && !log.can_join(&joined));
}

/// Writes random records of random epochs. The same seed writes the same records.
fn write_random(random: &mut Rng, directory: &TempDir, log: &mut UndoLog) {
    let keep = KeepPlaces::new(&undo(directory)).unwrap();
    let mut next = 0;
    for _ in 0..random.u64(4..12) {
        let mut rights = vec![RightsId::OWN];
        let mut inodes = Vec::new();
        let mut directories = Vec::new();
        for _ in 0..random.u64(1..14) {
            let aspects = Aspects(random.u32(1..64) & Aspects::ALL.0);
            let by = rights[random.usize(..rights.len())];
            let touch = Touch { aspects, rights: by };
            let attributes = Attributes {
                mode: 0o100_000 | random.u32(..512),
                size: SIZE,
                owner: random.u32(..3),
                ..Attributes::default()
            };
            let inode = (!inodes.is_empty()).then(|| inodes[random.usize(..inodes.len())]);
            let offset = random.u64(..SIZE);
            let length = random.u64(1..=SIZE - offset);
            let byte = random.u8(1..);
            match (random.u8(..11), inode) {
                (0, _) => {
                    let files = FileRights {
                        user: random.u32(..3),
                        group: 0,
                        supplementary: Vec::new(),
                        effective: 0,
                    };
                    rights.push(log.rights(&Rights { files, namespace: None }).unwrap());
                }
                (1, _) => {
                    let number = random.u64(10..12);
                    directories.push(log.directory(&key(number), &attributes, Path::new("/d")).unwrap());
                }
                (2 | 3, _) | (_, None) => {
                    let number = random.u64(1..4);
                    inodes.push(log.inode(&key(number), &attributes, Path::new("/f"), touch, None).unwrap());
                }
                (4, Some(inode)) => log.touched(inode, touch, &attributes).unwrap(),
                (5, before) if !directories.is_empty() => {
                    let above = directories[random.usize(..directories.len())];
                    let name = ["a", "b", "c"][random.usize(..3)];
                    log.name(above, OsStr::new(name), before.filter(|_| byte > 99), by).unwrap();
                }
                (6 | 7, Some(inode)) => log.range(inode, offset, &vec![byte; length as usize]).unwrap(),
                (8, Some(inode)) => log.hole(inode, offset, ByteCount(length)).unwrap(),
                (9, Some(inode)) => {
                    let (file, path) = keep.file().unwrap();
                    std::io::Write::write_all(&mut &file, &vec![byte; SIZE as usize]).unwrap();
                    log.whole_in(inode, &path).unwrap();
                }
                (10, Some(_)) => log.uncovered(1, offset, Path::new("/u")).unwrap(),
                _ => {}
            }
        }
        next += 1;
        log.boundary(Sequence(next)).unwrap();
        if random.u8(..8) == 0 {
            log.retract(Sequence(next)).unwrap();
        }
    }
    let mut kept = log.sequences();
    kept.retain(|_| random.u8(..3) == 0);
    kept.push(Sequence(next + 1));
    log.boundary(Sequence(next + 1)).unwrap();
    log.retain(&kept).unwrap();
}

/// Returns what a rollback to a checkpoint does, as text.
fn effect(log: &UndoLog, directory: &TempDir, to: Sequence) -> String {
    let storage = DiskStorage::open(&undo(directory)).unwrap();
    let read = reader::read(&storage, Depth::All).unwrap();
    let first = read.epochs.iter().rposition(|epoch| epoch.sequences.contains(&to));
    let first = first.unwrap_or_else(|| panic!("{to} is lost of {:?}", log.sequences()));
    let mut target = target::merge(&read.epochs[first..], &target::aliases(&read.epochs)).unwrap();
    let name = |index: &usize| target.inodes[*index].key.inode;
    let names: BTreeMap<_, _> = target
        .names
        .iter()
        .map(|((above, last), before)| {
            let by = target.names_by.get(&(*above, last.clone()));
            ((name(above), last), (before.as_ref().map(name), by))
        })
        .collect();
    let mut inodes: Vec<String> = target
        .inodes
        .iter()
        .map(|inode| {
            let content = content(&storage, inode);
            let mut touched = inode.touched.clone();
            touched.sort_by_key(|(_, rights)| format!("{rights:?}"));
            format!("{} {:?} {touched:?} {content:?}", inode.key.inode, inode.attributes)
        })
        .collect();
    inodes.sort();
    target.uncovered.sort_unstable();
    target.uncovered.dedup();
    format!("{names:?}\n{inodes:#?}\n{:?}", target.uncovered)
}

/// Returns the content of a file after the rollback, as `back::steps` applies it.
fn content(storage: &DiskStorage, inode: &TargetInode) -> Vec<u8> {
    let mut bytes = vec![b'.'; SIZE as usize];
    let from = inode.content.iter().rposition(|layer| layer.whole.is_some()).unwrap_or(0);
    for layer in &inode.content[from..] {
        if let Some(whole) = &layer.whole {
            bytes = fs::read(whole).unwrap();
        }
        let file = storage.open(&epoch_name(layer.ordinal)).unwrap();
        for piece in layer.pieces.iter().rev() {
            let place = &mut bytes[piece.offset as usize..(piece.offset + piece.length) as usize];
            match piece.data_offset {
                Some(offset) => assert_eq!(file.read(offset, place).unwrap(), place.len()),
                None => place.fill(0),
            }
        }
    }
    bytes
}

#[test]
fn a_rollback_has_the_same_effect_with_joined_epochs() {
    let first = Rng::new().u64(..u64::MAX / 2);
    let (mut joins, mut compared, mut smaller) = (0, 0, 0);
    for seed in first..first + PLANS {
        let ((apart, mut log), (joined, mut other)) = (new(LARGE), new(LARGE));
        write_random(&mut Rng::with_seed(seed), &apart, &mut log);
        write_random(&mut Rng::with_seed(seed), &joined, &mut other);
        while other.join().unwrap() {
            joins += 1;
        }
        log.writes().make().unwrap();
        other.writes().make().unwrap();
        assert_eq!(log.sequences(), other.sequences(), "seed {seed}");
        for to in log.sequences() {
            let (wanted, found) = (effect(&log, &apart, to), effect(&other, &joined, to));
            assert!(wanted == found, "seed {seed}, checkpoint {to}: {wanted}\n-- joined:\n{found}");
            compared += 1;
        }
        smaller += usize::from(other.bytes < log.bytes);
        let bytes = other.bytes;
        drop(other);
        let opened = UndoLog::open(&undo(&joined), LARGE).unwrap();
        assert_eq!(opened.bytes, bytes, "seed {seed}");
        let kept = fs::read_dir(undo(&joined).join("keep/kept")).unwrap().count();
        assert_eq!(opened.kept.len(), kept, "seed {seed}");
    }
    println!(
        "seeds from {first}: {joins} joins, {compared} rollbacks, {smaller} of {PLANS} logs are smaller"
    );
    assert!(joins > 100 && compared > 300 && smaller > 50);
}

/// How a file of `a_file_between_two_retained_checkpoints_takes_no_room` came to its name.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Came {
    /// The subject has created it.
    Created,
    /// It had another name. The clock was set back since it was created.
    Renamed,
    /// A rollback has created it again.
    Made,
    /// The file system does not know when it was created.
    Unknown,
}

#[test]
fn a_file_between_two_retained_checkpoints_takes_no_room() {
    for came in [Came::Created, Came::Renamed, Came::Made, Came::Unknown] {
        let (directory, mut log) = new(LARGE);
        let keep = KeepPlaces::new(&undo(&directory)).unwrap();
        let future = Time { s: i64::from(u32::MAX), ns: 0 };
        let born = Some(future).filter(|_| came != Came::Unknown);
        let file = Attributes { mode: 0o100_644, size: SIZE, born, ..Attributes::default() };
        let folder = Attributes { mode: 0o040_755, ..Attributes::default() };
        if came == Came::Made {
            let alias = record::Alias { old: (&key(8)).into(), new: (&key(9)).into() };
            log.append(&alias, &[]).unwrap();
        }
        let above = log.directory(&key(1), &folder, Path::new("/")).unwrap();
        if came == Came::Renamed {
            let before = log.inode(&key(9), &file, Path::new("/old"), Touch::ANY, None).unwrap();
            log.name(above, OsStr::new("old"), Some(before), RightsId::OWN).unwrap();
        }
        log.name(above, OsStr::new("new"), None, RightsId::OWN).unwrap();
        log.boundary(Sequence(1)).unwrap();
        let above = log.directory(&key(1), &folder, Path::new("/")).unwrap();
        let inode = log.inode(&key(9), &file, Path::new("/new"), Touch::ANY, None).unwrap();
        log.range(inode, 0, &[7; 20]).unwrap();
        let (_, link) = keep.file().unwrap();
        log.linked(inode, &link).unwrap();
        log.name(above, OsStr::new("new"), Some(inode), RightsId::OWN).unwrap();
        log.boundary(Sequence(2)).unwrap();
        epoch(&mut log, 10, 3);
        log.retain(&[0, 2, 3].map(Sequence)).unwrap();
        let before = effect(&log, &directory, Sequence(0));
        assert!(log.join().unwrap());
        log.writes().make().unwrap();
        let after = effect(&log, &directory, Sequence(0));
        let is_left_out = came == Came::Created;
        assert_eq!(link.exists(), !is_left_out, "{came:?}");
        assert_eq!(after == before, !is_left_out, "{came:?}: {before}\n{after}");
        assert_eq!(after.contains("\n    \"9 "), !is_left_out, "{came:?}: {after}");
    }
}
