//! Copies of file contents that a restore cuts off, kept beside the images (checkpoints) of the subject.
//!
//! A restore truncates a file that has only grown since the checkpoint. The bytes that are cut off are a *part*.
//!
//! Owns: the directory `aside`, which contains one directory for each part: the bytes, and a description of the origin.
//! Invariants: the copy of a part is durable before the file is truncated. This program never removes a part. No part
//! is written through a symbolic link, or into a directory that another user owns or can write.
//! Does not: put parts back into files.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use engine::{Aside, EngineError};
use model::ByteCount;
use rustix::fs::{Dir, Mode, OFlags};
use serde::Serialize;
use sys::clock::Clock;
use sys::{Errno, Error, Result};
use undo::back::MovedAside;

use crate::time;

/// Name of the directory of all parts, below the directory of a subject.
pub(crate) const DIRECTORY: &str = "aside";
const BYTES_FILE: &str = "bytes";
const DESCRIPTION_FILE: &str = "file.json";
/// Maximum number of names that are tried for a new part. A longer search would take too long.
const PARTS_MAX: u32 = 100_000;

/// The origin of a part.
#[derive(Serialize)]
struct Description {
    path: String,
    offset: u64,
    bytes: u64,
    time: String,
}

/// The parts that one restore cuts off.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    directory: PathBuf,
    moved: Arc<Mutex<Vec<MovedAside>>>,
}

impl Parts {
    /// Returns parts that are kept below the directory of a subject.
    pub(crate) fn of_subject(subject: &Path) -> Self {
        Self { directory: subject.join(DIRECTORY), moved: Arc::default() }
    }

    /// Returns parts of an image outside the store. These parts are kept in the directory `IMAGE.aside`.
    pub(crate) fn of_image(image: &Path) -> Self {
        let mut name = image.as_os_str().to_owned();
        name.push(".");
        name.push(DIRECTORY);
        Self { directory: PathBuf::from(name), moved: Arc::default() }
    }

    /// Returns the callback to which the engine passes each part.
    pub(crate) fn keeping(&self) -> Aside {
        let (directory, parts) = (self.directory.clone(), self.clone());
        let keep = move |path: &Path, file: &File, offset, bytes| {
            let to = keep(&parts.directory, path, file, offset, bytes)?;
            let part = MovedAside { path: path.to_owned(), bytes: ByteCount(bytes), to };
            parts.moved.lock().unwrap_or_else(PoisonError::into_inner).push(part);
            Ok(())
        };
        Aside::new(move || check(&directory), keep)
    }

    /// Keeps the end of a file, from an offset on.
    pub(crate) fn keep_end(&self, path: &Path, file: &File, offset: u64) -> Result<()> {
        let failed = |error: std::io::Error| Error::path("read", path, error);
        let length = file.metadata().map_err(failed)?.len();
        let bytes = length.saturating_sub(offset);
        if bytes > 0 {
            let to = keep(&self.directory, path, file, offset, bytes)?;
            let part = MovedAside { path: path.to_owned(), bytes: ByteCount(bytes), to };
            self.moved.lock().unwrap_or_else(PoisonError::into_inner).push(part);
        }
        Ok(())
    }

