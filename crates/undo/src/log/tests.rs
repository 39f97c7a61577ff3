//! Tests of the undo log on a real file system.
//!
//! Owns: tests of retention, of the size limit, of damaged files and of keep directories (links and copies of old
//! files).
//! Does not: test rollbacks.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use model::{ByteCount, Sequence};
use prost::Message;
use tempfile::TempDir;

use super::keep::KeepPlaces;
use super::*;
use crate::back::reachable;
use crate::key::{Attributes, FileKey};
use crate::rights::Touch;

const LARGE: ByteCount = ByteCount(1 << 40);

fn key(inode: u64) -> FileKey {
    let handle = sys::file_handle::FileHandle { kind: 1, bytes: vec![7; 8] };
    FileKey { device: 1, inode, handle }
}

fn new(max: ByteCount) -> (TempDir, UndoLog) {
    let directory = TempDir::new().unwrap();
    let log = UndoLog::create(&directory.path().join("undo"), Sequence(0), max).unwrap();
    (directory, log)
}

fn undo(directory: &TempDir) -> PathBuf {
    directory.path().join("undo")
}

/// Writes an epoch with a range of `bytes` bytes, and begins the next epoch.
fn epoch(log: &mut UndoLog, bytes: usize, next: u64) -> Result<()> {
    let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None)?;
    log.range(inode, 0, &vec![1; bytes])?;
    log.boundary(Sequence(next))?;
    log.prepare()
}

fn sequences(numbers: &[u64]) -> Vec<Sequence> {
    numbers.iter().copied().map(Sequence).collect()
}

fn file_of(directory: &TempDir, ordinal: u64) -> PathBuf {
    undo(directory).join(epoch_name(ordinal))
}

#[test]
fn the_oldest_epochs_are_dropped_when_the_log_is_full_and_never_the_newest() {
    let (directory, mut log) = new(ByteCount(10_000));
    for next in 1..10 {
        epoch(&mut log, 3000, next).unwrap();
        assert!(log.bytes().get() <= 10_000 + 200);
    }
    assert_eq!(log.sequences(), sequences(&[6, 7, 8, 9]));
    assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[6, 7, 8, 9]));
    let error = epoch(&mut log, 20_000, 10).unwrap_err();
    assert!(matches!(error, UndoError::Full { .. }), "{error}");
    log.broken("full").unwrap();
    log.boundary(Sequence(10)).unwrap();
    assert_eq!(log.sequences(), sequences(&[10]));
    let (found, why) = reachable(&undo(&directory)).unwrap();
    assert_eq!(found, sequences(&[10]));
    assert!(why.unwrap().contains("the recorded changes of files since checkpoint 9 are incomplete: full"));
}

#[test]
fn an_empty_epoch_is_the_way_back_to_several_checkpoints() {
    let (directory, mut log) = new(LARGE);
    assert!(!log.boundary(Sequence(1)).unwrap());
    epoch(&mut log, 10, 2).unwrap();
    assert!(!log.boundary(Sequence(3)).unwrap());
    assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[0, 1, 2, 3]));
    log.forget_before(Sequence(1)).unwrap();
    assert_eq!(log.sequences(), sequences(&[0, 1, 2, 3]));
    log.forget_before(Sequence(2)).unwrap();
    assert_eq!(log.sequences(), sequences(&[2, 3]));
    log.writes().make().unwrap();
    assert!(!file_of(&directory, 1).exists());
}

#[test]
fn checkpoints_that_are_not_kept_take_no_room_for_ever() {
    let (directory, mut log) = new(LARGE);
    const KEPT: u64 = 5;
    for sequence in 1..=20_000 {
        log.prepare().unwrap();
        log.boundary(Sequence(sequence)).unwrap();
        let kept: Vec<_> = (sequence.saturating_sub(KEPT - 1)..=sequence).map(Sequence).collect();
        log.retain(&kept).unwrap();
    }
    assert_eq!(log.sequences(), sequences(&[19_996, 19_997, 19_998, 19_999, 20_000]));
    assert!(log.bytes() < ByteCount(3 * SEQUENCES_BYTES_MAX), "{:?}", log.bytes());
    // An old checkpoint that is retained needs all later epochs, but not the checkpoints in between.
    log.boundary(Sequence(20_001)).unwrap();
    epoch(&mut log, 10, 20_002).unwrap();
    log.retain(&sequences(&[19_999, 20_001])).unwrap();
    assert_eq!(log.sequences(), sequences(&[19_999, 20_001, 20_002]));
    let found = reachable(&undo(&directory)).unwrap().0;
    assert!([19_999, 20_001, 20_002].iter().all(|one| found.contains(&Sequence(*one))));
}

