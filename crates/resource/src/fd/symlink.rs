//! Saves and restores symbolic links that are open themselves (O_PATH and O_NOFOLLOW), with or without a name: the
//! descriptor kind `fd/symlink`.
//!
//! Owns: the target of a link as text, and creating a link whose name was removed.
//! Invariants: all open file descriptions of a link without a name are restored as descriptions of one link. The
//! target is never followed.
//! Does not: restore a link that had a name at the checkpoint but is missing at the restore. Such a restore is
//! refused.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use prost::Message;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno as E;
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::Refusal;
use crate::support::identity::Identity;
use crate::support::making::PrivateDirectory;
use crate::support::opening::{flags_for, reopen};
use crate::support::ownership::owner;
use crate::support::path::{self, Link, Name};

const NAME: &str = "fd/symlink";
/// Name of a created link inside a private directory.
const MADE: &str = "link";

/// The payload: one open symbolic link as it is in the image.
#[derive(Clone, PartialEq, Message)]
struct SymlinkPayload {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// The state of a link without a name; `None` for a link with a name.
    #[prost(message, optional, tag = "2")]
    nameless: Option<Nameless>,
    /// Identity of the link. Images of earlier versions lack it.
    #[prost(message, optional, tag = "3")]
    identity: Option<Identity>,
}

#[derive(Clone, PartialEq, Message)]
struct Nameless {
    /// The target of the link.
    #[prost(bytes = "vec", tag = "1")]
    target: Vec<u8>,
    /// Device number of the file system. Descriptions with equal device and inode share the link.
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

/// Descriptor kind ([`FdKind`]) of open symbolic links.
#[derive(Clone, Copy, Debug)]
pub struct Symlink;

impl FdKind for Symlink {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<SymlinkPayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        is_symlink(&description.stat) && Name::of(description) != Name::None
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        match Name::of(description) {
            Name::Live(path) if super::regular::belongs_to_process(&path) => vec![description.obstacle(
                "link of /proc",
                "it belongs to a process, which does not exist when the restore opens files",
                "let the program close it after each use",
            )],
            Name::Live(path) => path::unreachable(description, &path, scope),
            Name::Gone(_) | Name::None => Vec::new(),
        }
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let link = Link::new();
        let identity = Identity::with(description, &description.stat);
        Ok(Box::new(SymlinkCapture { link, stat: description.stat, target: Vec::new(), identity }))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut nameless: BTreeMap<(u64, u64), (SymlinkPayload, Vec<&FdRecord>)> = BTreeMap::new();
        for record in records {
            let payload: SymlinkPayload = crate::error::decode(NAME, &record.payload)?;
            let Some(state) = &payload.nameless else {
                let file = open(&path::from_bytes(&payload.path), payload.identity, record)?;
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
    identity: Identity,
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
        let identity = Some(self.identity);
        Ok(SymlinkPayload { path: path::to_bytes(name.path()), nameless, identity }.encode_to_vec())
    }
}

fn open(path: &Path, identity: Option<Identity>, record: &FdRecord) -> Result<OwnedFd> {
    // An image of an earlier version contains no identity. Then any symbolic link at the path matches.
    let wanted = identity.unwrap_or_else(|| Identity::from_numbers(0, 0, FileType::Symlink));
    let cannot = |refusal: Refusal| {
        let usual = "create the link again, or restore on the machine that has it";
        refusal.of(path, "the program has this link open", usual)
    };
    let found = record.opener.find(path, Some(wanted)).map_err(cannot)?;
    if !is_symlink(&found.stat().map_err(cannot)?) {
        return Err(ResourceError::File {
            path: path.display().to_string(),
            why: "it is no longer a symbolic link".to_owned(),
            fix: "create the link again, or restore on the machine that has it".to_owned(),
        });
    }
    found.open(flags_for(record.flags)).map_err(cannot)
}

fn make_and_open(payload: &SymlinkPayload, records: &[&FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
    let wanted = path::from_bytes(&payload.path);
    let Some(state) = &payload.nameless else { return Ok(()) };
    let cannot = |why: String| ResourceError::File {
        path: wanted.display().to_string(),
        why: format!("the unlinked symbolic link cannot be created for a moment: {why}"),
        fix: "make its directory writable for the user that restores".to_owned(),
    };
    let private = PrivateDirectory::near(&wanted).map_err(|error| cannot(error.to_string()))?;
    let target = path::from_bytes(&state.target);
    let made = private.make(MADE, |directory, name| rustix::fs::symlinkat(&target, directory, name))?;
    open_made(&private, &made, records, context)?;
    set_attributes(&made, state)?;
    // `/proc` shows the last name of the link. So the link gets its former name, if this name is free, before it is
    // unlinked.
    let is_home = wanted.parent() == Some(private.parent_path());
    let outcome = match wanted.file_name().filter(|_| is_home) {
        Some(last) => private.unlink_as(Path::new(MADE), last, AtFlags::empty()),
        None => rustix::fs::unlinkat(private.directory(), MADE, AtFlags::empty()),
    };
    outcome.map_err(|errno| cannot(Errno::from(errno).to_string()))
}

fn open_made(
    private: &PrivateDirectory,
    made: &OwnedFd,
    records: &[&FdRecord],
    context: &mut FdCreate<'_>,
) -> Result<()> {
    for record in records {
        let flags = flags_for(record.flags);
        let file = if flags.contains(OFlags::NOFOLLOW) {
            rustix::fs::openat(private.directory(), MADE, flags, Mode::empty())
                .map_err(|errno| Error::new("open a symbolic link", errno))?
        } else {
            reopen(made, flags)?
        };
        context.created.insert(record.id, file);
    }
    Ok(())
}

fn set_attributes(link: &OwnedFd, state: &Nameless) -> Result<()> {
    let (user, group) = owner(state.user, state.group)?;
    let times = Timestamps {
        last_access: Timespec { tv_sec: state.accessed_s, tv_nsec: state.accessed_ns },
        last_modification: Timespec { tv_sec: state.modified_s, tv_nsec: state.modified_ns },
    };
    rustix::fs::chownat(link, "", Some(user), Some(group), AtFlags::EMPTY_PATH)
        .map_err(|errno| Error::new("set the owner of an unlinked symbolic link", errno))?;
    rustix::fs::utimensat(link, "", &times, AtFlags::EMPTY_PATH)
        .map_err(|errno| Error::new("set the times of an unlinked symbolic link", errno))?;
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
    fn a_link_is_restored_with_or_without_its_name() {
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
        assert_eq!(fs::read_to_string(&gone).unwrap(), "a file", "a taken name is not touched");
    }
}
