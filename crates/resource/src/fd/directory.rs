//! Saves and restores open directories, with the position of a listing in progress: the descriptor kind
//! `fd/directory`.
//!
//! Owns: the payload of a directory, and opening the directory again, also with O_PATH.
//! Invariants: if the path does not lead to a directory, the restore is refused. A removed directory is restored as a
//! removed directory.
//! Does not: restore entries. A listing in progress may return other entries if the directory has changed. A listing
//! may also return other entries on another file system, since each file system defines its own positions.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use prost::Message;
use rustix::fs::{FileType, RawDir, Stat};
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::regular::belongs_to_process;
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::{Found, Refusal};
use crate::support::file_system::is_pseudo;
use crate::support::identity::Identity;
use crate::support::nameless::Removed;
use crate::support::opening;
use crate::support::path::{self, Link, Name};

const NAME: &str = "fd/directory";
/// Bytes of the buffer for one directory entry. The entry with the longest name fits.
const LISTING_BYTES: usize = 512;

/// The payload: one open directory as it is in the image.
#[derive(Clone, PartialEq, Message)]
struct DirectoryPayload {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// The state of a removed directory; `None` for a directory with a name.
    #[prost(message, optional, tag = "2")]
    removed: Option<Removed>,
    /// Identity of the directory. Images of earlier versions lack it.
    #[prost(message, optional, tag = "3")]
    identity: Option<Identity>,
}

/// The reason why a removed directory of a pseudo file system is refused.
pub(crate) const OF_REMOVED_KERNEL_OBJECT: &str =
    "it belonged to a kernel object (a process, a control group) that no longer exists";

/// Descriptor kind ([`FdKind`]) of open directories.
#[derive(Clone, Copy, Debug)]
pub struct Directory;

impl FdKind for Directory {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<DirectoryPayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Directory
            && Name::of(description) != Name::None
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        match Name::of(description) {
            Name::Live(path) if belongs_to_process(&path) => vec![description.obstacle(
                "directory of /proc",
                "it belongs to a process, which does not exist when the restore opens files",
                "let the program close it after each use",
            )],
            Name::Live(path) => path::unreachable(description, &path, scope),
            Name::Gone(_) if is_pseudo(&description.duplicate) => vec![of_removed_object(description)],
            Name::Gone(_) | Name::None => Vec::new(),
        }
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let identity = Identity::with(description, &description.stat);
        let link = Link::new();
        Ok(Box::new(DirectoryCapture { link, stat: description.stat, made_up: false, identity }))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn check_files(&self, records: &[FdRecord]) -> Result<()> {
        for record in records {
            let payload: DirectoryPayload = crate::error::decode(NAME, &record.payload)?;
            if payload.removed.is_none() {
                find(record, &payload, &path::from_bytes(&payload.path))?;
            }
        }
        Ok(())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |payload: DirectoryPayload, record, context| {
            let directory = match &payload.removed {
                None => open(record, &payload)?,
                Some(removed) => {
                    let named = context.shared.removed_directories.get(removed)?;
                    opening::reopen(named, opening::flags_for(record.flags))?
                }
            };
            if record.position != 0 {
                begin_listing(&directory);
            }
            Ok(directory)
        })
    }
}

#[derive(Debug)]
struct DirectoryCapture {
    link: Link,
    stat: Stat,
    /// Set for a removed directory of a pseudo file system.
    made_up: bool,
    identity: Identity,
}

impl FdCapture for DirectoryCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.stat = rustix::fs::fstat(&description.duplicate).map_err(|errno| {
            Error::descriptor("stat the directory", description.pid, description.fd, Errno::from(errno))
        })?;
        self.link.read(description)?;
        let is_gone = matches!(Name::new(self.link.bytes(), &self.stat), Name::Gone(_));
        self.made_up = is_gone && is_pseudo(&description.duplicate);
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let name = Name::new(self.link.bytes(), &self.stat);
        let removed = match &name {
            Name::Gone(_) if self.made_up => return Err(of_removed_object(description).into()),
            Name::Gone(path) => Some(Removed::new(path, &self.stat)),
            Name::Live(_) | Name::None => None,
        };
        let identity = Some(self.identity);
        Ok(DirectoryPayload { path: path::to_bytes(name.path()), removed, identity }.encode_to_vec())
    }
}

fn of_removed_object(description: &Known) -> Obstacle {
    let fix = "let the program close it, or do not remove directories that it has open";
    description.obstacle("deleted directory", OF_REMOVED_KERNEL_OBJECT, fix)
}

fn open(record: &FdRecord, payload: &DirectoryPayload) -> Result<OwnedFd> {
    let path = path::from_bytes(&payload.path);
    let found = find(record, payload, &path)?;
    found.open(opening::flags_for(record.flags)).map_err(|refusal| cannot(&path, &refusal))
}

