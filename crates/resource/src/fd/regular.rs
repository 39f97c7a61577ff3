//! Descriptor kind `fd/regular`: regular files with a name, and O_PATH descriptors of all file types except
//! directories and symbolic links.
//!
//! Owns: recognizing these open file descriptions, and refusing descriptions that cannot be saved.
//! Does not: open the files again; the module `file_state` does, also for files whose name was removed.

use std::path::Path;

use rustix::fs::FileType;

use super::description::Description;
use super::file_state::{self, FileCapture, FilePayload};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::support::opening::is_path_only;
use crate::support::path::{self, Name};

const NAME: &str = "fd/regular";

/// Descriptor kind ([`FdKind`]) of open regular files with a name.
#[derive(Clone, Copy, Debug)]
pub struct Regular;

impl FdKind for Regular {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<FilePayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        let format = FileType::from_raw_mode(description.stat.st_mode);
        let suits = match format {
            FileType::RegularFile => true,
            FileType::Directory | FileType::Symlink => false,
            _ => is_path_only(description.info.flags),
        };
        suits && matches!(Name::of(description), Name::Live(_))
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let name = Name::of(description);
        if belongs_to_process(name.path()) {
            return vec![description.obstacle(
                "file of /proc",
                "it belongs to a process, which does not exist when the restore opens files",
                "let the program close it after each use",
            )];
        }
        path::unreachable(description, name.path(), scope)
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(FileCapture::new(description, scope)?))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn check_files(&self, records: &[FdRecord]) -> Result<()> {
        file_state::check_files(NAME, records)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        file_state::create(NAME, records, context)
    }
}

