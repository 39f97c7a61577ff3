//! Symbolic links themselves, opened with O_PATH and O_NOFOLLOW, with or without a name.
//!
//! Owns: what a link leads to as text, making one again whose name is gone.
//! Invariants: descriptions of one nameless link come back as one; where a link leads is never followed.
//! Does not: bring back a link that had a name and has none any more at the restore (refused).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::fs::{AtFlags, CWD, FileType, Gid, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno as E;
use sys::{Errno, Error};

use super::{CaptureScope, Description, FdCapture, FdCreate, FdKind, FdRecord, Known};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::nameless::{free_name, home_of};
use crate::support::opening::{self, flags_for, reopen};
use crate::support::path::{self, Link, Name};

const NAME: &str = "fd/symlink";

/// One open link as the image keeps it.
#[derive(Clone, PartialEq, Message)]
struct SymlinkPayload {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// Set when no name leads to it any more.
    #[prost(message, optional, tag = "2")]
    nameless: Option<Nameless>,
}

#[derive(Clone, PartialEq, Message)]
struct Nameless {
    /// Where it leads.
    #[prost(bytes = "vec", tag = "1")]
    target: Vec<u8>,
    /// Device and inode tell which descriptions are of one link.
    #[prost(uint64, tag = "2")]
    device: u64,
    #[prost(uint64, tag = "3")]
    inode: u64,
    #[prost(uint32, tag = "4")]
    user: u32,
    #[prost(uint32, tag = "5")]
    group: u32,
    #[prost(int64, tag = "6")]
    accessed_s: i64,
    #[prost(int64, tag = "7")]
    accessed_ns: i64,
    #[prost(int64, tag = "8")]
    modified_s: i64,
    #[prost(int64, tag = "9")]
    modified_ns: i64,
}

/// The kind.
#[derive(Clone, Copy, Debug)]
pub struct Symlink;

impl FdKind for Symlink {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "symbolic links themselves (O_PATH), also unlinked ones"
    }

    fn claims(&self, description: &Description) -> bool {
        is_symlink(&description.stat) && Name::of(description) != Name::None
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        match Name::of(description) {
            Name::Live(path) if super::regular::belongs_to_process(&path) => vec![description.obstacle(
                "link of /proc",
                "it belongs to a process, and that process does not exist yet when files are opened again",
                "let the program open it when it needs it, and close it then",
            )],
            Name::Live(path) => path::unreachable(description, &path, scope),
            Name::Gone(_) | Name::None => Vec::new(),
        }
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let link = Link::new();
        Ok(Box::new(SymlinkCapture { link, stat: description.stat, target: Vec::new() }))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut nameless: BTreeMap<(u64, u64), (SymlinkPayload, Vec<&FdRecord>)> = BTreeMap::new();
        for record in records {
            let payload: SymlinkPayload = crate::decode(NAME, &record.payload)?;
            let Some(state) = &payload.nameless else {
                let file = open(&path::from_bytes(&payload.path), record)?;
                context.created.insert(record.id, file);
                continue;
            };
            let key = (state.device, state.inode);
            nameless.entry(key).or_insert_with(|| (payload, Vec::new())).1.push(record);
        }
        for (payload, records) in nameless.values() {
            make_and_open(payload, records, context)?;
        }
        Ok(())
    }
}

fn is_symlink(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

#[derive(Debug)]
struct SymlinkCapture {
    link: Link,
    stat: Stat,
    target: Vec<u8>,
}

impl FdCapture for SymlinkCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let failed = |errno: E| Error::descriptor("read the link", description.pid, description.fd, errno);
        self.stat = rustix::fs::fstat(&description.duplicate).map_err(failed)?;
        self.target =
            rustix::fs::readlinkat(&description.duplicate, "", Vec::new()).map_err(failed)?.into_bytes();
        Ok(self.link.read(description)?)
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let (name, stat) = (Name::new(self.link.bytes(), &self.stat), &self.stat);
        let nameless = matches!(name, Name::Gone(_)).then(|| Nameless {
            target: self.target.clone(),
            device: stat.st_dev,
            inode: stat.st_ino,
            user: stat.st_uid,
            group: stat.st_gid,
            accessed_s: stat.st_atime,
            accessed_ns: stat.st_atime_nsec as i64,
            modified_s: stat.st_mtime,
            modified_ns: stat.st_mtime_nsec as i64,
        });
        Ok(SymlinkPayload { path: path::to_bytes(name.path()), nameless }.encode_to_vec())
    }
}