    /// Returns the parts that were moved aside since the last call.
    pub(crate) fn take(&self) -> Vec<MovedAside> {
        std::mem::take(&mut self.moved.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks the directory of all parts, if it exists. Another user can have created this directory, or a link with its
/// name, beside an image outside of a store.
fn check(directory: &Path) -> std::result::Result<(), EngineError> {
    let why = match store::trust::check_directory(directory) {
        Ok(()) => return Ok(()),
        Err(error) if store::trust::is_absence(&error) => return Ok(()),
        Err(store::Error::Untrusted { owner, .. }) => format!("belongs to uid {owner}"),
        Err(store::Error::Writable { mode, .. }) => {
            format!("can be written by other users (mode {mode:04o})")
        }
        Err(store::Error::WrongType { found, .. }) => format!("is {found} and not a directory"),
        Err(error) => return Err(error.into()),
    };
    Err(EngineError::AsideRefused { path: directory.to_owned(), why })
}

fn keep(directory: &Path, path: &Path, mut file: &File, offset: u64, bytes: u64) -> Result<PathBuf> {
    let all = open_or_create(directory)?;
    let (part, part_path) = create_part(&all, directory)?;
    let copy_path = part_path.join(BYTES_FILE);
    let mut copy = create(&part, &part_path, BYTES_FILE)?;
    file.seek(SeekFrom::Start(offset)).map_err(|error| Error::path("seek in", path, error))?;
    let copied = std::io::copy(&mut file.take(bytes), &mut copy)
        .map_err(|error| Error::path("copy the end of a file to", &copy_path, error))?;
    if copied != bytes {
        return Err(Error::path("read the end of", path, Errno::SHORT));
    }
    copy.sync_all().map_err(|error| Error::path("sync", &copy_path, error))?;
    let description = Description {
        path: path.display().to_string(),
        offset,
        bytes,
        time: time::rfc3339(Clock::default().wall()),
    };
    let text = serde_json::to_vec_pretty(&description).expect("strings and numbers become JSON");
    let description_path = part_path.join(DESCRIPTION_FILE);
    let mut file = create(&part, &part_path, DESCRIPTION_FILE)?;
    file.write_all(&text).map_err(|error| Error::path("write", &description_path, error))?;
    file.sync_all().map_err(|error| Error::path("sync", &description_path, error))?;
    part.sync_all().map_err(|error| Error::path("sync", &part_path, error))?;
    all.sync_all().map_err(|error| Error::path("sync", directory, error))?;
    Ok(copy_path)
}

/// Opens the directory of all parts. The directory was checked before the restore. The check is repeated with the
/// descriptor that is used.
fn open_or_create(directory: &Path) -> Result<File> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(Error::path("create", directory, error));
        }
        _ => {}
    }
    store::trust::open_directory(directory).map_err(|error| match error {
        store::Error::Io(error) => error,
        _ => Error::path("keep the end of a file in the directory of another user:", directory, Errno::EPERM),
    })
}

fn create_part(all: &File, path: &Path) -> Result<(File, PathBuf)> {
    let mode = Mode::from_raw_mode(0o700);
    let listed = Dir::read_from(all).map_err(|errno| Error::path("list", path, errno))?;
    // Two of the names are `.` and `..`.
    let first = (listed.count() as u32).saturating_sub(1);
    for number in first..first.saturating_add(PARTS_MAX) {
        let (name, part) = (number.to_string(), path.join(number.to_string()));
        match rustix::fs::mkdirat(all, &name, mode) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => continue,
            Err(errno) => return Err(Error::path("create", &part, errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(all, &name, flags, Mode::empty());
        return Ok((opened.map_err(|errno| Error::path("open", &part, errno))?.into(), part));
    }
    Err(Error::path("find a free number in", path, Errno::EEXIST))
}

fn create(part: &File, path: &Path, name: &str) -> Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(part, name, flags, Mode::from_raw_mode(0o600));
    made.map(File::from).map_err(|errno| Error::path("create", path.join(name), errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_kept_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "line 1\nline 2\n").unwrap();
        let file = File::open(&path).unwrap();
        let directory = folder.path().join("job").join(DIRECTORY);
        std::fs::create_dir(folder.path().join("job")).unwrap();
        for number in ["1", "2"] {
            keep(&directory, &path, &file, 7, 7).unwrap();
            let part = directory.join(number);
            assert!(part.join(BYTES_FILE).exists());
            assert_eq!(std::fs::read_to_string(part.join(BYTES_FILE)).unwrap(), "line 2\n");
            let text = std::fs::read_to_string(part.join(DESCRIPTION_FILE)).unwrap();
            let description: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&description["offset"], &description["bytes"]), (&7.into(), &7.into()));
            assert_eq!(description["path"], path.display().to_string());
        }
        keep(&directory, &path, &file, 7, 8).unwrap_err();
    }
}