/// Reports whether a path is below `/proc/PID`.
pub(super) fn belongs_to_process(path: &Path) -> bool {
    let Ok(below) = path.strip_prefix("/proc") else { return false };
    let first = below.components().next().and_then(|part| part.as_os_str().to_str());
    first.is_some_and(|part| !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::{AsFd, OwnedFd};

    use model::{Inode, Pid};
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::fd::{Known, kind_of};
    use crate::files::Covered;
    use crate::support::testing::{Subject, describe, flags, position};

    fn write(file: &mut File, bytes: &[u8]) {
        file.write_all(bytes).unwrap();
    }

    #[test]
    fn access_mode_flags_and_position_are_restored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, "0123456789").unwrap();
        let open = |flags: OFlags| rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let files = [
            open(OFlags::RDONLY | OFlags::NOATIME | OFlags::NONBLOCK),
            open(OFlags::WRONLY | OFlags::APPEND),
            open(OFlags::RDWR | OFlags::SYNC),
            open(OFlags::PATH | OFlags::NOFOLLOW),
        ];
        rustix::fs::seek(&files[0], rustix::fs::SeekFrom::Start(4)).unwrap();
        rustix::fs::seek(&files[2], rustix::fs::SeekFrom::Start(7)).unwrap();
        let subject = Subject::new(&[&files[0], &files[1], &files[2], &files[3]]);
        let built = subject.round_trip(&Regular).unwrap();
        for (original, again) in files.iter().zip(&built) {
            assert_eq!(flags(again), flags(original));
        }
        assert_eq!((position(&built[0]), position(&built[2])), (4, 7));
        let mut text = String::new();
        File::from(built.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "456789");
    }

    #[test]
    fn a_missing_file_and_one_of_another_type_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut file = File::create(&path).unwrap();
        write(&mut file, b"before");
        let subject = Subject::new(&[&file]);
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        fs::remove_file(&path).unwrap();
        let error = subject.build(&Regular, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains("No such file") && error.contains("help:"), "{error}");
        fs::create_dir(&path).unwrap();
        subject.build(&Regular, &envelopes, &[]).unwrap_err();
    }

    #[test]
    fn an_inherited_stream_is_never_rewound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        write(&mut file, b"line 1\n");
        let mut subject = Subject::new(&[&file]);
        let stat = subject.descriptions[0].stat;
        subject.inherited = vec![(stat.st_dev, Inode(stat.st_ino))];
        let envelopes = subject.capture(&Regular, || write(&mut file, b"line 2\n")).unwrap();
        let handed = [(stat.st_dev, Inode(stat.st_ino), OwnedFd::from(file.try_clone().unwrap()))];
        for inherited in [&handed[..], &[]] {
            let mut again = File::from(subject.build(&Regular, &envelopes, inherited).unwrap().remove(0));
            write(&mut again, b"more\n");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 1\nline 2\nmore\nmore\n");
    }

    #[test]
    fn an_inherited_stream_whose_file_was_truncated_to_the_checkpoint_is_rewound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        write(&mut file, b"line 1\n");
        let mut subject = Subject::new(&[&file]);
        let stat = subject.descriptions[0].stat;
        subject.inherited = vec![(stat.st_dev, Inode(stat.st_ino))];
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        write(&mut file, b"line 2\n");
        // The undo log truncates the file in the same way.
        file.set_len(7).unwrap();
        subject.covered = Covered::AllBut(HashSet::new());
        let handed = [(stat.st_dev, Inode(stat.st_ino), OwnedFd::from(file.try_clone().unwrap()))];
        let mut again = File::from(subject.build(&Regular, &envelopes, &handed).unwrap().remove(0));
        write(&mut again, b"more\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 1\nmore\n");
        assert_eq!(position(&file), 12, "one description has one position");
    }

    #[test]
    fn a_file_renamed_or_removed_after_prepare_is_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        write(&mut file, b"content");
        let subject = Subject::new(&[&file]);
        let scope = subject.scope();
        let description = &subject.descriptions[0];
        for removed in [false, true] {
            let mut capture = Regular.prepare(description, &scope).unwrap();
            if removed {
                fs::remove_file(folder.path().join("b")).unwrap();
            } else {
                fs::rename(&path, folder.path().join("b")).unwrap();
            }
            capture.inside(description).unwrap();
            let payload = capture.after(description).unwrap();
            let envelope = super::super::envelope::Envelope::capture(description, &Regular, payload).unwrap();
            let built = subject.build(&Regular, &[envelope], &[]).unwrap();
            let mut again = File::from(built.into_iter().next().unwrap());
            let mut text = String::new();
            again.seek(SeekFrom::Start(0)).unwrap();
            again.read_to_string(&mut text).unwrap();
            assert_eq!(text, "content", "removed: {removed}");
            let links = rustix::fs::fstat(&again).unwrap().st_nlink;
            assert_eq!(links, if removed { 0 } else { 1 });
        }
    }

    #[test]
    fn an_inherited_file_is_restored_as_the_same_description() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("out")).unwrap();
        write(&mut file, b"12345");
        let mut subject = Subject::new(&[&file]);
        let stat = subject.descriptions[0].stat;
        subject.inherited = vec![(stat.st_dev, Inode(stat.st_ino))];
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        let handed = [(stat.st_dev, Inode(stat.st_ino), OwnedFd::from(file.try_clone().unwrap()))];
        let built = subject.build(&Regular, &envelopes, &handed).unwrap();
        rustix::fs::seek(&built[0], rustix::fs::SeekFrom::Start(2)).unwrap();
        assert_eq!(position(&file), 2);
    }

    #[test]
    fn files_of_proc_are_recognized() {
        let system = File::open("/proc/meminfo").unwrap();
        let own = File::open("/proc/self/status").unwrap();
        let subject = Subject::new(&[&system]);
        let built = subject.round_trip(&Regular).unwrap();
        let mut text = String::new();
        File::from(built.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert!(text.contains("MemTotal"));
        let found = Subject::new(&[&own]).obstacles(&Regular);
        assert!(found.len() == 1 && found[0].why.contains("belongs to a process"), "{found:?}");
    }

    /// Starts a process with an open file that is visible only in the process's own mount namespace.
    fn elsewhere(folder: &Path) -> std::process::Child {
        let script = r#"mount -t tmpfs none "$PWD" && exec 7<>"$PWD/file" && echo ready && exec sleep 60"#;
        std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .current_dir(folder)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_path_to_another_file_is_an_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = elsewhere(folder.path());
        let mut ready = [0; 6];
        if child.stdout.as_mut().unwrap().read_exact(&mut ready).is_err() {
            child.wait().unwrap();
            return println!("unsupported: mount namespaces");
        }
        let pid = Pid(child.id() as i32);
        let handle = sys::pidfd::open(pid).unwrap();
        let duplicate = sys::pidfd::duplicate(handle.as_fd(), pid, model::Fd(7)).unwrap();
        let info = tracee::procfs::descriptor_info(pid, model::Fd(7)).unwrap();
        let stat = rustix::fs::fstat(&duplicate).unwrap();
        let known = Known::new(model::DescriptionId(0), (pid, model::Fd(7)), info, stat);
        let subject = Subject::new(&[&duplicate]).with(0, Description::new(known.into(), duplicate));
        let found = subject.obstacles(&Regular);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.len() == 1 && found[0].fix.contains("mount namespace"), "{found:?}");
    }

    #[test]
    fn other_file_types_are_not_claimed() {
        let directory = File::open("/").unwrap();
        let null = File::open("/dev/null").unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        for description in [describe(0, &directory), describe(0, &null), describe(0, &reader)] {
            assert!(!Regular.claims(&description));
        }
        let named = rustix::fs::open("/dev/null", OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(kind_of(&describe(0, &named)).map(FdKind::name), Some(NAME));
    }
}
