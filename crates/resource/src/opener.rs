//! Opening files by recorded paths for the processes that held them.
//!
//! Owns: the decision with which rights a recorded path is opened.
//! Invariants: no symbolic link is followed, since a recorded path has none. The file that was recorded, by device,
//! inode, type and birth, is opened with the restorer's rights: its holders had it already. Any other file is
//! opened with the rights of its holders, so that a restore adds no right to theirs. What is examined and what is
//! opened is one file: the path is resolved to an O_PATH descriptor, which is reopened.
//! Does not: say which other files are acceptable; each kind does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno as E;
use sys::file_rights::{self, FileRights};
use sys::{Errno, Error};

use crate::error::ResourceError;
use crate::support::identity::Identity;
use crate::support::opening::{may_read, may_write, own_link};

/// Opens files for the processes that hold them. The default one acts for the restorer itself.
#[derive(Clone, Default, Debug)]
pub struct Opener {
    /// Those of the holders, each once, without those that have all of the restorer's.
    others: Arc<[FileRights]>,
}

/// Why a recorded path was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("a symbolic link is in its path now; there was none at the checkpoint")]
    Link,
    #[error("another file has its path now, which the program itself may not open: {0}")]
    Denied(Errno),
    #[error("it cannot be opened: {0}")]
    Failed(Errno),
    #[error("it was exchanged for another file while it was opened")]
    Exchanged,
    #[error("it cannot be examined: {0}")]
    Unknown(#[from] Error),
}

impl Refusal {
    /// The refusal of a restore; `whose` tells what the path is to the program, and `usual` what helps if the path
    /// simply leads nowhere.
    pub(crate) fn of(&self, path: &Path, whose: &str, usual: &str) -> ResourceError {
        let fix = match self {
            Self::Link => "put the file itself in the place of the symbolic link",
            Self::Denied(_) => {
                "bring back the file of the checkpoint, or let the program's user open this one"
            }
            Self::Failed(_) | Self::Exchanged | Self::Unknown(_) => usual,
        };
        ResourceError::File {
            path: path.display().to_string(),
            why: format!("{whose}, and {self}"),
            fix: fix.to_owned(),
        }
    }
}

/// A file that a recorded path leads to. It is not open yet, only named (O_PATH).
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// `None` where it was found by other means than its path.
    path: Option<&'a Path>,
    file: OwnedFd,
    identity: Identity,
    others: &'a [FileRights],
}

impl Opener {
    /// Acts for processes with these rights. A file is opened for all of them or not at all.
    ///
    /// # Errors
    ///
    /// What the kernel says of the restorer's own rights.
    pub fn new(holders: impl IntoIterator<Item = FileRights>) -> sys::Result<Self> {
        let own = file_rights::own()?;
        let is_less = |rights: &FileRights| {
            (rights.user, rights.group, &rights.supplementary) != (own.user, own.group, &own.supplementary)
                || own.effective & !rights.effective != 0
        };
        let mut others: Vec<FileRights> = holders.into_iter().filter(is_less).collect();
        others.sort_unstable();
        others.dedup();
        Ok(Self { others: others.into() })
    }

    /// Resolves a recorded path. `recorded` is `None` where the record does not say which file it was: then the
    /// holders' rights decide.
    pub(crate) fn find<'a>(
        &'a self,
        path: &'a Path,
        recorded: Option<Identity>,
    ) -> Result<Found<'a>, Refusal> {
        let file = resolve(path).map_err(refusal_of_own)?;
        let identity = Identity::of(&file)?;
        if identity.is_link() && !recorded.is_some_and(|recorded| recorded.is_link()) {
            return Err(Refusal::Link);
        }
        let is_recorded = recorded.is_some_and(|recorded| recorded.is_that_of(&identity));
        if is_recorded || self.others.is_empty() {
            return Ok(Found { path: Some(path), file, identity, others: &[] });
        }
        for rights in self.others.iter() {
            let theirs = file_rights::with(rights, || resolve(path))?.map_err(refusal_of_holder)?;
            if Identity::of(&theirs)? != identity {
                return Err(Refusal::Exchanged);
            }
        }
        Ok(Found { path: Some(path), file, identity, others: &self.others })
    }

    /// Takes a file that was found by other means than its path, named (O_PATH) or open.
    pub(crate) fn adopt(&self, file: OwnedFd, recorded: Option<Identity>) -> Result<Found<'_>, Refusal> {
        let identity = Identity::of(&file)?;
        let is_recorded = recorded.is_some_and(|recorded| recorded.is_that_of(&identity));
        let others = if is_recorded { &[][..] } else { &self.others };
        Ok(Found { path: None, file, identity, others })
    }
}

