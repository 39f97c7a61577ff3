//! The memory kind of files whose name was removed or leads to another file: upgraded libraries, unlinked scratch
//! files.
//!
//! Owns: recognizing mappings of these files, and saving the content of the whole file in the image.
//! Does not: restore the name of a file. The restored mapping has an unlinked file too.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use super::source_file;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::{Opener, nearest_directory};
use crate::support::ownership::owner;
use sys::{Errno, Error};
use tracee::procfs::Backing;

const NAME: &str = "memory/deleted_file";

/// Names that the kernel itself uses for files without a directory entry. Other kinds save mappings of these files.
const KERNEL_NAMES: &[&str] =
    &["/dev/zero (deleted)", "/memfd:", "/SYSV", "/anon_hugepage", "/secretmem", "/[aio]", "anon_inode:"];

#[derive(Clone, PartialEq, prost::Message)]
struct DeletedFileObject {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(uint32, tag = "2")]
    mode: u32,
    /// The owner of the file; `None` in images of earlier versions.
    #[prost(uint32, optional, tag = "3")]
    user: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    group: Option<u32>,
}

/// The memory kind of deleted files.
pub(super) struct DeletedFile;

/// Reports whether the object of a mapping is a regular file. Returns `true` if the object cannot be inspected, so
/// that this kind refuses the mapping.
fn is_file(of: MappingOf<'_>) -> bool {
    let found = rustix::fs::stat(of.link());
    found.map_or(true, |stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

impl MemoryKind for DeletedFile {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        matches!(of.mapping.backing, Backing::File { .. })
            && !of.mapping.flags.has("ht")
            && of.mapping.name.starts_with('/')
            && !KERNEL_NAMES.iter().any(|name| of.mapping.name.starts_with(name))
            && !source_file::is_reachable(of)
            && is_file(of)
    }

    fn content(&self, of: MappingOf<'_>) -> Content {
        if of.mapping.protection.shared { Content::Object } else { Content::PrivateAndObject }
    }

    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        // The image contains the data of the file, and no holes. The length of the file has no limit.
        of.unopenable("deleted file", "file").into_iter().collect()
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let link = of.link();
        let stat = rustix::fs::stat(&link).map_err(|errno| Error::path("stat", &link, errno))?;
        let path = source_file::path(of).display().to_string();
        let path = path.trim_end_matches(" (deleted)").to_owned();
        Ok((
            prost::Message::encode_to_vec(&DeletedFileObject {
                path,
                mode: stat.st_mode,
                user: Some(stat.st_uid),
                group: Some(stat.st_gid),
            }),
            stat.st_size as u64,
        ))
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        crate::error::decode::<DeletedFileObject>(NAME, &record.payload).map(drop)
    }

    fn label(&self, record: &ObjectRecord) -> Option<String> {
        crate::support::label::first_field(&record.payload)
    }

    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        let object: DeletedFileObject = crate::error::decode(NAME, &record.payload)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(object.mode & 0o7777);
        let home = nearest_directory(Path::new(&object.path)).ok();
        let beside = home.and_then(|home| rustix::fs::openat(home, ".", flags, mode).ok());
        let elsewhere =
            || ["/tmp", "/dev/shm"].iter().find_map(|place| rustix::fs::open(*place, flags, mode).ok());
        let file = beside
            .or_else(elsewhere)
            .ok_or_else(|| Error::path("create an unlinked copy of", &object.path, Errno::EACCES))?;
        rustix::fs::ftruncate(&file, record.length)
            .map_err(|errno| Error::path("set the length of the copy of", &object.path, errno))?;
        // Images of earlier versions contain no owner.
        if let (Some(user), Some(group)) = (object.user, object.group) {
            let (user, group) = owner(user, group)?;
            rustix::fs::fchown(&file, Some(user), Some(group))
                .map_err(|errno| Error::path("set the owner of the copy of", &object.path, errno))?;
        }
        rustix::fs::fchmod(&file, mode)
            .map_err(|errno| Error::path("set the mode of the copy of", &object.path, errno))?;
        Ok(file)
    }
}
