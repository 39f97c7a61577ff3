//! Opens files by recorded paths during a restore.
//!
//! The *restorer* can have more rights than the restored program. At a recorded path, there may now be a file that the
//! program had no right to open. The *holders* of a file are the processes of the program that had the file open at the
//! checkpoint. The *identity* of a file is its device, inode, type and birth time. A file with the recorded identity is
//! opened with the rights of the restorer, because the holders had this file open. A file with another identity is
//! opened with the rights of the holders. A restore thus gives the program no additional right.
//!
//! Owns: the choice of the rights with which a recorded path is opened.
//! Invariants: no symbolic link is followed, because a recorded path contains no symbolic link. A path is resolved to
//! an O_PATH descriptor. The descriptor is inspected, and then the same descriptor is reopened. So no other file can
//! be opened than the inspected file.
//! Does not: decide whether a file with another identity is acceptable. Each kind decides this.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno as E;
use sys::file_rights::{self, FileRights};
use sys::{Errno, Error};

use crate::error::ResourceError;
use crate::support::finding::{Handle, by_identity};
use crate::support::identity::Identity;
use crate::support::opening::{directory_above, may_read, may_write, own_link};

/// Opens files with the rights of their holders. The default opener uses only the rights of the restorer.
#[derive(Clone, Default, Debug)]
pub struct Opener {
    /// The rights of the holders, without duplicates. A holder with all rights of the restorer is left out.
    others: Arc<[FileRights]>,
    /// Files of the program that the restorer has kept open since the checkpoint.
    held: Arc<[Arc<OwnedFd>]>,
    /// Whether a file that the program writes is the file at its path, even if the recorded file now has another name.
    prefers_paths: bool,
    /// Whether each file must have a name.
    needs_names: bool,
}

/// The reason why a recorded path was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("its path now contains a symbolic link that was not there at the checkpoint")]
    Link,
    #[error("its path now leads to another file, which the program has no permission to open: {0}")]
    Denied(Errno),
    #[error("it cannot be opened: {0}")]
    Failed(Errno),
    #[error("it was replaced by another file during the open")]
    Replaced,
    #[error("it cannot be inspected: {0}")]
    Unknown(#[from] Error),
}

impl Refusal {
    /// Returns the error of the restore. `whose` describes how the program uses the path. If neither a symbolic link
    /// nor a missing right is the reason of the refusal, the error proposes the fix `usual`.
    pub(crate) fn of(&self, path: &Path, whose: &str, usual: &str) -> ResourceError {
        if let Self::Failed(errno) | Self::Unknown(Error { errno, .. }) = self
            && errno.may_pass()
        {
            return Error::path("open", path, *errno).into();
        }
        let fix = match self {
            Self::Link => "replace the symbolic link by the file itself, then restore again",
            Self::Denied(_) => {
                "put back the file of the checkpoint, or permit the program's user to open this one"
            }
            Self::Failed(_) | Self::Replaced | Self::Unknown(_) => usual,
        };
        ResourceError::File {
            path: path.display().to_string(),
            why: format!("{whose}, and {self}"),
            fix: fix.to_owned(),
        }
    }
}

/// A file at a recorded path, as an O_PATH descriptor.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The recorded path; `None` if the file was not found by its path.
    path: Option<&'a Path>,
    file: OwnedFd,
    identity: Identity,
    others: &'a [FileRights],
}

impl Opener {
    /// Creates an opener with the rights of `holders`. A file is opened only if the rights of every holder permit the
    /// open.
    ///
    /// # Errors
    ///
    /// Returns an error if the restorer's own rights cannot be read.
    pub fn new(holders: impl IntoIterator<Item = FileRights>) -> sys::Result<Self> {
        Self::default().with(holders)
    }

