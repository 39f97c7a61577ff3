//! Tests of rollbacks on a real file system.
//!
//! Owns: a recorder for changes that the test makes itself. The recorder writes the records that a watch of a subject
//! would write.
//! Does not: interrupt rollbacks; `simulated` does.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use model::ByteCount;
use rustix::fs::{Mode, OFlags};
use rustix::thread::{CapabilitySet, CapabilitySets};
use tempfile::TempDir;

use super::*;
use crate::key::Attributes;
use crate::log::keep::KeepPlaces;
use crate::log::{DirectoryId, InodeId, UndoLog};
use crate::rights::{RightsId, Touch};

mod put_back;

const MAX: ByteCount = ByteCount(1 << 40);

/// A tree of files and its undo log.
struct Bench {
    directory: TempDir,
    /// The directory of the tree, if the tree is not on the file system of the log.
    elsewhere: Option<TempDir>,
    log: UndoLog,
    keep: KeepPlaces,
}

impl Bench {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("unsupported: root");
            return None;
        }
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("tree")).unwrap();
        let log = UndoLog::create(&directory.path().join("undo"), Sequence(0), MAX).unwrap();
        let keep = KeepPlaces::new(&directory.path().join("undo")).unwrap();
        Some(Self { directory, elsewhere: None, log, keep })
    }

    fn undo(&self) -> PathBuf {
        self.directory.path().join("undo")
    }

    fn path(&self, name: &str) -> PathBuf {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.path().join(name),
            None => self.directory.path().join("tree").join(name),
        }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        describe(&self.path(""), &mut found);
        found
    }

    fn inode(&mut self, name: &str) -> InodeId {
        let (node, path) = (open(&self.path(name)), self.path(name));
        let (key, attributes) = known(&node);
        self.log.inode(&key, &attributes, &path, Touch::ANY, None).unwrap()
    }

    fn parent(&mut self, name: &str) -> (OwnedFd, DirectoryId) {
        let path = self.path(name).parent().unwrap().to_path_buf();
        let node = open(&path);
        let (key, attributes) = known(&node);
        let id = self.log.directory(&key, &attributes, &path).unwrap();
        (node, id)
    }

    /// Records a name before the name leads to another inode.
    fn name(&mut self, name: &str) {
        let path = self.path(name);
        let is_there = fs::symlink_metadata(&path).is_ok();
        let before = is_there.then(|| self.inode(name));
        let (parent, directory) = self.parent(name);
        let file_name = path.file_name().unwrap();
        self.log.name(directory, file_name, before, RightsId::OWN).unwrap();
        if let Some(before) = before.filter(|_| !path.is_dir() || path.is_symlink()) {
            let link = self.keep.link(open(&path).as_fd(), parent.as_fd()).unwrap();
            self.log.linked(before, &link).unwrap();
        }
    }

    /// Records a range before the range is overwritten.
    fn range(&mut self, name: &str, offset: u64, length: usize) {
        let inode = self.inode(name);
        let mut bytes = vec![0; length];
        let read = File::open(self.path(name)).unwrap().read_at(&mut bytes, offset).unwrap();
        self.log.range(inode, offset, &bytes[..read]).unwrap();
    }

    fn boundary(&mut self, sequence: u64) {
        self.log.boundary(Sequence(sequence)).unwrap();
        self.log.prepare().unwrap();
    }

    fn back(&self, to: u64) -> Result<WentBack> {
        go_back(&self.undo(), Sequence(to), Conflicts::Refuse, &[], Durability::Kill)
    }
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn known(node: &OwnedFd) -> (FileKey, Attributes) {
    let stat = rustix::fs::fstat(node).unwrap();
    let attributes = Attributes::read(node, &stat).unwrap();
    (FileKey::of(node, &stat).unwrap(), attributes)
}

fn describe(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let data = fs::symlink_metadata(path).unwrap();
    let content = if data.is_file() && data.len() < 1 << 20 {
        format!("{:?}", fs::read(path).unwrap())
    } else if data.is_symlink() {
        format!("{:?}", fs::read_link(path).unwrap())
    } else {
        String::new()
    };
    let size = if data.is_dir() { 0 } else { data.len() };
    let links = if data.is_dir() { 0 } else { data.ino() };
    let (mode, owner, time) = (data.mode(), data.uid(), (data.mtime(), data.mtime_nsec()));
    found.insert(path.to_path_buf(), format!("{mode:o} {owner} {time:?} {size} {links} {content}"));
    if data.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            describe(&entry.unwrap().path(), found);
        }
    }
}