fn open(path: &Path, record: &FdRecord) -> Result<OwnedFd> {
    let flags = flags_for(record.flags);
    let refused = |why: String| ResourceError::File {
        path: path.display().to_string(),
        why,
        fix: "bring the link back, or restore where it is".to_owned(),
    };
    let file = opening::open(path, flags | OFlags::NOFOLLOW).map_err(|error| {
        refused(format!("the program has this link open, and it cannot be opened: {}", error.errno))
    })?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::path("look at", path, errno))?;
    if !is_symlink(&stat) {
        return Err(refused("it is no longer a symbolic link".to_owned()));
    }
    // One that was reached through `/proc` has no O_NOFOLLOW, and is reached that way again.
    if flags.contains(OFlags::NOFOLLOW) { Ok(file) } else { Ok(reopen(&file, flags)?) }
}

fn make_and_open(payload: &SymlinkPayload, records: &[&FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
    let wanted = path::from_bytes(&payload.path);
    let Some(state) = &payload.nameless else { return Ok(()) };
    let place = make(&wanted, state).map_err(|errno| ResourceError::File {
        path: wanted.display().to_string(),
        why: format!("this unlinked symbolic link cannot be made again for a moment: {}", Errno::from(errno)),
        fix: "make its directory writable for whoever restores".to_owned(),
    })?;
    let opened = set_attributes(&place, state).and_then(|()| {
        records.iter().try_for_each(|record| {
            context.created.insert(record.id, open(&place, record)?);
            Ok(())
        })
    });
    rustix::fs::unlink(&place).map_err(|errno| Error::path("remove", &place, errno))?;
    opened
}

/// Under its own name, or another one should that be taken.
fn make(wanted: &Path, state: &Nameless) -> std::result::Result<PathBuf, E> {
    let target = path::from_bytes(&state.target);
    match rustix::fs::symlinkat(&target, CWD, wanted) {
        Ok(()) => Ok(wanted.to_owned()),
        Err(E::EXIST | E::NOENT | E::NOTDIR) => {
            free_name(&home_of(wanted), |path| rustix::fs::symlinkat(&target, CWD, path))
        }
        Err(errno) => Err(errno),
    }
}

fn set_attributes(place: &Path, state: &Nameless) -> Result<()> {
    let owner = (Some(Uid::from_raw(state.user)), Some(Gid::from_raw(state.group)));
    let times = Timestamps {
        last_access: Timespec { tv_sec: state.accessed_s, tv_nsec: state.accessed_ns },
        last_modification: Timespec { tv_sec: state.modified_s, tv_nsec: state.modified_ns },
    };
    rustix::fs::chownat(CWD, place, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| Error::path("set the owner of", place, errno))?;
    rustix::fs::utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| Error::path("set the times of", place, errno))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::Mode;

    use super::*;
    use crate::support::testing::{Subject, flags};

    fn open_link(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn target(file: &OwnedFd) -> Vec<u8> {
        rustix::fs::readlinkat(file, "", Vec::new()).unwrap().into_bytes()
    }

    #[test]
    fn a_link_comes_back_with_or_without_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, gone) = (folder.path().join("kept"), folder.path().join("gone"));
        symlink("nowhere/at all", &kept).unwrap();
        symlink("/etc/passwd", &gone).unwrap();
        let files = [open_link(&kept), open_link(&gone), open_link(&gone)];
        let through_proc = reopen(&files[1], OFlags::PATH | OFlags::CLOEXEC).unwrap();
        let subject = Subject::new(&[&files[0], &files[1], &files[2], &through_proc]);
        let early = subject.capture(&Symlink, || {}).unwrap();
        fs::remove_file(&gone).unwrap();
        let envelopes = subject.capture(&Symlink, || {}).unwrap();
        let built = subject.build(&Symlink, &envelopes, &[]).unwrap();
        let originals = [&files[0], &files[1], &files[2], &through_proc];
        for (original, again) in originals.into_iter().zip(&built) {
            assert_eq!((target(again), flags(again)), (target(original), flags(original)));
        }
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        assert_eq!((inode(&built[0]), inode(&built[1])), (inode(&files[0]), inode(&built[2])));
        assert_eq!(inode(&built[1]), inode(&built[3]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = subject.build(&Symlink, &early, &[]).unwrap_err().to_string();
        assert!(error.contains("gone") && error.contains("help:"), "{error}");
        fs::write(&gone, "a file").unwrap();
        let error = subject.build(&Symlink, &early, &[]).unwrap_err().to_string();
        assert!(error.contains("no longer a symbolic link"), "{error}");
        drop(subject.build(&Symlink, &envelopes, &[]).unwrap());
        assert_eq!(fs::read_to_string(&gone).unwrap(), "a file", "a name that is taken is left alone");
    }
}
