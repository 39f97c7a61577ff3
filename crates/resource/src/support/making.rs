//! Creates files that no other user can replace during the creation.
//!
//! The restorer creates files in directories to which other users may write. Such a user could replace a new file
//! before the restorer sets its owner and mode. The restorer would then change the wrong file. So the restorer creates
//! the file in a *private directory*, sets owner and mode, and moves the file to its final name.
//!
//! Owns: private directories, the owner and mode of the files that are created there, and the move to the final name.
//! Invariants: a private directory belongs to the restorer, has mode 0700 and an unguessable name. All operations on
//! the directory use a descriptor, so that another user may rename the directory without harm. The move to the final
//! name replaces no file. When a private directory is dropped, the directory and its content are removed.
//! Does not: choose names, or follow symbolic links.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, chmod, chownat, fstat,
    linkat, mkdirat, openat, openat2, renameat_with, unlinkat,
};
use rustix::io::Errno as E;
use sys::{Error, Result};

use super::opening::own_link;
use super::ownership::owner;

/// The maximum number of random names that are tried. The first name is free, unless another process guesses the
/// name.
const NAMES_TRIED_MAX: u32 = 16;
/// The maximum depth of directories in a private directory. The deepest directories are the components of a socket
/// address. The address has at most 108 bytes, and each component takes at least two bytes.
const DEPTH_MAX: u32 = 64;
const PERMISSIONS: u32 = 0o7777;
const ENTER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NAME_FILE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The owner and the permissions of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership {
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Ownership {
    /// Sets owner and mode of a file through a descriptor. An O_PATH descriptor is enough.
    pub(crate) fn give(self, file: BorrowedFd<'_>) -> std::result::Result<(), E> {
        let (user, group) = owner(self.user, self.group).map_err(|_| E::INVAL)?;
        // The owner is set before the mode, because a change of owner removes set-user-ID bits.
        chownat(file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        chmod(own_link(file), Mode::from_raw_mode(self.mode))
    }
}

/// A directory that only the restorer can enter.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    /// The directory that contains the private directory.
    parent: OwnedFd,
    name: String,
    directory: OwnedFd,
    /// The path of the directory, for error messages.
    shown: PathBuf,
    /// `true` if the directory has passed `check`. A directory that has not passed is not removed.
    is_ours: bool,
}

impl PrivateDirectory {
    /// Creates a private directory in the directory `parent`, whose path is `path`.
    pub(crate) fn new(parent: OwnedFd, path: &Path) -> Result<Self> {
        let failed = |errno: E| Error::path("create a private directory in", path, errno);
        let mut tried = 0;
        let name = loop {
            let name = random_name().map_err(failed)?;
            match mkdirat(&parent, &name, Mode::RWXU) {
                Err(E::EXIST) if tried < NAMES_TRIED_MAX => tried += 1,
                outcome => break outcome.map(|()| name).map_err(failed)?,
            }
        };
        let shown = path.join(&name);
        let directory = openat(&parent, &name, ENTER, Mode::empty()).map_err(failed)?;
        let mut made = Self { parent, name, directory, shown, is_ours: false };
        made.check().map_err(failed)?;
        made.is_ours = true;
        Ok(made)
    }

    /// Creates a private directory in a directory above `path`: in the nearest directory that is writable, and whose
    /// path contains no symbolic link.
    pub(crate) fn near(path: &Path) -> Result<Self> {
        let mut outcome = Err(Error::path("find a directory above", path, E::NOENT));
        for above in path.ancestors().skip(1) {
            let Ok(parent) = open_directory(above) else { continue };
            outcome = Self::new(parent, above);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Checks that the directory belongs to the restorer, is closed to other users and is empty. The check is needed,
    /// because the owner of the parent may have replaced the new directory.
    fn check(&self) -> std::result::Result<(), E> {
        let stat = fstat(&self.directory)?;
        // A directory inherits the set-group-ID bit from its parent.
        let is_closed = stat.st_mode & PERMISSIONS & !Mode::SGID.bits() == Mode::RWXU.bits();
        if stat.st_uid != rustix::process::geteuid().as_raw() || !is_closed {
            return Err(E::PERM);
        }
        let listed = openat(&self.directory, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let is_own = |name: &CStr| matches!(name.to_bytes(), b"." | b"..");
        for entry in Dir::read_from(&listed)? {
            if !is_own(entry?.file_name()) {
                return Err(E::NOTEMPTY);
            }
        }
        Ok(())
    }

    /// Returns the directory that contains the private directory (O_PATH).
    pub(crate) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Returns the path of the directory that contains the private directory.
    pub(crate) fn parent_path(&self) -> &Path {
        self.shown.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the private directory itself (O_PATH).
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Creates a file in the private directory. `make` receives the directory and the name, and makes the system call
    /// that creates the file. Returns an O_PATH descriptor.
    pub(crate) fn make(
        &self,
        name: &str,
        make: impl FnOnce(BorrowedFd<'_>, &str) -> std::result::Result<(), E>,
    ) -> Result<OwnedFd> {
        make(self.directory.as_fd(), name)
            .map_err(|errno| Error::path("create", self.shown.join(name), errno))?;
        self.open(Path::new(name))
    }

    /// Opens a file in the private directory by name. Returns an O_PATH descriptor.
    pub(crate) fn open(&self, name: &Path) -> Result<OwnedFd> {
        openat2(&self.directory, name, NAME_FILE, Mode::empty(), PLAIN | ResolveFlags::BENEATH)
            .map_err(|errno| Error::path("open", self.shown.join(name), errno))
    }

    /// Moves a file from the private directory to a name in the parent directory. Returns EEXIST if the name is
    /// taken.
    pub(crate) fn move_out(&self, from: &Path, to: &OsStr) -> std::result::Result<(), E> {
        move_file((self.directory.as_fd(), from.as_os_str()), (self.parent.as_fd(), to))
    }

    /// Moves a file to the name `last` in the parent directory, and then removes this name. Afterwards, `/proc` shows
    /// the name `last` in the parent directory, with the suffix ` (deleted)`. If the move fails because the name is
    /// taken, the file is only removed from the private directory.
    pub(crate) fn unlink_as(&self, from: &Path, last: &OsStr, flags: AtFlags) -> std::result::Result<(), E> {
        match self.move_out(from, last) {
            Ok(()) => unlinkat(&self.parent, last, flags),
            Err(_) => unlinkat(&self.directory, from, flags),
        }
    }

    /// Moves a file of the parent directory to a name in the private directory. The caller must check that the moved
    /// file is the wanted file, because another process may have replaced the wanted file.
    pub(crate) fn move_in(&self, from: &OsStr, to: &str) -> std::result::Result<(), E> {
        move_file((self.parent.as_fd(), from), (self.directory.as_fd(), OsStr::new(to)))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        clear(self.directory.as_fd(), DEPTH_MAX);
        // If the owner of the parent has renamed the directory, this call fails, and the empty directory remains.
        let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// A file that has its final name while the restore can still fail. A call of `keep` makes the name permanent.
/// Without this call, drop takes the name away, and gives the name back to the old file that had the name before.
#[derive(Debug)]
pub(crate) struct Placed {
    private: PrivateDirectory,
    name: OsString,
    file: OwnedFd,
    /// `true` if the old file is inside the private directory.
    has_old: bool,
    is_kept: bool,
}

/// Names inside a private directory.
const OLD: &str = ".old";
const UNDONE: &str = ".undone";

impl Placed {
    /// Moves the file `from` of a private directory to `name` in the parent directory. If an old file has this name,
    /// the old file is moved into the private directory. If `may_replace` forbids this, returns its error. Fails with
    /// EEXIST if another process gives the name to another file at the same time.
    pub(crate) fn new(
        private: PrivateDirectory,
        from: &Path,
        name: &OsStr,
        may_replace: impl FnOnce(&OwnedFd) -> crate::error::Result<()>,
    ) -> crate::error::Result<Self> {
        let shown = private.parent_path().join(name);
        let failed = |errno: E| Error::path("move a new file to", &shown, errno);
        let file = private.open(from)?;
        let mut placed = Self { private, name: name.to_owned(), file, has_old: false, is_kept: true };
        match openat(&placed.private.parent, name, NAME_FILE, Mode::empty()) {
            Ok(old) => {
                may_replace(&old)?;
                placed.take(old.as_fd(), OLD).map_err(failed)?;
                placed.has_old = true;
            }
            Err(E::NOENT) => {}
            Err(errno) => return Err(failed(errno).into()),
        }
        if let Err(errno) = placed.private.move_out(from, name) {
            placed.give_back();
            return Err(failed(errno).into());
        }
        placed.is_kept = false;
        Ok(placed)
    }

    /// Keeps the name. Called when the restore has succeeded.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Moves the file that has the name into the private directory. If this file is not `wanted`, moves the file back
    /// and returns EEXIST.
    fn take(&self, wanted: BorrowedFd<'_>, to: &str) -> std::result::Result<(), E> {
        self.private.move_in(&self.name, to)?;
        let taken = self.private.open(Path::new(to)).map_err(|_| E::NOENT)?;
        if is_same(&taken, wanted) {
            return Ok(());
        }
        // The owner of the parent directory has replaced the file.
        let _ = self.private.move_out(Path::new(to), &self.name);
        Err(E::EXIST)
    }

    fn give_back(&self) {
        if self.has_old {
            // If another file has the name now, this move fails, and the old file is lost.
            let _ = self.private.move_out(Path::new(OLD), &self.name);
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if !self.is_kept && self.take(self.file.as_fd(), UNDONE).is_ok() {
            self.give_back();
        }
    }
}

fn is_same(one: impl AsFd, other: impl AsFd) -> bool {
    let identity = |file: BorrowedFd<'_>| fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    identity(one.as_fd()).is_some_and(|one| Some(one) == identity(other.as_fd()))
}

/// The resolve flags with which no component of a path may be a symbolic link.
const PLAIN: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a directory by a path without symbolic links. Returns an O_PATH descriptor.
pub(crate) fn open_directory(path: &Path) -> std::result::Result<OwnedFd, E> {
    openat2(CWD, path, ENTER, Mode::empty(), PLAIN)
}

/// Creates a file that has no name afterwards. Creates the file in a private directory near its last name `last`.
/// Returns an O_PATH descriptor.
pub(crate) fn make_nameless(
    last: &Path,
    ownership: Ownership,
    make: impl FnOnce(BorrowedFd<'_>, &str) -> std::result::Result<(), E>,
) -> Result<OwnedFd> {
    let private = PrivateDirectory::near(last)?;
    let made = private.make("nameless", make)?;
    ownership.give(made.as_fd()).map_err(|errno| Error::path("set owner and mode of", last, errno))?;
    Ok(made)
}

/// Reports whether the file of a descriptor has this type.
pub(crate) fn is_a(file: BorrowedFd<'_>, format: FileType) -> bool {
    fstat(file).is_ok_and(|stat: Stat| FileType::from_raw_mode(stat.st_mode) == format)
}

fn random_name() -> std::result::Result<String, E> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".undying-{:032x}", u128::from_ne_bytes(random)))
}

/// Renames a file without replacing another file. If the file system does not support RENAME_NOREPLACE, links the new
/// name and unlinks the old name.
fn move_file(from: (BorrowedFd<'_>, &OsStr), to: (BorrowedFd<'_>, &OsStr)) -> std::result::Result<(), E> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        Err(E::INVAL | E::NOSYS | E::OPNOTSUPP) => {
            linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?;
            unlinkat(from.0, from.1, AtFlags::empty())
        }
        outcome => outcome,
    }
}

/// Removes the content of a private directory.
fn clear(directory: BorrowedFd<'_>, depth: u32) {
    let Ok(entries) = openat(directory, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&entries) else { return };
    for entry in entries.flatten() {
        remove_entry(directory, entry.file_name(), depth);
    }
}

fn remove_entry(directory: BorrowedFd<'_>, name: &CStr, depth: u32) {
    if matches!(name.to_bytes(), b"." | b"..") || unlinkat(directory, name, AtFlags::empty()).is_ok() {
        return;
    }
    if let Ok(below) = openat(directory, name, ENTER, Mode::empty())
        && depth > 0
    {
        clear(below.as_fd(), depth - 1);
    }
    let _ = unlinkat(directory, name, AtFlags::REMOVEDIR);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use rustix::fs::mkfifoat;

    use super::*;

    fn private_in(folder: &tempfile::TempDir) -> PrivateDirectory {
        let path = folder.path().canonicalize().unwrap();
        PrivateDirectory::new(open_directory(&path).unwrap(), &path).unwrap()
    }

    fn fifo(directory: BorrowedFd<'_>, name: &str) -> std::result::Result<(), E> {
        mkfifoat(directory, name, Mode::RUSR)
    }

    #[test]
    fn a_created_file_gets_owner_and_mode_although_its_names_lead_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        fs::write(&precious, "").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
        let private = private_in(&folder);
        assert_eq!(fs::metadata(folder.path().join(&private.name)).unwrap().mode() & PERMISSIONS, 0o700);
        let made = private.make("file", fifo).unwrap();
        // The owner of the parent replaces the directory by another directory, in which the name is a symbolic link.
        let moved = folder.path().join("moved");
        fs::rename(folder.path().join(&private.name), &moved).unwrap();
        fs::create_dir(folder.path().join(&private.name)).unwrap();
        let planted = folder.path().join(&private.name).join("file");
        symlink(&precious, &planted).unwrap();
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ownership { mode: 0o666, user, group }.give(made.as_fd()).unwrap();
        assert_eq!(fs::metadata(&precious).unwrap().mode() & PERMISSIONS, 0o600);
        assert_eq!(fs::metadata(moved.join("file")).unwrap().mode() & PERMISSIONS, 0o666);
        drop(private);
        assert!(planted.is_symlink() && precious.exists());
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_of_another_user_is_never_used() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        let private = private_in(&folder);
        chownat(private.directory(), "", Some(rustix::fs::Uid::from_raw(65_534)), None, AtFlags::EMPTY_PATH)
            .unwrap();
        assert_eq!(private.check(), Err(E::PERM));
    }

    #[test]
    fn a_directory_that_another_program_has_created_is_neither_used_nor_changed() {
        let folder = tempfile::tempdir().unwrap();
        let mut private = private_in(&folder);
        let own = folder.path().join(&private.name);
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(private.check(), Err(E::PERM));
        assert_eq!(fs::metadata(&own).unwrap().mode() & PERMISSIONS, 0o755);
        fs::set_permissions(&own, fs::Permissions::from_mode(0o2700)).unwrap();
        assert_eq!(private.check(), Ok(()));
        fs::write(own.join("precious"), "").unwrap();
        assert_eq!(private.check(), Err(E::NOTEMPTY));
        private.is_ours = false;
        drop(private);
        assert!(own.join("precious").exists());
    }

    #[test]
    fn a_move_replaces_nothing_and_leaves_no_directory() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::write(&taken, "another's").unwrap();
        let private = private_in(&folder);
        private.make("file", fifo).unwrap();
        assert_eq!(private.move_out(Path::new("file"), OsStr::new("taken")), Err(E::EXIST));
        private.move_out(Path::new("file"), OsStr::new("free")).unwrap();
        assert_eq!(fs::read_to_string(&taken).unwrap(), "another's");
        private.move_in(OsStr::new("taken"), "old").unwrap();
        assert!(!taken.exists());
        private.make("second", fifo).unwrap();
        mkdirat(private.directory(), "deep", Mode::RWXU).unwrap();
        mkdirat(private.directory(), "deep/deeper", Mode::RWXU).unwrap();
        drop(private);
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().flatten().map(|one| one.file_name()).collect();
        assert_eq!(left, ["free"]);
    }

    #[test]
    fn a_path_through_a_symbolic_link_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        fs::create_dir(folder.join("real")).unwrap();
        symlink("real", folder.join("link")).unwrap();
        assert!(open_directory(&folder.join("link")).is_err());
        assert!(open_directory(&folder.join("real")).is_ok());
        let private = PrivateDirectory::near(&folder.join("link/gone/file")).unwrap();
        assert_eq!(private.shown.parent(), Some(folder.as_path()));
    }
}