    /// Returns an opener with the rights of `holders`, and with the other settings of this opener.
    ///
    /// # Errors
    ///
    /// Returns an error if the restorer's own rights cannot be read.
    pub fn with(self, holders: impl IntoIterator<Item = FileRights>) -> sys::Result<Self> {
        let own = file_rights::own()?;
        let is_less = |rights: &FileRights| {
            (rights.user, rights.group, &rights.supplementary) != (own.user, own.group, &own.supplementary)
                || own.effective & !rights.effective != 0
        };
        let mut others: Vec<FileRights> = holders.into_iter().filter(is_less).collect();
        others.sort_unstable();
        others.dedup();
        Ok(Self { others: others.into(), ..self })
    }

    /// Returns an opener that also finds the `held` files, which the restorer has kept open since the checkpoint.
    #[must_use]
    pub fn holding(self, held: Arc<[Arc<OwnedFd>]>) -> Self {
        Self { held, ..self }
    }

    /// Returns an opener that opens the files at the paths of files that the program writes, as the operator has asked.
    #[must_use]
    pub fn preferring_paths(self, prefers_paths: bool) -> Self {
        Self { prefers_paths, ..self }
    }

    /// Returns an opener for the check before a program is killed. A file without a name does not outlive the program,
    /// so it is not found.
    #[must_use]
    pub fn needing_names(self, needs_names: bool) -> Self {
        Self { needs_names, ..self }
    }

    /// Runs a system call that uses no path with the rights of the holders. With several holders, `call` runs once for
    /// each holder, and must succeed each time. Returns the last result.
    pub(crate) fn run<Output: Send>(
        &self,
        call: impl Fn() -> sys::Result<Output> + Sync,
    ) -> sys::Result<sys::Result<Output>> {
        let Some((last, rest)) = self.others.split_last() else { return Ok(call()) };
        for rights in rest {
            if let Err(error) = file_rights::run_with(rights, || call().map(drop))? {
                return Ok(Err(error));
            }
        }
        file_rights::run_with(last, &call)
    }

    /// Resolves a recorded path. `recorded` is the recorded identity of the file. If `recorded` is `None`, the file
    /// is opened with the rights of the holders.
    pub(crate) fn find<'a>(
        &'a self,
        path: &'a Path,
        recorded: Option<Identity>,
    ) -> Result<Found<'a>, Refusal> {
        let file = resolve(path).map_err(own_refusal)?;
        let identity = Identity::of(&file)?;
        if identity.is_link() && !recorded.is_some_and(|recorded| recorded.is_link()) {
            return Err(Refusal::Link);
        }
        let is_recorded = recorded.is_some_and(|recorded| recorded.is_that_of(&identity));
        if is_recorded || self.others.is_empty() {
            return Ok(Found { path: Some(path), file, identity, others: &[] });
        }
        for rights in self.others.iter() {
            let theirs = file_rights::run_with(rights, || resolve(path))?.map_err(holder_refusal)?;
            if Identity::of(&theirs)? != identity {
                return Err(Refusal::Replaced);
            }
        }
        Ok(Found { path: Some(path), file, identity, others: &self.others })
    }

    /// Resolves a recorded path like [`Self::find`]. If the path leads to no file or to another file, looks for the
    /// recorded file by its identity: the bare program would still have this file. A file that the program `writes` is
    /// not found without a name.
    pub(crate) fn find_anywhere<'a>(
        &'a self,
        path: &'a Path,
        recorded: Option<Identity>,
        handle: Option<&Handle>,
        writes: bool,
    ) -> Result<Found<'a>, Refusal> {
        let found = self.find(path, recorded);
        let Some(wanted) = recorded else { return found };
        let is_right = |found: &Found<'_>| found.is(&wanted) || (writes && self.prefers_paths);
        if found.as_ref().is_ok_and(is_right) {
            return found;
        }
        let has_name = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        let moved = by_identity(path, wanted, handle, &self.held);
        match moved.filter(|file| !(writes || self.needs_names) || has_name(file)) {
            Some(file) => self.adopt(file, recorded),
            None => found,
        }
    }

    /// Wraps a file that was not found by its path. `file` may be an O_PATH descriptor.
    pub(crate) fn adopt(&self, file: OwnedFd, recorded: Option<Identity>) -> Result<Found<'_>, Refusal> {
        let identity = Identity::of(&file)?;
        let is_recorded = recorded.is_some_and(|recorded| recorded.is_that_of(&identity));
        let others = if is_recorded { &[][..] } else { &self.others };
        Ok(Found { path: None, file, identity, others })
    }
}

