//! Regular files under their name, and whatever else was opened with O_PATH, directories apart.
//!
//! Owns: the payload and the capture of files that have a path, and opening them again.
//! Invariants: files are opened as they are found and never created, truncated or changed; one that is missing, or is
//! of another type, refuses the restore.
//! Does not: compare the content with the checkpoint; [`crate::files`] does so for files that the subject may write,
//! before any descriptor is opened.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{Inode, Pid};
use prost::Message;
use rustix::fs::{FileType, SeekFrom, Stat};
use sys::{Errno, Error};

use super::deleted::{Nameless, NamelessCapture, NamelessFiles};
use super::tmpfs_content::{SavedFile, TmpfsCapture, WrittenFiles};
use super::{CaptureScope, Description, FdCapture, FdCreate, FdKind, FdRecord, Known};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::Refusal;
use crate::support::identity::Identity;
use crate::support::inherited::Inherited;
use crate::support::opening::{self, is_path_only, may_write};
use crate::support::path::{self, Link, Name};

const NAME: &str = "fd/regular";
const FORMAT_MASK: u32 = 0o170_000;

const PROC: i64 = 0x9fa0;
/// File systems whose files the kernel makes up when they are read; size and time say nothing.
const MADE_UP: &[i64] = &[PROC, 0x6265_6572, 0x27_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163];

/// One open file as the image keeps it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FilePayload {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    /// S_IFMT bits.
    #[prost(uint32, tag = "2")]
    format: u32,
    #[prost(uint64, tag = "3")]
    size: u64,
    #[prost(int64, tag = "4")]
    modified_s: i64,
    #[prost(uint64, tag = "5")]
    modified_ns: u64,
    #[prost(uint64, tag = "6")]
    pub(super) device: u64,
    #[prost(uint64, tag = "7")]
    pub(super) inode: u64,
    /// The kernel makes its content up.
    #[prost(bool, tag = "8")]
    made_up: bool,
    /// Whoever restores may hold it already.
    #[prost(bool, tag = "9")]
    inherited: bool,
    /// Set when no name leads to it any more.
    #[prost(message, optional, tag = "10")]
    pub(super) nameless: Option<Nameless>,
    /// Which file it was; images of earlier versions keep device and inode alone.
    #[prost(message, optional, tag = "20")]
    identity: Option<Identity>,
    /// Set in one record of each named file of a tmpfs whose content the image holds.
    #[prost(message, optional, tag = "21")]
    saved: Option<SavedFile>,
}

impl FilePayload {
    fn identity(&self) -> Identity {
        let format = FileType::from_raw_mode(self.format);
        self.identity.unwrap_or_else(|| Identity::from_numbers(self.device, self.inode, format))
    }
}

/// The kind.
#[derive(Clone, Copy, Debug)]
pub struct Regular;

impl FdKind for Regular {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "regular files by path, with position and flags; O_PATH descriptors"
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
                "it belongs to a process, and that process does not exist yet when files are opened again",
                "let the program open it when it needs it, and close it then",
            )];
        }
        path::unreachable(description, name.path(), scope)
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(FileCapture::new(description, scope)?))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<FilePayload>(NAME, payload).map(drop)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        create(NAME, records, context)
    }
}

/// Whether the file system of an open file makes up what is in it.
pub(crate) fn is_made_up(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| MADE_UP.contains(&system.f_type))
}

/// Whether a path lies below `/proc/PID`, or is one of the links that lead there.
pub(super) fn belongs_to_process(path: &Path) -> bool {
    let Ok(below) = path.strip_prefix("/proc") else { return false };
    let first = below.components().next().and_then(|part| part.as_os_str().to_str());
    first.is_some_and(|part| !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_digit()))
}

/// State of one open file, with or without a name: a name may be removed at any time.
#[derive(Debug)]
pub(super) struct FileCapture {
    pid: Pid,
    link: Link,
    stat: Stat,
    made_up: bool,
    inherited: bool,
    nameless: NamelessCapture,
    identity: Identity,
    tmpfs: Option<TmpfsCapture>,
}

impl FileCapture {
    pub(super) fn new(description: &Description, scope: &CaptureScope<'_>) -> Result<Self> {
        let system = rustix::fs::fstatfs(&description.duplicate)
            .map_err(|errno| Error::path("look at the file system of", description.target(), errno))?;
        Ok(Self {
            pid: description.pid,
            link: Link::new(),
            stat: description.stat,
            made_up: MADE_UP.contains(&system.f_type),
            inherited: scope.is_inherited(&description.stat),
            nameless: NamelessCapture::new(description, scope)?,
            identity: Identity::with(description, &description.stat),
            tmpfs: TmpfsCapture::new(description, system.f_type, scope)?,
        })
    }
}