#[test]
fn content_of_each_kind_comes_back() {
    let Some(mut bench) = Bench::new() else { return };
    for (name, text) in
        [("ranges", "0123456789"), ("appended", "abc"), ("cut", "long content"), ("whole", "old")]
    {
        bench.write(name, text);
    }
    let before = bench.tree();

    bench.range("ranges", 2, 3);
    File::options().write(true).open(bench.path("ranges")).unwrap().write_all_at(b"xxx", 2).unwrap();
    bench.inode("appended");
    fs::write(bench.path("appended"), "abcdefgh").unwrap();
    bench.range("cut", 4, 100);
    File::options().write(true).open(bench.path("cut")).unwrap().set_len(4).unwrap();
    let whole = bench.inode("whole");
    let (mut copy, path) = bench.keep.file().unwrap();
    std::io::copy(&mut File::open(bench.path("whole")).unwrap(), &mut copy).unwrap();
    bench.log.whole_in(whole, &path).unwrap();
    bench.write("whole", "something quite different");
    bench.boundary(1);
    let between = bench.tree();

    bench.range("ranges", 0, 10);
    bench.write("ranges", "second");
    bench.boundary(2);
    assert_eq!(reachable(&bench.undo()).unwrap().0, [0, 1, 2].map(Sequence));

    bench.back(1).unwrap();
    assert_eq!(bench.tree(), between);
    bench.back(0).unwrap();
    assert_eq!(bench.tree(), before);
    assert_eq!(reachable(&bench.undo()).unwrap().0, [Sequence(0)]);
    assert!(keep_is_empty(&bench));
}

#[test]
fn of_two_records_of_one_range_in_an_epoch_the_first_is_right() {
    let Some(mut bench) = Bench::new() else { return };
    bench.write("file", "first");
    bench.range("file", 0, 5);
    bench.write("file", "then!");
    bench.range("file", 1, 3);
    bench.write("file", "third");
    bench.back(0).unwrap();
    assert_eq!(bench.read("file"), "first");
}

fn keep_is_empty(bench: &Bench) -> bool {
    fs::read_dir(bench.undo().join("keep/kept")).unwrap().next().is_none()
}

#[test]
fn names_come_back_and_what_the_subject_made_is_aside() {
    let Some(mut bench) = Bench::new() else { return };
    bench.write("replaced", "old");
    bench.write("removed", "gone soon");
    bench.write("moved", "moves");
    fs::set_permissions(bench.path("removed"), fs::Permissions::from_mode(0o4711)).unwrap();
    symlink("removed", bench.path("symlink")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, bench.path("fifo"), Mode::from_raw_mode(0o640)).unwrap();
    let before = bench.tree();

    for name in ["replaced", "replaced.new"] {
        bench.name(name);
    }
    bench.write("replaced.new", "new");
    fs::rename(bench.path("replaced.new"), bench.path("replaced")).unwrap();
    for name in ["removed", "symlink", "fifo"] {
        bench.name(name);
        fs::remove_file(bench.path(name)).unwrap();
    }
    bench.name("moved");
    bench.name("moved.away");
    fs::rename(bench.path("moved"), bench.path("moved.away")).unwrap();
    bench.name("made");
    fs::create_dir(bench.path("made")).unwrap();
    bench.write("made/in it", "text");
    // A symbolic link has replaced a file. The rollback moves the link, and does not follow the link.
    bench.write("outside", "untouched");
    symlink(bench.path("outside"), bench.path("removed")).unwrap();
    bench.name("outside");

    let went = bench.back(0).unwrap();
    let mut after = bench.tree();
    after.remove(&bench.path("outside"));
    let mut before = before;
    // Do not compare the directory itself. The time of the directory differs, because `outside` was created without a
    // record.
    before.remove(&bench.path(""));
    after.remove(&bench.path(""));
    assert_eq!(after, before);
    assert_eq!(bench.read("outside"), "untouched");
    let mut aside: Vec<_> = went.aside.iter().map(|aside| aside.path.clone()).collect();
    aside.sort();
    assert_eq!(aside, ["made", "removed", "replaced"].map(|name| bench.path(name)));

    let listed = list_aside(&bench.undo()).unwrap();
    assert_eq!(listed, went.aside);
}