#[test]
fn a_torn_record_is_not_there_at_the_end_and_breaks_an_older_epoch() {
    let (directory, mut log) = new(LARGE);
    epoch(&mut log, 100, 1).unwrap();
    epoch(&mut log, 100, 2).unwrap();
    let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    log.range(inode, 0, &[1; 100]).unwrap();
    drop(log);
    let cut = |ordinal: u64, by: u64| {
        let file = OpenOptions::new().write(true).open(file_of(&directory, ordinal)).unwrap();
        file.set_len(file.metadata().unwrap().len() - by).unwrap();
    };
    cut(3, 50);
    assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[0, 1, 2]));
    let mut log = UndoLog::open(&undo(&directory), LARGE).unwrap();
    epoch(&mut log, 10, 3).unwrap();
    assert_eq!(reachable(&undo(&directory)).unwrap(), (sequences(&[0, 1, 2, 3]), None));
    cut(2, 1);
    let (found, why) = reachable(&undo(&directory)).unwrap();
    assert_eq!(found, sequences(&[2, 3]));
    assert!(why.unwrap().contains("torn"));
}

#[test]
fn damage_and_unknown_records_break_an_epoch_by_name() {
    let (directory, mut log) = new(LARGE);
    epoch(&mut log, 100, 1).unwrap();
    epoch(&mut log, 100, 2).unwrap();
    let file = OpenOptions::new().write(true).read(true).open(file_of(&directory, 2)).unwrap();
    let end = file.metadata().unwrap().len();
    file.write_all_at(b"x", end - 5).unwrap();
    let (found, why) = reachable(&undo(&directory)).unwrap();
    assert_eq!(found, sequences(&[2]));
    assert!(why.unwrap().contains("damaged record"));

    let record = record::Record { kind: "colour".to_owned(), version: 1, body: Vec::new() }.encode_to_vec();
    let mut frame = [(record.len() as u32).to_le_bytes(), [0; 4]].concat();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&frame), &record);
    frame.extend(sum.to_le_bytes());
    frame.extend(record);
    let file = OpenOptions::new().append(true).open(file_of(&directory, 3)).unwrap();
    std::io::Write::write_all(&mut &file, &frame).unwrap();
    let (found, why) = reachable(&undo(&directory)).unwrap();
    assert!(found.is_empty());
    assert!(why.unwrap().contains("record colour (version 1)"));
}

/// A damaged length would otherwise look like a torn record, and hide the records after it.
#[test]
fn each_damaged_bit_of_the_newest_epoch_breaks_it() {
    let (directory, mut log) = new(LARGE);
    epoch(&mut log, 100, 1).unwrap();
    let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    log.range(inode, 0, &[1; 300]).unwrap();
    log.range(inode, 300, &[2; 10]).unwrap();
    drop(log);
    let path = file_of(&directory, 2);
    let whole = fs::read(&path).unwrap();
    assert_eq!(reachable(&undo(&directory)).unwrap(), (sequences(&[0, 1]), None));
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &bytes).unwrap();
        let (found, why) = reachable(&undo(&directory)).unwrap();
        assert!(found.is_empty() && why.is_some(), "bit {bit} of {} bytes: {found:?}, {why:?}", whole.len());
    }
}

/// A write that was interrupted leaves each length of the last record, and is no damage.
#[test]
fn each_shorter_newest_epoch_loses_only_its_last_records() {
    let (directory, mut log) = new(LARGE);
    epoch(&mut log, 100, 1).unwrap();
    log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    drop(log);
    let path = file_of(&directory, 2);
    let whole = fs::read(&path).unwrap();
    let mut found = Vec::new();
    for length in (0..whole.len()).rev() {
        fs::write(&path, &whole[..length]).unwrap();
        let (now, why) = reachable(&undo(&directory)).unwrap();
        assert_eq!(why, None, "{length} of {} bytes", whole.len());
        found.push(now);
    }
    found.dedup();
    assert_eq!(found, [sequences(&[0, 1]), sequences(&[0])]);
}