impl FdCapture for FileCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let file = description.duplicate.as_fd();
        self.stat = rustix::fs::fstat(file).map_err(|errno| {
            Error::descriptor("look at the file", description.pid, description.fd, Errno::from(errno))
        })?;
        self.link.read(description)?;
        let is_regular = FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile;
        if is_regular && matches!(Name::new(self.link.bytes(), &self.stat), Name::Gone(_)) {
            self.nameless.inside(file, &self.stat)?;
        } else if let Some(tmpfs) = &mut self.tmpfs {
            tmpfs.inside()?;
        }
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        let is_regular = FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile;
        if is_regular && matches!(Name::new(self.link.bytes(), &self.stat), Name::Gone(_)) {
            self.nameless.relate(description, &self.stat, scope)?;
        } else if let Some(tmpfs) = &mut self.tmpfs {
            tmpfs.relate(description, scope)?;
        }
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let name = Name::new(self.link.bytes(), &self.stat);
        let is_regular = FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile;
        if !is_regular && matches!(name, Name::Gone(_)) {
            return Err(ResourceError::Unsupported {
                pid: self.pid,
                what: description.named("deleted file"),
                why: "it was only named (O_PATH), and its name was removed while the checkpoint was taken"
                    .to_owned(),
                fix: "let the program close it".to_owned(),
            });
        }
        let nameless = match &name {
            Name::Gone(_) => Some(self.nameless.after(self.pid, description, &self.stat)?),
            Name::Live(_) | Name::None => None,
        };
        let saved = match (&name, &self.tmpfs) {
            (Name::Live(path), Some(tmpfs)) => tmpfs.after(path, &self.stat)?,
            _ => None,
        };
        let payload = FilePayload {
            path: path::to_bytes(name.path()),
            format: self.stat.st_mode & FORMAT_MASK,
            size: self.stat.st_size as u64,
            modified_s: self.stat.st_mtime,
            modified_ns: self.stat.st_mtime_nsec,
            device: self.stat.st_dev,
            inode: self.stat.st_ino,
            made_up: self.made_up,
            inherited: self.inherited,
            nameless,
            identity: Some(self.identity),
            saved,
        };
        Ok(payload.encode_to_vec())
    }
}

/// Opens the files of all records of a kind that writes [`FilePayload`].
pub(super) fn create(kind: &'static str, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
    let mut inherited = Inherited::default();
    let mut nameless = NamelessFiles::default();
    let mut written = WrittenFiles::default();
    let mut payloads = Vec::new();
    for record in records {
        let payload: FilePayload = crate::error::decode(kind, &record.payload)?;
        if let Some(saved) = &payload.saved {
            written.write((payload.device, payload.inode), saved)?;
        }
        payloads.push((record, payload));
    }
    for (record, payload) in payloads {
        if payload.nameless.is_some() {
            nameless.add(record, payload);
            continue;
        }
        let handed_on = if payload.inherited {
            inherited.take(context, payload.device, Inode(payload.inode), record.flags)?
        } else {
            None
        };
        let file = match handed_on {
            Some(file) => file,
            None => open(record, &payload)?,
        };
        // The content of a covered file was cut back to the checkpoint: the position follows it.
        let went_back = context.covered.has(payload.device, payload.inode);
        if payload.inherited && may_write(record.flags) && !went_back {
            stay_behind_others(&file, record)?;
            context.handed_on.insert(record.id);
        }
        context.created.insert(record.id, file);
    }
    nameless.create(kind, context)
}

/// Sets the position of a file that others write to as well behind what they wrote. A description shared with them has
/// it already; one that was opened anew has none.
fn stay_behind_others(file: &OwnedFd, record: &FdRecord) -> Result<()> {
    if rustix::fs::tell(file).is_ok_and(|position| position < record.position) {
        rustix::fs::seek(file, SeekFrom::End(0))
            .map_err(|errno| Error::new("seek to the end of a stream", errno))?;
    }
    Ok(())
}

fn open(record: &FdRecord, payload: &FilePayload) -> Result<OwnedFd> {
    let path = path::from_bytes(&payload.path);
    let cannot = |refusal: Refusal| {
        refusal.of(&path, "the program has this file open", "bring the file back, or restore where it is")
    };
    let found = record.opener.find(&path, Some(payload.identity())).map_err(cannot)?;
    let stat = found.stat().map_err(cannot)?;
    if stat.st_mode & FORMAT_MASK != payload.format {
        let why = "it is no longer a file of the same type".to_owned();
        return Err(refused(&path, why, "bring the file back as it was at the checkpoint"));
    }
    found.open(opening::flags_for(record.flags)).map_err(cannot)
}

fn refused(path: &Path, why: String, fix: &str) -> ResourceError {
    let path: PathBuf = path.to_owned();
    ResourceError::File { path: path.display().to_string(), why, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read, Seek, SeekFrom, Write};

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::fd::kind_of;
    use crate::files::Covered;
    use crate::support::testing::{Subject, describe, flags, position};

    fn write(file: &mut File, bytes: &[u8]) {
        file.write_all(bytes).unwrap();
    }

    #[test]
    fn access_mode_flags_and_position_come_back() {
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
    fn a_file_that_is_gone_or_of_another_type_refuses() {
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
    fn an_inherited_stream_whose_file_went_back_is_rewound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        write(&mut file, b"line 1\n");
        let mut subject = Subject::new(&[&file]);
        let stat = subject.descriptions[0].stat;
        subject.inherited = vec![(stat.st_dev, Inode(stat.st_ino))];
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        write(&mut file, b"line 2\n");
        // As the undo log does.
        file.set_len(7).unwrap();
        subject.covered = Covered::AllBut(HashSet::new());
        let handed = [(stat.st_dev, Inode(stat.st_ino), OwnedFd::from(file.try_clone().unwrap()))];
        let mut again = File::from(subject.build(&Regular, &envelopes, &handed).unwrap().remove(0));
        write(&mut again, b"more\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 1\nmore\n");
        assert_eq!(position(&file), 12, "one description has one position");
    }

    #[test]
    fn a_file_renamed_or_removed_meanwhile_is_still_the_same_file() {
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
    fn an_inherited_file_is_the_very_same_description() {
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
    fn files_of_proc_are_told_apart() {
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

    /// A process that has a file open which only its own mounts show.
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
    fn a_path_that_leads_elsewhere_is_an_obstacle() {
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
    fn what_is_no_regular_file_is_not_claimed() {
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
