//! Tests that record, change and compare files that the subject may write.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::SystemTime;

use super::directory::Neighbours;
use super::*;
use crate::fd::envelope::Envelope;
use crate::support::testing::describe;

/// Returns the record of a file that a subject has open.
fn record(file: &File) -> FileRecord {
    record_of(&[file], false)
}

fn record_of(files: &[&File], inherited: bool) -> FileRecord {
    let mut states = FileStates::begin(false);
    for file in files {
        let description = describe(0, file);
        let envelope = Envelope::inside(&description).unwrap();
        states.add(&description, &envelope, inherited, false).unwrap();
    }
    let (mut records, _) = states.finish();
    assert_eq!(records.len(), 1, "{records:?}");
    records.remove(0)
}

/// The beginning of time, in this boot.
const EARLIEST: Moment = Moment { time: SystemTime::UNIX_EPOCH, is_before_boot: false };

fn compared(record: &FileRecord) -> Result<Vec<Cut>, Vec<ChangedFile>> {
    compare(std::slice::from_ref(record), None, &[], &Covered::Nothing, EARLIEST)
}

fn changes(record: &FileRecord) -> Vec<ChangedFile> {
    compared(record).unwrap_err()
}

fn cut_back(record: &FileRecord) -> Vec<u8> {
    let cuts = compared(record).unwrap();
    assert_eq!(cuts.len(), 1);
    let mut tail = Vec::new();
    let mut aside = |_: &Path, file: &File, from: u64, bytes: u64| {
        let mut file = file.try_clone().unwrap();
        file.seek(SeekFrom::Start(from)).unwrap();
        assert_eq!(file.read_to_end(&mut tail).unwrap() as u64, bytes);
        Ok(())
    };
    cuts[0].apply(&mut aside).unwrap();
    tail
}

fn appending(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).unwrap()
}

fn in_place(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_file_that_only_grew_is_truncated_and_unchanged_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    for (name, open) in
        [("appended", appending as fn(&Path) -> File), ("redirected", |path| File::create(path).unwrap())]
    {
        let path = folder.path().join(name);
        let mut file = open(&path);
        file.write_all(b"before\n").unwrap();
        let record = record(&file);
        assert_eq!(record.effect(), Effect::CutBack);
        assert!(compared(&record).unwrap().is_empty(), "nothing was written");
        file.write_all(b"after\n").unwrap();
        drop(file);
        assert_eq!(cut_back(&record), b"after\n");
        assert_eq!(fs::read(&path).unwrap(), b"before\n");
        // The record is compared again after a restore that fails after the truncation, and after a second death of
        // the subject before the next checkpoint.
        assert!(compared(&record).unwrap().is_empty());
    }
}

#[test]
fn a_file_that_grew_and_was_rewritten_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("status");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"state 1").unwrap();
    let record = record(&file);
    file.set_len(0).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"another state").unwrap();
    drop(file);
    let found = changes(&record);
    assert_eq!(found[0].path, path.canonicalize().unwrap());
    assert!(found[0].why.contains("it had 7 bytes, now 13"), "{found:?}");
}

#[test]
fn a_file_with_another_writer_is_not_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared");
    let mut file = appending(&path);
    file.write_all(b"ours\n").unwrap();
    let record = record(&file);
    file.write_all(b"theirs\n").unwrap();
    let found = changes(&record);
    assert!(found[0].why.contains("another process has it open for writing"), "{found:?}");
    assert_eq!(fs::read(&path).unwrap(), b"ours\ntheirs\n");
}

#[test]
fn a_file_written_in_place_has_changed_after_any_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("database");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let file = in_place(&path);
    let record = record(&file);
    assert_eq!(record.effect(), Effect::Prevents);
    assert!(compared(&record).unwrap().is_empty());
    rustix::io::pwrite(&file, b"x", 9_000).unwrap();
    assert!(changes(&record)[0].why.contains("was written to"), "{record:?}");
}

#[test]
fn a_readable_descriptor_at_the_end_is_not_append_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relation");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let mut file = in_place(&path);
    file.seek(SeekFrom::End(0)).unwrap();
    let record = record(&file);
    rustix::io::pwrite(&file, b"middle", 9_000).unwrap();
    rustix::io::pwrite(&file, &[2; 4096], 20_000).unwrap();
    drop(file);
    assert_eq!(changes(&record).len(), 1);
}

