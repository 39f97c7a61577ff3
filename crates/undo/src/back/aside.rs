//! Files that a subject has created since a checkpoint, and that a rollback to this checkpoint has moved aside.
//!
//! The moved files are in a directory `aside` of a keep directory.
//!
//! Owns: the directory of each rollback, its description, the list of moved files, and their retention.
//! Invariants: no existing name is overwritten. Only directories of older rollbacks are removed, without following a
//! symbolic link.
//! Does not: decide which files are moved aside.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use model::ByteCount;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sys::Error;

use crate::error::Result;
use crate::key::FileKey;
use crate::log::frame;
use crate::log::keep::{self, KeepPlace};
use crate::log::record::{self, AnyRecord};

/// The name of the directory for moved files in a keep directory.
pub(crate) const NAME: &str = "aside";
/// The name of the file that contains the original paths of moved files.
pub(crate) const DESCRIPTION: &str = "description";
/// Maximum number of rollbacks whose moved files are retained. Without a maximum, a database that is restored every few
/// seconds would fill the disk.
const KEPT_MAX: usize = 8;
/// Maximum length of a description in bytes: a million names of average length.
const DESCRIPTION_BYTES_MAX: u64 = 256 << 20;

/// A file or directory that was moved aside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedAside {
    /// The original path.
    pub path: PathBuf,
    /// The present path.
    pub to: PathBuf,
    /// Length in bytes; 0 for other types than regular files.
    pub bytes: ByteCount,
}

/// A moved file with its present place.
#[derive(Debug)]
pub(super) struct Found {
    /// The directory of the rollback in a keep directory. Only the user of this process can search it.
    pub(super) directory: Rc<OwnedFd>,
    /// The present name in `directory`.
    pub(super) name: String,
    /// The directory from which the file was moved. `None`: an earlier version has moved the file.
    pub(super) home: Option<FileKey>,
    pub(super) moved: MovedAside,
}

/// Returns the number of the next rollback. Removes moved files of all but the newest rollbacks, as far as possible.
pub(crate) fn next_number(log: &Path) -> Result<u64> {
    let places = keep::places(log)?;
    let mut numbers = Vec::new();
    for place in &places {
        numbers.extend(numbers_in(place)?);
    }
    numbers.sort_unstable();
    numbers.dedup();
    let next = numbers.last().map_or(1, |last| last + 1);
    numbers.truncate(numbers.len().saturating_sub(KEPT_MAX - 1));
    for place in &places {
        for number in &numbers {
            // An immutable file or a mount point stays, without a failure of the rollback.
            let _ = remove(place, *number);
        }
    }
    Ok(next)
}

/// Lists existing files that rollbacks have moved aside, oldest rollback first. Moved files of the newest 8 rollbacks
/// are retained. The next rollback begins with the removal of older moved files.
pub fn list_aside(log: &Path) -> Result<Vec<MovedAside>> {
    Ok(find_all(log)?.into_iter().map(|found| found.moved).collect())
}

/// Works like [`list_aside`], and returns the open directory of each file.
pub(super) fn find_all(log: &Path) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    for place in keep::places(log)? {
        for number in numbers_in(&place)? {
            all.extend(listed(&place, number)?.into_iter().map(|found| (number, found)));
        }
    }
    all.sort_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, found)| found).collect())
}

/// Removes the directories of a rollback that has moved no file.
pub(crate) fn remove_empty(log: &Path, number: u64) -> Result<()> {
    for place in keep::places(log)? {
        let Some(asides) = open_asides(&place)? else { continue };
        match rustix::fs::unlinkat(&asides, number.to_string(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(Error::path("remove", place.path.join(NAME), errno).into()),
        }
    }
    Ok(())
}

fn open_asides(place: &KeepPlace) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&place.directory, NAME, flags, Mode::empty()) {
        Ok(asides) => Ok(Some(asides)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::path("open", place.path.join(NAME), errno).into()),
    }
}

fn numbers_in(place: &KeepPlace) -> Result<Vec<u64>> {
    let Some(asides) = open_asides(place)? else { return Ok(Vec::new()) };
    let names = keep::names_in(asides.as_fd(), &place.path.join(NAME))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

fn open_one(place: &KeepPlace, number: u64) -> Result<Option<(OwnedFd, PathBuf)>> {
    let Some(asides) = open_asides(place)? else { return Ok(None) };
    let path = place.path.join(NAME).join(number.to_string());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&asides, number.to_string(), flags, Mode::empty()) {
        Ok(directory) => Ok(Some((directory, path))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::path("open", path, errno).into()),
    }
}

fn listed(place: &KeepPlace, number: u64) -> Result<Vec<Found>> {
    let Some((directory, path)) = open_one(place, number)? else { return Ok(Vec::new()) };
    let directory = Rc::new(directory);
    let bytes = match keep::read_file(directory.as_fd(), DESCRIPTION, &path, DESCRIPTION_BYTES_MAX) {
        Err(error) if error.errno == Errno::NOENT.into() => return Ok(Vec::new()),
        result => result?,
    };
    let (mut found, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((frame, behind)) = frame::split(rest) {
        rest = behind;
        let Some(Ok(AnyRecord::Aside(aside))) = frame::verified(frame).map(record::decode) else { continue };
        let name = aside.number.to_string();
        if rustix::fs::statat(&*directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            let original = record::path_of(&aside.path).to_path_buf();
            let moved = MovedAside { path: original, to: path.join(&name), bytes: ByteCount(aside.bytes) };
            let home = aside.directory.map(FileKey::from);
            found.push(Found { directory: Rc::clone(&directory), name, home, moved });
        }
    }
    Ok(found)
}

/// Removes the directory of a rollback with its content. Each subdirectory is first moved to the top directory. The use
/// of memory and descriptors therefore does not depend on the depth or the width of a tree.
fn remove(place: &KeepPlace, number: u64) -> Result<()> {
    let Some((top, path)) = open_one(place, number)? else { return Ok(()) };
    let failed = |errno| Error::path("remove", &path, errno);
    let mut moved = 0_u64;
    loop {
        let names = entries(top.as_fd()).map_err(failed)?;
        if names.is_empty() {
            break;
        }
        for (name, kind) in names {
            if kind != FileType::Directory {
                rustix::fs::unlinkat(&top, &name, AtFlags::empty()).map_err(failed)?;
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&top, &name, flags, Mode::empty()).map_err(failed)?;
            for (child, kind) in entries(directory.as_fd()).map_err(failed)? {
                if kind != FileType::Directory {
                    rustix::fs::unlinkat(&directory, &child, AtFlags::empty()).map_err(failed)?;
                    continue;
                }
                moved += 1;
                let to = format!("removed-{moved}-{}", rustix::process::getpid().as_raw_pid());
                rustix::fs::renameat_with(&directory, &child, &top, &to, RenameFlags::NOREPLACE)
                    .map_err(failed)?;
            }
            rustix::fs::unlinkat(&top, &name, AtFlags::REMOVEDIR).map_err(failed)?;
        }
    }
    remove_top(place, number, failed)
}

fn remove_top(place: &KeepPlace, number: u64, failed: impl Fn(Errno) -> Error) -> Result<()> {
    let Some(asides) = open_asides(place)? else { return Ok(()) };
    rustix::fs::unlinkat(&asides, number.to_string(), AtFlags::REMOVEDIR).map_err(failed)?;
    Ok(())
}

fn entries(directory: impl AsFd) -> rustix::io::Result<Vec<(std::ffi::CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            kind => kind,
        };
        found.push((name.to_owned(), kind));
    }
    Ok(found)
}