/// Frames of version 0.2.0 have no checksum of their lengths.
#[test]
fn a_log_of_an_earlier_release_is_read() {
    let (directory, mut log) = new(LARGE);
    epoch(&mut log, 100, 1).unwrap();
    epoch(&mut log, 100, 2).unwrap();
    drop(log);
    for ordinal in 1..=3 {
        let path = file_of(&directory, ordinal);
        let now = fs::read(&path).unwrap();
        let (mut rest, mut old) = (&now[..], Vec::new());
        while let Some((frame, behind)) = frame::split(rest) {
            let mut lengths: [u8; 8] = *frame.first_chunk().unwrap();
            lengths[3] = 0;
            let sum = crc32c::crc32c_append(crc32c::crc32c(&lengths), &frame[frame::HEAD_BYTES..]);
            old.extend([&lengths, &sum.to_le_bytes()[..], &frame[frame::HEAD_BYTES..]].concat());
            rest = behind;
        }
        assert!(rest.is_empty() && old.len() < now.len());
        fs::write(&path, old).unwrap();
    }
    assert_eq!(reachable(&undo(&directory)).unwrap(), (sequences(&[0, 1, 2]), None));
    let mut log = UndoLog::open(&undo(&directory), LARGE).unwrap();
    epoch(&mut log, 100, 3).unwrap();
    assert_eq!(reachable(&undo(&directory)).unwrap(), (sequences(&[0, 1, 2, 3]), None));
}

#[test]
fn a_header_of_another_boot_breaks_an_epoch() {
    let (directory, mut log) = new(LARGE);
    log.boot = "another".to_owned();
    epoch(&mut log, 10, 1).unwrap();
    let (found, why) = reachable(&undo(&directory)).unwrap();
    assert!(found.is_empty());
    assert!(why.unwrap().contains("before the machine was last started"));
}

#[test]
fn links_and_copies_go_with_the_last_epoch_that_names_them() {
    let (directory, mut log) = new(LARGE);
    let keep = KeepPlaces::new(&undo(&directory)).unwrap();
    let (_file, copy) = keep.file().unwrap();
    for next in 1..4 {
        let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
        if next < 3 {
            log.whole_in(inode, &copy).unwrap();
        }
        log.boundary(Sequence(next)).unwrap();
    }
    log.forget_before(Sequence(1)).unwrap();
    assert!(copy.exists());
    log.forget_before(Sequence(2)).unwrap();
    log.writes().make().unwrap();
    assert!(!copy.exists());

    // A broken epoch keeps no copy. The copy of a failed record is removed as well.
    let (_file, copy) = keep.file().unwrap();
    log.broken("a test").unwrap();
    log.whole_in(InodeId(0), &copy).unwrap();
    log.writes().make().unwrap();
    assert!(!copy.exists());
}

#[test]
fn a_new_log_removes_the_old_one_and_leaves_what_was_moved_aside() {
    let (directory, mut log) = new(LARGE);
    let keep = KeepPlaces::new(&undo(&directory)).unwrap();
    let (_file, copy) = keep.file().unwrap();
    let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    log.whole_in(inode, &copy).unwrap();
    let (_file, orphan) = keep.file().unwrap();
    let aside = undo(&directory).join("keep/aside/1");
    fs::create_dir_all(&aside).unwrap();
    fs::write(aside.join("1"), "made by the subject").unwrap();
    drop(log);
    let log = UndoLog::create(&undo(&directory), Sequence(5), LARGE).unwrap();
    assert_eq!(log.sequences(), sequences(&[5]));
    assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[5]));
    assert!(!copy.exists() && !orphan.exists() && aside.join("1").exists());
    let mode = fs::metadata(undo(&directory)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

#[test]
fn nothing_outside_of_a_keep_directory_is_removed() {
    let (directory, mut log) = new(LARGE);
    let keep = KeepPlaces::new(&undo(&directory)).unwrap();
    let outside = directory.path().join("kept");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "not ours").unwrap();
    assert!(keep.remove(&outside.join("file")).is_ok());
    let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    log.linked(inode, &outside.join("file")).unwrap();
    log.boundary(Sequence(1)).unwrap();
    log.forget_before(Sequence(1)).unwrap();
    assert!(outside.join("file").exists());
    // A keep directory that other users can enter is refused.
    let place = undo(&directory).join("keep");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    let error = KeepPlaces::new(&undo(&directory)).unwrap_err();
    assert!(matches!(error, UndoError::ForeignKeep { .. }), "{error}");
}