#[test]
fn all_descriptors_of_a_file_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both");
    let mut log = appending(&path);
    log.write_all(b"line\n").unwrap();
    let editor = in_place(&path);
    assert_eq!(record_of(&[&log, &editor], false).effect(), Effect::Prevents);
    assert_eq!(record_of(&[&editor, &log], false).effect(), Effect::Prevents);
}

#[test]
fn a_missing_or_replaced_file_and_a_link_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = appending(&path);
    let record = record(&file);
    fs::remove_file(&path).unwrap();
    assert!(changes(&record)[0].why.contains("No such file"));
    fs::write(&path, "").unwrap();
    assert!(changes(&record)[0].why.contains("another file"));
    let other = folder.path().join("other");
    fs::rename(&path, &other).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    assert!(changes(&record)[0].why.contains("no longer a regular file"));
}

#[test]
fn inherited_streams_are_recorded_and_never_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut file = File::create(&path).unwrap();
    let record = record_of(&[&file], true);
    assert_eq!(record.effect(), Effect::Stays);
    file.write_all(b"others").unwrap();
    assert!(compared(&record).unwrap().is_empty());
}

#[test]
fn read_only_and_nameless_files_are_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "content").unwrap();
    let nameless = tempfile::tempfile_in(folder.path()).unwrap();
    let mut states = FileStates::begin(false);
    for file in
        [&File::open(&path).unwrap(), &nameless, &File::options().write(true).open("/dev/null").unwrap()]
    {
        let description = describe(0, file);
        let envelope = Envelope::inside(&description).unwrap();
        states.add(&description, &envelope, false, false).unwrap();
    }
    states.add_directories(&Directories::default());
    assert_eq!(states.finish(), (Vec::new(), Vec::new()));
}

fn mapped_record(path: &Path, ends_subject: bool) -> FileRecord {
    let file = in_place(path);
    let size = rustix::fs::fstat(&file).unwrap().st_size as usize;
    // The mapping only has to be listed. No store goes through the mapping.
    let script = format!(
        "import mmap,sys\nf=open({path:?},'r+b')\nm=mmap.mmap(f.fileno(),{size})\nprint('ready',flush=True)\nsys.stdin.read()"
    );
    let mut child = std::process::Command::new("python3")
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let mappings = tracee::procfs::mappings(model::Pid(child.id() as i32)).unwrap();
    let mut states = FileStates::begin(ends_subject);
    for mapping in &mappings {
        states.add_mapping(mapping);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    let (mut records, _) = states.finish();
    assert_eq!(records.len(), 1, "{records:?}");
    assert!(file.as_fd().as_raw_fd() > 2);
    records.remove(0)
}

#[test]
fn a_small_mapped_file_is_compared_by_content_and_a_large_one_is_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("index");
    fs::write(&path, vec![1; 32_768]).unwrap();
    let small = FileRecord { content: None, ..mapped_record(&path, false) };
    assert_eq!(small.effect(), Effect::Prevents);
    // The same content is written again. The comparison uses the content, not the times.
    fs::write(&path, vec![1; 32_768]).unwrap();
    assert!(compared(&small).unwrap().is_empty());
    rustix::io::pwrite(in_place(&path), b"x", 9_000).unwrap();
    assert_eq!(changes(&small).len(), 1);
    fs::write(&path, vec![1; 2 << 20]).unwrap();
    let large = mapped_record(&path, false);
    assert_eq!(large.effect(), Effect::AlwaysPrevents);
    assert!(changes(&large)[0].why.contains("it is unknown"), "{large:?}");
    let ended = mapped_record(&path, true);
    assert!(compared(&ended).unwrap().is_empty());
    rustix::io::pwrite(in_place(&path), b"x", 9_000).unwrap();
    assert_eq!(changes(&ended).len(), 1);
}

#[test]
fn coarse_times_do_not_prove_that_a_file_is_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "content").unwrap();
    let record = record(&in_place(&path));
    assert!(compared(&record).unwrap().is_empty());
    let coarse = FileRecord { times_are_coarse: true, ..record };
    assert!(changes(&coarse)[0].why.contains("too coarse"));
}