/// Returns an O_PATH descriptor of the nearest directory above a recorded path that exists. Follows no symbolic link.
pub(crate) fn nearest_directory(path: &Path) -> Result<OwnedFd, Refusal> {
    directory_above(path).map_err(own_refusal)
}

impl Found<'_> {
    /// Reports whether the file has the recorded identity.
    pub(crate) fn is(&self, recorded: &Identity) -> bool {
        recorded.is_that_of(&self.identity)
    }

    /// Returns the stat of the file.
    pub(crate) fn stat(&self) -> Result<Stat, Refusal> {
        rustix::fs::fstat(&self.file).map_err(|errno| Refusal::Failed(errno.into()))
    }

    /// Returns the O_PATH descriptor of the file, which needs no right on the file.
    pub(crate) fn into_path_descriptor(self) -> OwnedFd {
        self.file
    }

    /// Opens the file. The new open file description has all `flags`, also O_NOFOLLOW and O_DIRECTORY.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Refusal> {
        let Some((first, rest)) = self.others.split_first() else {
            return self.open_as_ourselves(flags).map_err(own_refusal)?;
        };
        let opened =
            file_rights::run_with(first, || self.open_as_ourselves(flags))?.map_err(holder_refusal)??;
        for rights in rest {
            self.check(rights, flags)?;
        }
        Ok(opened)
    }

    /// Runs a system call on the file with the rights of the holders. `call` receives a path in `/proc/self/fd`,
    /// which always leads to the inspected file. With several holders, `call` runs once for each holder, and must
    /// succeed each time. Returns the last result.
    pub(crate) fn act<Output: Send>(
        &self,
        call: impl Fn(&str) -> Result<Output, E> + Sync,
    ) -> Result<Output, Refusal> {
        let link = own_link(&self.file);
        let Some((last, rest)) = self.others.split_last() else {
            return call(&link).map_err(own_refusal);
        };
        for rights in rest {
            file_rights::run_with(rights, || call(&link).map(drop))?.map_err(holder_refusal)?;
        }
        file_rights::run_with(last, || call(&link))?.map_err(holder_refusal)
    }

    fn open_as_ourselves(&self, flags: OFlags) -> Result<Result<OwnedFd, Refusal>, E> {
        let Some(path) = self.path.filter(|_| flags.contains(OFlags::NOFOLLOW)) else {
            let flags = flags - OFlags::NOFOLLOW;
            return rustix::fs::open(own_link(&self.file), flags, Mode::empty()).map(Ok);
        };
        // The new description must have O_NOFOLLOW. An open of the link in /proc with O_NOFOLLOW fails, because the
        // link is a symbolic link. So the recorded path is opened, and the identity of the opened file is compared.
        let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        Ok(match Identity::of(&file) {
            Ok(identity) if identity == self.identity => Ok(file),
            Ok(_) => Err(Refusal::Replaced),
            Err(error) => Err(error.into()),
        })
    }

    /// Checks that `rights` permit an open with `flags`. The file is not opened, because it is already open with the
    /// rights of the first holder. If the file is a named pipe, its other end would detect a second open.
    fn check(&self, rights: &FileRights, flags: OFlags) -> Result<(), Refusal> {
        if flags.contains(OFlags::PATH) {
            return Ok(());
        }
        let (reads, writes) = (may_read(flags.bits()), may_write(flags.bits()));
        let link = own_link(&self.file);
        let answer =
            file_rights::run_with(rights, || file_rights::may_open(Path::new(&link), reads, writes))?;
        answer.map_err(|error| Refusal::Denied(error.errno))
    }
}