#[test]
fn removed_trees_and_links_across_directories_come_back() {
    let Some(mut bench) = Bench::new() else { return };
    for directory in ["a", "a/b", "a/b/c", "d"] {
        fs::create_dir(bench.path(directory)).unwrap();
    }
    bench.write("a/b/c/file", "deep");
    fs::hard_link(bench.path("a/b/c/file"), bench.path("d/link")).unwrap();
    fs::hard_link(bench.path("a/b/c/file"), bench.path("d/other")).unwrap();
    fs::set_permissions(bench.path("a/b"), fs::Permissions::from_mode(0o1750)).unwrap();
    bench.boundary(1);
    bench.name("d/later");
    bench.write("d/later", "later");
    bench.boundary(2);
    let before = bench.tree();

    for name in ["a/b/c/file", "d/link"] {
        bench.name(name);
        fs::remove_file(bench.path(name)).unwrap();
    }
    for name in ["a/b/c", "a/b", "a"] {
        bench.name(name);
        fs::remove_dir(bench.path(name)).unwrap();
    }
    bench.name("d");
    bench.name("e");
    fs::rename(bench.path("d"), bench.path("e")).unwrap();
    bench.name("d");
    bench.write("d", "a file where a directory was");

    bench.back(2).unwrap();
    assert_eq!(bench.tree(), before);
    let went = bench.back(1).unwrap();
    assert_eq!(went.aside.len(), 1);
    assert!(!bench.path("d/later").exists() && bench.path("a/b/c/file").exists());
}

#[test]
fn older_epochs_find_what_was_made_again() {
    let Some(mut bench) = Bench::new() else { return };
    fs::create_dir(bench.path("a")).unwrap();
    bench.write("a/file", "first");
    let first = bench.tree();
    bench.range("a/file", 0, 5);
    bench.name("a/new");
    bench.write("a/file", "FIRST");
    bench.write("a/new", "new");
    bench.boundary(1);
    let second = bench.tree();
    for name in ["a/file", "a/new"] {
        bench.name(name);
        fs::remove_file(bench.path(name)).unwrap();
    }
    bench.name("a");
    fs::remove_dir(bench.path("a")).unwrap();

    bench.back(1).unwrap();
    assert_eq!(bench.tree(), second);
    let went = bench.back(0).unwrap();
    assert_eq!(bench.tree(), first);
    assert_eq!(went.aside.len(), 1);
}

#[test]
fn a_sparse_file_of_a_tebibyte_comes_back() {
    let Some(mut bench) = Bench::new() else { return };
    let file = OpenOptions::new().write(true).create_new(true).open(bench.path("sparse")).unwrap();
    file.write_all_at(b"start", 0).unwrap();
    file.set_len(1 << 40).unwrap();
    let before = bench.tree();
    let inode = bench.inode("sparse");
    bench.log.hole(inode, 1 << 39, ByteCount(1 << 20)).unwrap();
    file.write_all_at(&[7; 4096], 1 << 39).unwrap();
    bench.range("sparse", 0, 5);
    bench.log.hole(inode, 5, ByteCount((1 << 40) - 5)).unwrap();
    file.set_len(0).unwrap();
    file.set_len(1 << 41).unwrap();
    bench.back(0).unwrap();
    assert_eq!(bench.tree(), before);
    let data = fs::metadata(bench.path("sparse")).unwrap();
    assert!(data.blocks() <= 16, "{} blocks", data.blocks());
}