#[test]
fn only_files_that_were_not_reverted_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("file");
    fs::write(&path, "content").unwrap();
    let record = record(&in_place(&path));
    fs::write(&path, "changed").unwrap();
    let later = [path.clone()];
    let with = |covered: &Covered| {
        let records = std::slice::from_ref(&record);
        let by_record = compare(records, None, &[], covered, EARLIEST);
        [by_record, compare(&[], None, &later, covered, EARLIEST)].map(|found| found.is_ok())
    };
    assert_eq!(with(&Covered::Nothing), [false, false]);
    assert_eq!(with(&Covered::AllBut([record.file()].into())), [false, false]);
    assert_eq!(with(&Covered::AllBut([].into())), [true, true]);
}

#[test]
fn a_mapping_is_listed_unless_the_image_has_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("file");
    fs::write(&path, "content").unwrap();
    let inode = rustix::fs::stat(&path).unwrap().st_ino;
    let listed = |path: &str, inode: u64, access: &str| {
        let line = format!("1000-2000 {access} 00000000 08:01 {inode} {path}\n");
        let mut states = FileStates::begin(false);
        tracee::procfs::mappings_in(line.as_bytes())
            .unwrap()
            .iter()
            .for_each(|mapping| states.add_mapping(mapping));
        states.mapped_for_writing().iter().map(|file| file.path.clone()).collect::<Vec<_>>()
    };
    let text = path.to_str().unwrap();
    assert_eq!(listed(text, inode, "rw-s"), std::slice::from_ref(&path));
    assert!(listed(text, inode, "r--s").is_empty() && listed(text, inode, "rw-p").is_empty());
    // The file may have lost its name since the checkpoint, and an earlier checkpoint needs the content.
    assert_eq!(listed(&format!("{text} (deleted)"), inode, "rw-s").len(), 1);
    let device = rustix::fs::stat("/dev/null").unwrap();
    assert!(listed("/dev/null", device.st_ino, "rw-s").is_empty());
}

#[test]
fn a_file_opened_later_has_changed_if_it_was_written_since() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("result");
    fs::write(&path, "early").unwrap();
    let record = record(&appending(&path));
    let later = [path.clone(), folder.path().join("gone")];
    let time = SystemTime::now() + std::time::Duration::from_secs(1);
    assert!(compare(&[], None, &later, &Covered::Nothing, Moment { time, ..EARLIEST }).unwrap().is_empty());
    let found = compare(&[], None, &later, &Covered::Nothing, EARLIEST).unwrap_err();
    assert!(found.len() == 1 && found[0].path == path, "{found:?}");
    // A file in the records of the checkpoint is compared with its record.
    assert!(compare(&[record], None, &later, &Covered::Nothing, EARLIEST).unwrap().is_empty());
}

#[test]
fn the_content_of_a_small_file_that_is_only_mapped_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("counters");
    fs::write(&path, vec![1; 32_768]).unwrap();
    let record = mapped_record(&path, false);
    assert_eq!(record.effect(), Effect::GoesBack);
    let writer = in_place(&path);
    rustix::io::pwrite(&writer, &[2; 40_000], 100).unwrap();
    assert!(changes(&record)[0].why.contains("another process"), "{record:?}");
    drop(writer);
    assert_eq!(cut_back(&record).len(), 40_100, "the whole content was stored aside");
    assert_eq!(fs::read(&path).unwrap(), vec![1; 32_768]);
    assert!(compared(&record).unwrap().is_empty());
}

/// A checkpoint of files, with listings of their directories from before the pause, in which the subject is stopped.
struct Checkpoint {
    files: Vec<FileRecord>,
    directories: Vec<DirectoryRecord>,
}

impl Checkpoint {
    fn of(files: &[&File]) -> Self {
        Self::after(files, || {})
    }

    /// Takes a checkpoint. `meanwhile` runs between the listing and the pause.
    fn after(files: &[&File], meanwhile: impl FnOnce()) -> Self {
        let descriptions: Vec<_> = files.iter().map(|file| describe(0, file)).collect();
        let mut listed = Directories::default();
        listed.list(descriptions.iter().map(|description| &**description.known()), &[], &|_| false, true);
        meanwhile();
        let mut states = FileStates::begin(false);
        for description in &descriptions {
            let envelope = Envelope::inside(description).unwrap();
            states.add(description, &envelope, false, false).unwrap();
        }
        states.add_directories(&listed);
        let (files, directories) = states.finish();
        Self { files, directories }
    }

