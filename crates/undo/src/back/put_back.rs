//! Moves a file that a rollback has moved aside back to its original path.
//!
//! The caller can have more rights than the subject that has created the file. Since the rollback, the subject can have
//! changed each directory of the path.
//!
//! Owns: the check of the directory, the move, and the copy to another file system.
//! Invariants: no symbolic link is followed. The file, its directory and its old directory are used through
//! descriptors. No existing name is replaced. A copy gets its owner before its mode, and its name last.
//! Does not: put back a file into a directory that the subject could not have chosen. Does not copy a directory, a
//! FIFO, a socket or a device.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use sys::Error;
use sys::file_rights::{self, FileRights};

use super::aside::{self, Found, MovedAside};
use crate::descriptor::link_of;
use crate::error::{Result, UndoError};
use crate::key::FileKey;

/// Permission bits that give the rights of the owner or the group to a user that executes the file.
const SET_ID: u32 = 0o6000;
const PERMISSIONS: u32 = 0o7777;
/// Mode of a copy that does not have its owner yet.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Moves the newest file with the original path `path` back to this path. Returns `None` if no such file exists.
///
/// # Errors
///
/// `Taken` if `path` exists. `NotPutBack` if the directory of `path` is not acceptable, or if the file would have to be
/// copied and is no regular file. In these cases, nothing was changed.
pub fn put_back(log: &Path, path: &Path) -> Result<Option<MovedAside>> {
    let found = aside::find_all(log)?;
    let Some(found) = found.into_iter().rev().find(|found| found.moved.path == path) else {
        return Ok(None);
    };
    let refused =
        |why: String| UndoError::NotPutBack { path: path.to_path_buf(), from: found.moved.to.clone(), why };
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refused("it is no path of a file".to_owned()));
    };
    let stat = rustix::fs::statat(&found.directory, &found.name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| Error::path("inspect", &found.moved.to, errno))?;
    let directory = open_directory(above).map_err(|errno| refused(reason_of(errno)))?;
    check_directory(directory.as_fd(), &found, &stat)?.map_or(Ok(()), |why| Err(refused(why)))?;
    let taken = |errno| match errno {
        Errno::EXIST => UndoError::Taken { path: path.to_path_buf(), from: found.moved.to.clone() },
        errno => Error::path("put back", path, errno).into(),
    };
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&found.directory, &found.name, &directory, name, flags) {
        Ok(()) => {}
        Err(Errno::XDEV) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            copy(&found, directory.as_fd(), name)?.map_err(taken)?;
            rustix::fs::unlinkat(&found.directory, &found.name, AtFlags::empty())
                .map_err(|errno| Error::path("remove", &found.moved.to, errno))?;
        }
        Err(Errno::XDEV) => {
            let why = "its directory is on another file system, and only a regular file is copied";
            return Err(refused(why.to_owned()));
        }
        Err(errno) => return Err(taken(errno)),
    }
    Ok(Some(found.moved))
}

/// Opens the directory of the original path. Follows no symbolic link.
fn open_directory(above: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, above, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn reason_of(not_opened: Errno) -> String {
    match not_opened {
        Errno::LOOP => "its path now contains a symbolic link".to_owned(),
        errno => format!("its directory cannot be opened: {}", sys::Errno::from(errno)),
    }
}

/// Returns the reason why a file must not be put into this directory. The rollback has recorded the directory from
/// which the file was moved. In another directory, the owner of the file must have the right to create a file.
fn check_directory(directory: BorrowedFd<'_>, found: &Found, file: &Stat) -> Result<Option<String>> {
    let stat = rustix::fs::fstat(directory).map_err(|errno| Error::new("inspect a directory", errno))?;
    let is_recorded = match &found.home {
        Some(home) => FileKey::of(directory, &stat).is_ok_and(|key| key == *home),
        None => false,
    };
    let own = file_rights::own()?;
    if is_recorded || file.st_uid == own.user {
        return Ok(None);
    }
    let rights =
        FileRights { user: file.st_uid, group: file.st_gid, supplementary: Vec::new(), effective: 0 };
    // The path leads to the directory of the descriptor, so a link that appears now has no effect.
    let link = link_of(directory);
    let may_create = file_rights::run_with(&rights, || file_rights::may_create_in(Path::new(&link)))?;
    Ok(may_create.err().map(|_| {
        let owner = file.st_uid;
        format!("its directory is not the former one, and the owner of the file (uid {owner}) may not create files in it")
    }))
}

/// Copies a regular file into a directory of another file system. The inner error is one of the new name.
fn copy(found: &Found, directory: BorrowedFd<'_>, name: &OsStr) -> Result<std::result::Result<(), Errno>> {
    let failed = |errno: sys::Errno| Error::path("copy", &found.moved.to, errno);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = rustix::fs::openat(&found.directory, &found.name, flags, Mode::empty());
    let mut source = File::from(source.map_err(|errno| failed(errno.into()))?);
    let stat = rustix::fs::fstat(&source).map_err(|errno| failed(errno.into()))?;
    let (target, temporary) = match create(directory) {
        Ok(created) => created,
        Err(errno) => return Ok(Err(errno)),
    };
    let mut target = File::from(target);
    let filled = std::io::copy(&mut source, &mut target)
        .map_err(|error| failed(error.into()))
        .and_then(|_| set_owner_and_mode(target.as_fd(), &stat).map_err(|errno| failed(errno.into())))
        .and_then(|()| target.sync_all().map_err(|error| failed(error.into())));
    let named = filled.map(|()| match &temporary {
        Some(temporary) => {
            rustix::fs::renameat_with(directory, temporary, directory, name, RenameFlags::NOREPLACE)
        }
        None => rustix::fs::linkat(CWD, link_of(target.as_fd()), directory, name, AtFlags::SYMLINK_FOLLOW),
    });
    match (&named, temporary) {
        (Ok(Ok(())), _) => rustix::fs::fsync(directory).map_err(|errno| failed(errno.into()))?,
        (_, Some(temporary)) => {
            // An error of the removal is ignored, because the first error is reported.
            let _ = rustix::fs::unlinkat(directory, temporary, AtFlags::empty());
        }
        _ => {}
    }
    Ok(named?)
}

/// Creates a file without a name. If the file system cannot do this, creates a file with a temporary name.
fn create(directory: BorrowedFd<'_>) -> std::result::Result<(OwnedFd, Option<OsString>), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags | OFlags::TMPFILE, PRIVATE) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
        created => return created.map(|file| (file, None)),
    }
    let name = OsString::from(format!(".undying-put-back-{}", std::process::id()));
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, &name, flags, PRIVATE).map(|file| (file, Some(name)))
}