/// Names (O_PATH) the nearest directory above a recorded path that is there, without following symbolic links.
pub(crate) fn nearest_directory(path: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut last = E::NOENT;
    for above in path.ancestors().skip(1) {
        match rustix::fs::openat2(CWD, above, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(found) => return Ok(found),
            Err(errno) => last = errno,
        }
    }
    Err(refusal_of_own(last))
}

impl Found<'_> {
    /// What it is.
    pub(crate) fn stat(&self) -> Result<Stat, Refusal> {
        rustix::fs::fstat(&self.file).map_err(|errno| Refusal::Failed(errno.into()))
    }

    /// Opens it. Flags of the open itself (O_NOFOLLOW, O_DIRECTORY) are those of the new description too.
    pub(crate) fn open(&self, flags: OFlags) -> Result<OwnedFd, Refusal> {
        let Some((first, rest)) = self.others.split_first() else {
            return self.open_as_ourselves(flags).map_err(refusal_of_own)?;
        };
        let opened =
            file_rights::with(first, || self.open_as_ourselves(flags))?.map_err(refusal_of_holder)??;
        for rights in rest {
            self.check(rights, flags)?;
        }
        Ok(opened)
    }

    /// Runs a system call on it with the holders' rights, by a path that leads to it and to nothing else. With
    /// several holders the call must succeed for each; the last result counts.
    pub(crate) fn act<Output: Send>(
        &self,
        call: impl Fn(&str) -> Result<Output, E> + Sync,
    ) -> Result<Output, Refusal> {
        let link = own_link(&self.file);
        let Some((last, rest)) = self.others.split_last() else {
            return call(&link).map_err(refusal_of_own);
        };
        for rights in rest {
            file_rights::with(rights, || call(&link).map(drop))?.map_err(refusal_of_holder)?;
        }
        file_rights::with(last, || call(&link))?.map_err(refusal_of_holder)
    }

    fn open_as_ourselves(&self, flags: OFlags) -> Result<Result<OwnedFd, Refusal>, E> {
        let Some(path) = self.path.filter(|_| flags.contains(OFlags::NOFOLLOW)) else {
            let flags = flags - OFlags::NOFOLLOW;
            return rustix::fs::open(own_link(&self.file), flags, Mode::empty()).map(Ok);
        };
        // The link in /proc would have to be followed, and the description shows that flag.
        let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
        Ok(match Identity::of(&file) {
            Ok(identity) if identity == self.identity => Ok(file),
            Ok(_) => Err(Refusal::Exchanged),
            Err(error) => Err(error.into()),
        })
    }

    /// Asks whether a further holder may do what the flags say, without opening the file once more: an open and a
    /// close are seen by the other end of a named pipe.
    fn check(&self, rights: &FileRights, flags: OFlags) -> Result<(), Refusal> {
        if flags.contains(OFlags::PATH) {
            return Ok(());
        }
        let (reads, writes) = (may_read(flags.bits()), may_write(flags.bits()));
        let link = own_link(&self.file);
        let answer = file_rights::with(rights, || file_rights::may_open(Path::new(&link), reads, writes))?;
        answer.map_err(|error| Refusal::Denied(error.errno))
    }
}

impl AsFd for Found<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Names a file without opening it. A symbolic link at the end is named itself; one further up refuses.
fn resolve(path: &Path) -> Result<OwnedFd, E> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn refusal_of_own(errno: E) -> Refusal {
    if errno == E::LOOP { Refusal::Link } else { Refusal::Failed(errno.into()) }
}

fn refusal_of_holder(errno: E) -> Refusal {
    if errno == E::LOOP { Refusal::Link } else { Refusal::Denied(errno.into()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

    /// A directory that every user may search, and its canonical path.
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
            drop(open(opener, &path, was).expect("they had this very file"));
            drop(open(opener, &public, was).expect("they may open that one"));
        }
        fs::rename(&path, folder.join("old")).unwrap();
        file(&path, 0o600);
        for opener in &openers {
            let refused = open(opener, &path, was);
            assert!(matches!(refused, Err(Refusal::Denied(_))), "{refused:?}");
            let unknown = opener.find(&path, None).unwrap().open(OFlags::RDONLY);
            assert!(matches!(unknown, Err(Refusal::Denied(_))), "{unknown:?}");
        }
        drop(open(&Opener::new([own]).unwrap(), &path, was).expect("root may open what is there now"));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let hidden = openers[0].find(&public, None);
        assert!(matches!(hidden, Err(Refusal::Denied(_))), "{hidden:?}");
    }

    #[test]
    fn what_is_examined_is_what_is_opened() {
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
        assert!(matches!(direct, Err(Refusal::Exchanged)), "{direct:?}");
    }
}