    fn compared(&self) -> Result<Vec<Cut>, Vec<ChangedFile>> {
        loop {
            let found = compare(&self.files, Some(&self.directories), &[], &Covered::Nothing, EARLIEST);
            let has_writer = |changed: &ChangedFile| changed.why.contains("another process has it open");
            // A child process that another test has forked has duplicates of the descriptors until exec.
            if !found.as_ref().is_err_and(|changed| changed.iter().any(has_writer)) {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn assert_cut(&self) {
        let cuts = self.compared().unwrap();
        assert_eq!(cuts.len(), 1, "{cuts:?}");
    }

    fn assert_changed(&self, why: &str) {
        let changed = self.compared().unwrap_err();
        assert!(changed.len() == 1 && changed[0].why.contains(why), "{changed:?}");
    }
}

/// Creates a log with one line, in a directory with a closed file.
fn log_beside_data(folder: &Path) -> File {
    fs::write(folder.join("data"), "data").unwrap();
    let mut log = appending(&folder.join("log"));
    log.write_all(b"has data\n").unwrap();
    log
}

fn grow(mut log: File) {
    log.write_all(b"more\n").unwrap();
}

const REMOVED: &str = "was appended to, and files beside it were removed";

#[test]
fn a_log_is_not_truncated_after_a_file_beside_it_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let checkpoint = Checkpoint::of(&[&log]);
    grow(log);
    checkpoint.assert_cut();
    fs::write(folder.path().join("merged"), "data").unwrap();
    fs::remove_file(folder.path().join("data")).unwrap();
    checkpoint.assert_changed(REMOVED);
    // `None` stands for an image of a version without directory records.
    assert!(Neighbours::new(None).forbid_cut(&checkpoint.files[0].path()).is_none());
    assert!(Neighbours::new(Some(&checkpoint.directories)).forbid_cut(&checkpoint.files[0].path()).is_some());
}

#[test]
fn added_or_replaced_names_do_not_prevent_a_truncation() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let checkpoint = Checkpoint::of(&[&log]);
    grow(log);
    fs::write(folder.path().join("data.new"), "new").unwrap();
    fs::write(folder.path().join("added"), "").unwrap();
    checkpoint.assert_cut();
    fs::rename(folder.path().join("data.new"), folder.path().join("data")).unwrap();
    checkpoint.assert_cut();
    fs::remove_file(folder.path().join("added")).unwrap();
    checkpoint.assert_cut();
}

#[test]
fn a_file_that_did_not_grow_needs_no_directory() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let checkpoint = Checkpoint::of(&[&log]);
    drop(log);
    fs::remove_file(folder.path().join("data")).unwrap();
    assert!(checkpoint.compared().unwrap().is_empty());
}

#[test]
fn a_directory_with_many_names_must_be_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..600 {
        fs::write(folder.path().join(format!("{number}")), "").unwrap();
    }
    let log = log_beside_data(folder.path());
    let checkpoint = Checkpoint::of(&[&log]);
    grow(log);
    checkpoint.assert_cut();
    fs::write(folder.path().join("added"), "").unwrap();
    checkpoint.assert_changed("it is unknown whether files beside it were removed");
}

#[test]
fn a_directory_that_changed_before_the_pause_must_be_unchanged_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let path = folder.path().join("data");
    let checkpoint = Checkpoint::after(&[&log], || {
        fs::remove_file(&path).unwrap();
        // The pause has to be some clock ticks later, because file times may be coarse.
        std::thread::sleep(std::time::Duration::from_millis(50));
    });
    grow(log);
    checkpoint.assert_cut();
    fs::write(folder.path().join("added"), "").unwrap();
    checkpoint.assert_changed("it is unknown");
}

#[test]
fn a_replaced_directory_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (folder.path().join("before"), folder.path().join("after"));
    fs::create_dir(&before).unwrap();
    let log = log_beside_data(&before);
    let checkpoint = Checkpoint::of(&[&log]);
    grow(log);
    fs::rename(&before, &after).unwrap();
    checkpoint.assert_changed("cannot be opened");
    // The same files are then in another directory of the same name.
    fs::create_dir(&before).unwrap();
    for name in ["data", "log"] {
        fs::rename(after.join(name), before.join(name)).unwrap();
    }
    checkpoint.assert_changed("its directory is not the one");
}