/// Sets the owner and then the mode. If the owner cannot be set, the copy gets no set-user-ID and no set-group-ID bit,
/// because these bits would give the rights of another user.
fn set_owner_and_mode(file: BorrowedFd<'_>, of: &Stat) -> std::result::Result<(), Errno> {
    let (user, group) = (Uid::from_raw(of.st_uid), Gid::from_raw(of.st_gid));
    let is_owned = rustix::fs::fchown(file, Some(user), Some(group)).is_ok();
    let removed = if is_owned { 0 } else { SET_ID };
    rustix::fs::fchmod(file, Mode::from_raw_mode(of.st_mode & PERMISSIONS & !removed))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::rc::Rc;

    use model::ByteCount;
    use tempfile::TempDir;

    use super::*;

    const OWNER: u32 = 65_534;

    /// Creates a moved file, and a directory on another file system.
    fn moved() -> Option<(TempDir, Found, TempDir)> {
        let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
            println!("unsupported: /dev/shm");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let (to, path) = (folder.path().join("1"), elsewhere.path().join("file"));
        fs::write(&to, "content").unwrap();
        let directory = Rc::new(open_directory(&folder.path().canonicalize().unwrap()).unwrap());
        let moved = MovedAside { path, to, bytes: ByteCount(7) };
        let found = Found { directory, name: "1".to_owned(), home: None, moved };
        Some((folder, found, elsewhere))
    }

    #[test]
    fn a_copy_has_owner_and_mode_and_replaces_nothing() {
        let Some((_folder, found, elsewhere)) = moved() else { return };
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(&found.moved.to, Some(OWNER), Some(OWNER)).unwrap();
        }
        fs::set_permissions(&found.moved.to, fs::Permissions::from_mode(0o4750)).unwrap();
        let directory = open_directory(elsewhere.path()).unwrap();
        copy(&found, directory.as_fd(), OsStr::new("file")).unwrap().unwrap();
        let made = fs::metadata(&found.moved.path).unwrap();
        assert_eq!(made.mode() & PERMISSIONS, 0o4750);
        assert!(!is_root || (made.uid(), made.gid()) == (OWNER, OWNER));
        assert_eq!(fs::read(&found.moved.path).unwrap(), b"content");
        fs::write(&found.moved.path, "another").unwrap();
        assert_eq!(copy(&found, directory.as_fd(), OsStr::new("file")).unwrap(), Err(Errno::EXIST));
        assert_eq!(fs::read(&found.moved.path).unwrap(), b"another");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1, "no temporary file remains");
    }

    #[test]
    fn a_copy_whose_owner_cannot_be_set_gives_no_rights() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let Some((_folder, found, elsewhere)) = moved() else { return };
        fs::set_permissions(&found.moved.to, fs::Permissions::from_mode(0o6755)).unwrap();
        chown(elsewhere.path(), Some(OWNER), Some(OWNER)).unwrap();
        let directory = open_directory(elsewhere.path()).unwrap();
        let stat = rustix::fs::statat(&found.directory, "1", AtFlags::empty()).unwrap();
        let rights = FileRights { user: OWNER, group: OWNER, supplementary: Vec::new(), effective: 0 };
        let mode = file_rights::run_with(&rights, || {
            let (file, name) = create(directory.as_fd()).unwrap();
            assert_eq!(name, None, "a tmpfs creates files without a name");
            set_owner_and_mode(file.as_fd(), &stat).unwrap();
            rustix::fs::fstat(file).unwrap().st_mode
        });
        assert_eq!(mode.unwrap() & PERMISSIONS, 0o755);
    }
}