#[test]
fn an_inode_on_the_device_of_the_log_is_linked_beside_it() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let (directory, _log) = new(LARGE);
    let keep = KeepPlaces::new(&undo(&directory)).unwrap();
    fs::write(directory.path().join("file"), "text").unwrap();
    let above = File::open(directory.path()).unwrap();
    let file = File::open(directory.path().join("file")).unwrap();
    let link = keep.link(file.as_fd(), above.as_fd()).unwrap();
    fs::remove_file(directory.path().join("file")).unwrap();
    assert!(link.starts_with(undo(&directory).join("keep/kept")));
    assert_eq!(fs::read_to_string(&link).unwrap(), "text");
    keep.remove(&link).unwrap();
    assert!(!link.exists());
}

/// A small mounted tmpfs, which is unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let at = TempDir::new().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m,mode=0700", "none"]).arg(at.path());
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        if !is_mounted {
            println!("unsupported: mounting a tmpfs");
        }
        is_mounted.then_some(Self(at))
    }

    /// Fills the disk.
    fn fill(&self) {
        let filler = File::create(self.0.path().join("filler")).unwrap();
        let mut at = 0;
        while filler.write_all_at(&[1; 64 << 10], at).is_ok() {
            at += 64 << 10;
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn records_go_on_for_a_while_when_the_disk_is_full() {
    let Some(disk) = SmallDisk::mount() else { return };
    let directory = disk.0.path().join("undo");
    let mut log = UndoLog::create(&directory, Sequence(0), LARGE).unwrap();
    epoch(&mut log, 3000, 1).unwrap();
    let record = |log: &mut UndoLog, megabytes: usize| -> Result<()> {
        let inode = log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None)?;
        (0..megabytes).try_for_each(|_| log.range(inode, 0, &vec![1; 1 << 20]))
    };
    disk.fill();
    record(&mut log, 6).unwrap();
    // A new epoch would record content again.
    let error = log.boundary(Sequence(2)).unwrap_err();
    assert!(matches!(error, UndoError::Short { .. }), "{error}");
    assert_eq!(reachable(&directory).unwrap().0, sequences(&[0, 1]), "the disk is full, and nothing is lost");
    record(&mut log, 6).unwrap_err();
    // With space on the disk, the next epoch has a reserve again.
    fs::remove_file(disk.0.path().join("filler")).unwrap();
    log.broken("full").unwrap();
    log.prepare().unwrap();
    log.boundary(Sequence(3)).unwrap();
    log.prepare().unwrap();
    disk.fill();
    record(&mut log, 6).unwrap();
    assert_eq!(reachable(&directory).unwrap().0, sequences(&[3]));
}

#[test]
fn records_of_a_pause_are_written_after_it_or_before_the_next_record() {
    for by_record in [false, true] {
        let (directory, mut log) = new(LARGE);
        log.hold();
        epoch_in_pause(&mut log);
        log.end_hold();
        assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[0]), "nothing was written");
        assert_eq!(log.sequences(), sequences(&[0, 1]));
        if by_record {
            log.inode(&key(2), &Attributes::default(), Path::new("/other"), Touch::ANY, None).unwrap();
        } else {
            log.writes().make().unwrap();
        }
        assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[0, 1]));
    }
}

/// Records a change, and begins the next epoch at checkpoint 1.
fn epoch_in_pause(log: &mut UndoLog) {
    log.inode(&key(1), &Attributes::default(), Path::new("/file"), Touch::ANY, None).unwrap();
    log.boundary(Sequence(1)).unwrap();
}

#[test]
fn after_a_write_of_a_pause_has_failed_no_record_is_added_until_the_next_boundary() {
    let directory = TempDir::new().unwrap();
    let storage = DiskStorage::open_or_create(&undo(&directory)).unwrap();
    fs::write(undo(&directory).join("other"), "").unwrap();
    let unwritable = storage.open_read_only("other").unwrap();
    let mut log = UndoLog::create_on(Box::new(storage), Sequence(0), LARGE).unwrap();
    log.prepare().unwrap();
    log.hold();
    epoch_in_pause(&mut log);
    unwritable.write(0, [b"x", &[]]).unwrap();
    log.same(Sequence(2)).unwrap();
    log.end_hold();
    log.writes().make().unwrap_err();
    let error = log.same(Sequence(3)).unwrap_err();
    assert!(matches!(error, UndoError::Torn { .. }), "{error}");
    log.broken("a record is missing").unwrap();
    assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[]), "the epochs are incomplete");
    log.hold();
    log.boundary(Sequence(4)).unwrap();
    log.end_hold();
    log.writes().make().unwrap();
    assert_eq!(reachable(&undo(&directory)).unwrap().0, sequences(&[4]));
}