#[test]
fn no_file_is_truncated_when_a_file_of_another_directory_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    let logs = [log_beside_data(&first), log_beside_data(&second)];
    let checkpoint = Checkpoint::of(&[&logs[0], &logs[1]]);
    assert_eq!((checkpoint.files.len(), checkpoint.directories.len()), (2, 2));
    logs.into_iter().for_each(grow);
    assert_eq!(checkpoint.compared().unwrap().len(), 2);
    fs::remove_file(second.join("data")).unwrap();
    checkpoint.assert_changed(REMOVED);
    assert_eq!(fs::read(first.join("log")).unwrap(), b"has data\nmore\n");
}

#[test]
fn a_file_that_grew_after_the_comparison_is_found_before_any_truncation() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let checkpoint = Checkpoint::of(&[&log]);
    grow(log);
    let cuts = checkpoint.compared().unwrap();
    assert!(cuts[0].check().is_ok());
    grow(appending(&folder.path().join("log")));
    assert!(cuts[0].check().is_err());
}

#[test]
fn one_directory_has_one_record_and_in_place_files_have_none() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let second = appending(&folder.path().join("second"));
    assert_eq!(Checkpoint::of(&[&log, &second]).directories.len(), 1);
    assert!(Checkpoint::of(&[&in_place(&folder.path().join("data"))]).directories.is_empty());
}

#[test]
fn a_directory_without_a_record_prevents_a_truncation() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_beside_data(folder.path());
    let checkpoint = Checkpoint { directories: Vec::new(), ..Checkpoint::of(&[&log]) };
    grow(log);
    checkpoint.assert_changed("it is unknown");
}

/// Returns the differences of a file that a restore finds after a restart of the machine.
fn changes_after_boot(record: &FileRecord) -> Vec<ChangedFile> {
    let moment = Moment { is_before_boot: true, ..EARLIEST };
    let found = compare(std::slice::from_ref(record), None, &[], &Covered::Nothing, moment);
    found.err().unwrap_or_default()
}

/// Replaces the content of a file by zeros without a change of its length and its times, like a power cut before the
/// data is written.
fn lose(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let length = fs::metadata(path).unwrap().len() as usize;
    fs::write(path, vec![0; length]).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn after_a_restart_of_the_machine_content_decides_and_not_the_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in place");
    fs::write(&path, "12345678").unwrap();
    let record_in_place = record(&in_place(&path));
    assert!(compared(&record_in_place).unwrap().is_empty(), "in the same boot, the times are the proof");
    let found = changes_after_boot(&record_in_place);
    assert!(found[0].why.contains("may have lost data"), "{found:?}");

    let path = folder.path().join("appended");
    let mut file = appending(&path);
    file.write_all(b"line 1\n").unwrap();
    let mut record = record(&file);
    assert_eq!(changes_after_boot(&record), []);
    lose(&path);
    // The change time cannot be set. A power cut leaves the recorded one.
    let stat = rustix::fs::stat(&path).unwrap();
    (record.changed_s, record.changed_ns) = (stat.st_ctime, stat.st_ctime_nsec);
    assert!(compared(&record).unwrap().is_empty(), "the times are equal");
    let found = changes_after_boot(&record);
    assert!(found[0].why.contains("may have lost data"), "{found:?}");
}

#[test]
fn a_checkpoint_that_ends_the_subject_makes_its_files_durable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in place");
    fs::write(&path, "12345678").unwrap();
    let file = in_place(&path);
    let mut states = FileStates::begin(true);
    let description = describe(0, &file);
    states.add(&description, &Envelope::inside(&description).unwrap(), false, false).unwrap();
    let record = states.finish().0.remove(0);
    assert_eq!(changes_after_boot(&record), []);
    fs::write(&path, "changed!").unwrap();
    assert_eq!(changes_after_boot(&record).len(), 1);
}

#[test]
fn a_file_that_a_rollback_does_not_set_back_must_be_unchanged() {
    use std::collections::HashSet;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, "12345678").unwrap();
    let records = [record(&in_place(&path))];
    let covered = Covered::AllBut(HashSet::new());
    let beside = |recorded: &[(u64, u64)]| {
        changed_beside(&records, &covered, &recorded.iter().copied().collect()).len()
    };
    assert_eq!(beside(&[]), 0);
    fs::write(&path, "changed!").unwrap();
    assert_eq!((beside(&[]), beside(&[records[0].file()])), (1, 0));
    fs::remove_file(&path).unwrap();
    assert_eq!(beside(&[]), 0, "the rollback can bring the name back");
}