#[test]
fn a_change_by_somebody_else_is_named_and_nothing_is_touched() {
    let Some(mut bench) = Bench::new() else { return };
    for name in ["one", "two", "three"] {
        bench.write(name, "old");
        bench.range(name, 0, 3);
        bench.write(name, "new");
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    bench.log.ended(|| Time { s: now.tv_sec, ns: now.tv_nsec as u32 }, &[]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.write("two", "by hand");
    let before = bench.tree();
    match bench.back(0).unwrap_err() {
        UndoError::Conflict { paths } => assert_eq!(paths, [bench.path("two")]),
        error => panic!("{error}"),
    }
    assert_eq!(bench.tree(), before);
    go_back(&bench.undo(), Sequence(0), Conflicts::Force, &[], Durability::Kill).unwrap();
    assert_eq!(bench.read("two"), "old");
}

#[test]
fn a_step_that_fails_stops_it_and_the_next_call_goes_on() {
    let Some(mut bench) = Bench::new() else { return };
    for (name, owner) in [("first", 0), ("second", 65534)] {
        bench.write(name, "old");
        if std::os::unix::fs::chown(bench.path(name), Some(owner), None).is_err() {
            return println!("unsupported: root");
        }
        fs::set_permissions(bench.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        bench.range(name, 0, 3);
        bench.write(name, "new");
    }
    let own = rustix::thread::capabilities(None).unwrap();
    let fewer = CapabilitySets { effective: own.effective - CapabilitySet::DAC_OVERRIDE, ..own };
    rustix::thread::set_capabilities(None, fewer).unwrap();
    let error = bench.back(0).unwrap_err();
    rustix::thread::set_capabilities(None, own).unwrap();
    assert!(matches!(error, UndoError::Step { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("second") && text.contains("1 of 2 changes") && text.contains("help:"), "{text}");
    let (_, why) = reachable(&bench.undo()).unwrap();
    assert!(why.unwrap().contains("interrupted"));
    let error = UndoLog::open(&bench.undo(), MAX).unwrap_err();
    assert!(matches!(error, UndoError::HalfBack { .. }), "{error}");
    bench.back(0).unwrap();
    assert_eq!((bench.read("first"), bench.read("second")), ("old".to_owned(), "old".to_owned()));
    UndoLog::open(&bench.undo(), MAX).unwrap();
}

#[test]
fn many_new_names_are_moved_aside() {
    /// Less than the maximum number of names of an ext4 inode.
    const NAMES_OF_ONE: usize = 50_000;
    let Some(mut bench) = Bench::new() else { return };
    let (_, directory) = bench.parent("file");
    let count: usize = testkit::rounds(15_000, 100_000);
    for number in 0..count {
        let name = format!("file-{number}");
        bench.log.name(directory, OsStr::new(&name), None, RightsId::OWN).unwrap();
        // Create links instead of files: ext4 needs 100 microseconds to create a file if many files were removed
        // shortly before.
        let one = bench.directory.path().join(format!("one-{}", number / NAMES_OF_ONE));
        if number % NAMES_OF_ONE == 0 {
            File::create(&one).unwrap();
        }
        fs::hard_link(one, bench.path(&name)).unwrap();
    }
    let start = std::time::Instant::now();
    let went = bench.back(0).unwrap();
    println!("{count} new names went aside in {:?}", start.elapsed());
    assert_eq!(went.aside.len(), count);
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 0);
}

#[test]
fn extended_attributes_owner_and_mode_come_back() {
    let Some(mut bench) = Bench::new() else { return };
    bench.write("file", "text");
    let path = bench.path("file");
    if rustix::fs::setxattr(&path, "user.colour", b"blue", rustix::fs::XattrFlags::empty()).is_err() {
        return println!("unsupported: extended attributes");
    }
    std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let before = bench.tree();
    bench.inode("file");
    rustix::fs::setxattr(&path, "user.colour", b"red", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.other", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
    bench.back(0).unwrap();
    assert_eq!(bench.tree(), before);
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(&path, "user.colour", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"blue");
    assert!(rustix::fs::getxattr(&path, "user.other", &mut value[..]).is_err());
}

#[test]
fn an_epoch_of_another_boot_or_without_a_watch_is_broken() {
    let Some(mut bench) = Bench::new() else { return };
    bench.write("file", "old");
    bench.range("file", 0, 3);
    std::fs::write(bench.undo().join(crate::log::UNWATCHED), "died").unwrap();
    let error = bench.back(0).unwrap_err();
    assert!(error.to_string().contains("without being watched"), "{error}");
    let log = UndoLog::open(&bench.undo(), MAX).unwrap();
    assert!(log.sequences().is_empty());
    let error = bench.back(0).unwrap_err();
    assert!(error.to_string().contains("without being watched"), "{error}");
}

#[test]
fn files_on_another_file_system_than_the_log_come_back() {
    let Some(mut bench) = Bench::new() else { return };
    match TempDir::new_in("/dev/shm") {
        Ok(elsewhere) => bench.elsewhere = Some(elsewhere),
        Err(_) => return println!("unsupported: /dev/shm"),
    }
    bench.write("removed", "old");
    fs::create_dir(bench.path("directory")).unwrap();
    bench.range("removed", 0, 3);
    bench.name("removed");
    bench.name("directory");
    bench.name("made");
    let before = {
        let mut before = bench.tree();
        before.remove(&bench.path(""));
        before
    };
    bench.write("removed", "NEW");
    fs::remove_file(bench.path("removed")).unwrap();
    fs::remove_dir(bench.path("directory")).unwrap();
    bench.write("made", "made");
    let went = bench.back(0).unwrap();
    let mut after = bench.tree();
    after.remove(&bench.path(""));
    assert_eq!(after, before);
    let aside = &went.aside[0].to;
    assert!(aside.starts_with("/dev/shm/.undying"), "{}", aside.display());
    let mode = fs::metadata("/dev/shm/.undying").unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    let place = aside.ancestors().nth(3).unwrap();
    fs::remove_dir_all(place).unwrap();
    let _ = fs::remove_dir("/dev/shm/.undying");
}

/// Other programs have removed what the subject has created after the checkpoint, or has removed itself.
#[test]
fn files_without_a_state_at_the_checkpoint_refuse_no_rollback() {
    let Some(mut bench) = Bench::new() else { return };
    bench.write("kept", "text");
    bench.boundary(1);
    bench.name("made");
    bench.write("made", "first");
    bench.name("directory");
    fs::create_dir(bench.path("directory")).unwrap();
    bench.write("directory/made", "first");
    bench.boundary(2);
    for name in ["made", "directory/made"] {
        bench.range(name, 0, 5);
        bench.write(name, "second");
        fs::remove_file(bench.path(name)).unwrap();
    }
    bench.back(1).unwrap();
    assert_eq!(bench.tree().len(), 2, "the tree and one file");
}

/// While the subject runs, a removal by another program stays. A replaced file could contain later work of the subject.
#[test]
fn a_replaced_file_is_named_and_a_removed_file_stays_away() {
    for (is_removed, is_ended) in [(false, false), (true, false), (false, true), (true, true)] {
        let Some(mut bench) = Bench::new() else { return };
        bench.write("file", "first");
        bench.boundary(1);
        bench.range("file", 0, 5);
        bench.write("file", "then!");
        if is_ended {
            bench.log.ended(|| Clock::default().wall().into(), &[]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        fs::copy(bench.path("file"), bench.path("copy")).unwrap();
        fs::rename(bench.path("copy"), bench.path("file")).unwrap();
        if is_removed {
            fs::remove_file(bench.path("file")).unwrap();
        }
        let before = bench.tree();
        let named = match bench.back(1) {
            Ok(_) => Vec::new(),
            Err(UndoError::Replaced { paths, .. } | UndoError::Conflict { paths }) => paths,
            Err(error) => panic!("{error}"),
        };
        let is_refused = !is_removed || is_ended;
        assert_eq!(
            named,
            if is_refused { vec![bench.path("file")] } else { Vec::new() },
            "{is_removed} {is_ended}"
        );
        assert_eq!(bench.tree(), before);
    }
}

/// Other programs create files in the directory, and further up, after the end. They change the ctime of directories only.
#[test]
fn a_log_that_was_rotated_before_the_end_is_no_conflict() {
    let Some(mut bench) = Bench::new() else { return };
    bench.write("log", "first");
    bench.boundary(1);
    bench.range("log", 0, 5);
    bench.write("log", "then!");
    fs::rename(bench.path("log"), bench.path("log.1")).unwrap();
    bench.write("log", "");
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.log.ended(|| Clock::default().wall().into(), &[]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.write("unrelated", "");
    let parent = bench.path("log").parent().unwrap().parent().unwrap().to_owned();
    drop(tempfile::TempDir::new_in(parent).unwrap());
    bench.back(1).unwrap();
    assert_eq!(fs::read_to_string(bench.path("log.1")).unwrap(), "first");
    assert_eq!(fs::read_to_string(bench.path("log")).unwrap(), "");
}

#[test]
fn an_opened_file_that_another_program_has_replaced_is_named() {
    let Some(mut bench) = Bench::new() else { return };
    for name in ["idle", "renamed", "replaced"] {
        bench.write(name, "text");
    }
    let opened: Vec<_> = ["idle", "renamed", "replaced"]
        .map(|name| {
            let data = fs::metadata(bench.path(name)).unwrap();
            (bench.path(name), (data.dev(), data.ino()))
        })
        .into();
    bench.boundary(1);
    let check = || check_opened(&bench.undo(), Sequence(1), Conflicts::Refuse, &[], opened.iter().cloned());
    fs::rename(bench.path("renamed"), bench.path("other name")).unwrap();
    check().unwrap();
    bench.write("copy", "text");
    fs::rename(bench.path("copy"), bench.path("replaced")).unwrap();
    let error = check().unwrap_err();
    assert!(
        matches!(&error, UndoError::Replaced { paths, .. } if *paths == [bench.path("replaced")]),
        "{error}"
    );
}