impl AsFd for Found<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Resolves a path to an O_PATH descriptor. If the last component of the path is a symbolic link, the descriptor
/// refers to the link itself. A symbolic link in another component is refused.
fn resolve(path: &Path) -> Result<OwnedFd, E> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn own_refusal(errno: E) -> Refusal {
    if errno == E::LOOP { Refusal::Link } else { Refusal::Failed(errno.into()) }
}

fn holder_refusal(errno: E) -> Refusal {
    if errno == E::LOOP { Refusal::Link } else { Refusal::Denied(errno.into()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

    /// Creates a directory that every user may search. Returns the directory and its canonical path.
    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    fn file(path: &Path, mode: u32) -> Identity {
        fs::write(path, "text").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        Identity::of(fs::File::open(path).unwrap()).unwrap()
    }

    fn open(opener: &Opener, path: &Path, recorded: Identity) -> Result<OwnedFd, Refusal> {
        opener.find(path, Some(recorded))?.open(READ_WRITE)
    }

    #[test]
    fn a_symbolic_link_is_never_followed() {
        let (_folder, folder) = folder();
        let secret = file(&folder.join("secret"), 0o600);
        symlink(folder.join("secret"), folder.join("link")).unwrap();
        symlink(&folder, folder.join("linked")).unwrap();
        for path in [folder.join("link"), folder.join("linked/secret")] {
            let refused = open(&Opener::default(), &path, secret);
            assert!(matches!(refused, Err(Refusal::Link)), "{refused:?}");
        }
        drop(open(&Opener::default(), &folder.join("secret"), secret).unwrap());
        let home = nearest_directory(&folder.join("linked/gone/file")).unwrap();
        assert_eq!(fs::read_link(own_link(&home)).unwrap(), folder);
    }

    #[test]
    fn another_file_is_opened_with_the_rights_of_all_holders() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let (_folder, folder) = folder();
        let (path, public) = (folder.join("file"), folder.join("public"));
        let was = file(&path, 0o600);
        file(&public, 0o666);
        let user = |user| FileRights { user, group: user, supplementary: Vec::new(), effective: 0 };
        let own = file_rights::own().unwrap();
        let openers = [
            Opener::new([user(65534)]).unwrap(),
            Opener::new([own.clone(), user(65534)]).unwrap(),
            Opener::new([FileRights { effective: 0, ..user(0) }, user(65534), user(65533)]).unwrap(),
        ];
        for opener in &openers {
            drop(open(opener, &path, was).expect("they had this file open"));
            drop(open(opener, &public, was).expect("they may open this file"));
        }
        fs::rename(&path, folder.join("old")).unwrap();
        file(&path, 0o600);
        for opener in &openers {
            let refused = open(opener, &path, was);
            assert!(matches!(refused, Err(Refusal::Denied(_))), "{refused:?}");
            let unknown = opener.find(&path, None).unwrap().open(OFlags::RDONLY);
            assert!(matches!(unknown, Err(Refusal::Denied(_))), "{unknown:?}");
        }
        drop(open(&Opener::new([own]).unwrap(), &path, was).expect("root may open any file"));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let hidden = openers[0].find(&public, None);
        assert!(matches!(hidden, Err(Refusal::Denied(_))), "{hidden:?}");
    }

    #[test]
    fn the_inspected_file_is_the_opened_one() {
        let (_folder, folder) = folder();
        let path = folder.join("file");
        let was = file(&path, 0o600);
        let opener = Opener::default();
        let found = opener.find(&path, Some(was)).unwrap();
        fs::rename(&path, folder.join("old")).unwrap();
        file(&path, 0o600);
        let opened = found.open(READ_WRITE).unwrap();
        assert!(was.is_that_of(&Identity::of(&opened).unwrap()));
        let direct = found.open(READ_WRITE | OFlags::NOFOLLOW);
        assert!(matches!(direct, Err(Refusal::Replaced)), "{direct:?}");
    }
}