fn find<'a>(record: &'a FdRecord, payload: &DirectoryPayload, path: &'a Path) -> Result<Found<'a>> {
    let found = record.opener.find(path, payload.identity).map_err(|refusal| cannot(path, &refusal))?;
    let stat = found.stat().map_err(|refusal| cannot(path, &refusal))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(cannot(path, &Refusal::Failed(rustix::io::Errno::NOTDIR.into())));
    }
    Ok(found)
}

fn cannot(path: &Path, refusal: &Refusal) -> ResourceError {
    let usual = "create the directory, or restore on the machine that has it";
    refusal.of(path, "the program has this directory open", usual)
}

/// Reads the first entries of a directory before the position is set.
///
/// ext4 on Linux 6.18 stores only where the last read has ended, initially at 0. If a new description is set to the
/// end of the directory and then rewound to 0, the next read returns no entry. A first read avoids this error.
fn begin_listing(directory: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); LISTING_BYTES];
    // A failed read is ignored, since the program could not read the directory either.
    let _ = RawDir::new(directory, &mut buffer).next();
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use rustix::fs::{Mode, OFlags, SeekFrom};

    use super::*;
    use crate::support::testing::{Subject, flags};

    fn next_names(directory: &OwnedFd, space: usize) -> Vec<String> {
        let mut buffer = vec![MaybeUninit::uninit(); space];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            names.push(entry.unwrap().file_name().to_string_lossy().into_owned());
            if entries.is_buffer_empty() {
                break;
            }
        }
        names
    }

    #[test]
    fn a_listing_in_progress_continues() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..50 {
            File::create(folder.path().join(format!("entry-{number:02}"))).unwrap();
        }
        let open = |flags| rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap();
        let directory = open(OFlags::RDONLY | OFlags::DIRECTORY);
        let mut names = next_names(&directory, 300);
        assert!(!names.is_empty() && names.len() < 52);
        let named = open(OFlags::PATH | OFlags::DIRECTORY);
        let plain = open(OFlags::RDONLY);
        let built = Subject::new(&[&directory, &named, &plain]).round_trip(&Directory).unwrap();
        assert_eq!(flags(&built[0]), flags(&directory));
        assert_eq!(flags(&built[1]), flags(&named));
        assert_eq!(flags(&built[2]), flags(&plain));
        loop {
            let more = next_names(&built[0], 300);
            if more.is_empty() {
                break;
            }
            names.extend(more);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 52);
    }

    #[test]
    fn a_listing_at_its_end_can_be_rewound() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..50 {
            File::create(folder.path().join(format!("entry-{number:02}"))).unwrap();
        }
        let directory = OwnedFd::from(File::open(folder.path()).unwrap());
        while !next_names(&directory, 300).is_empty() {}
        let built = Subject::new(&[&directory]).round_trip(&Directory).unwrap();
        assert!(next_names(&built[0], 300).is_empty());
        rustix::fs::seek(&built[0], SeekFrom::Start(0)).unwrap();
        assert!(!next_names(&built[0], 300).is_empty());
    }

    #[test]
    fn a_removed_directory_is_restored_as_removed_at_any_time_of_removal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::create_dir(&path).unwrap();
        let directory = OwnedFd::from(File::open(&path).unwrap());
        let named = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let subject = Subject::new(&[&directory, &named]);
        let there = subject.capture(&Directory, || {}).unwrap();
        fs::remove_dir(&path).unwrap();
        let late = subject.capture(&Directory, || {}).unwrap();
        let after = Subject::new(&[&directory, &named]).capture(&Directory, || {}).unwrap();
        for envelopes in [late, after] {
            let built = subject.build(&Directory, &envelopes, &[]).unwrap();
            let stat = |file: &OwnedFd| rustix::fs::fstat(file).unwrap();
            assert_eq!(stat(&built[0]).st_ino, stat(&built[1]).st_ino);
            assert_eq!(stat(&built[0]).st_mode, stat(&directory).st_mode);
            assert_eq!((flags(&built[0]), flags(&built[1])), (flags(&directory), flags(&named)));
            assert!(rustix::fs::openat(&built[0], "x", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).is_err());
            assert!(!path.exists());
        }
        fs::write(&path, "a file now").unwrap();
        let error = subject.build(&Directory, &there, &[]).unwrap_err().to_string();
        assert!(error.contains("help:"), "{error}");
    }

    #[test]
    fn a_directory_of_a_process_is_an_obstacle() {
        let directory = OwnedFd::from(File::open("/proc/self/fd").unwrap());
        assert_eq!(Subject::new(&[&directory]).obstacles(&Directory).len(), 1);
        let directory = OwnedFd::from(File::open("/proc/sys").unwrap());
        assert!(Subject::new(&[&directory]).obstacles(&Directory).is_empty());
    }
}
