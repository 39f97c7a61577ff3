//! Paths of Unix sockets in the file system.
//!
//! Owns: the directory and the name of a path, and the second link. Through this link, a socket can get its path again
//! after the program has unlinked the path.
//! Invariants: a name belongs to a socket only if its device and inode are equal to the file of the socket. No existing
//! name is replaced.
//! Does not: follow a symbolic link in the last component of a path, because bind(2) does not follow it.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use model::Tid;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Device and inode of a file.
pub(crate) type Identity = (u64, u64);

/// A name in a directory. The directory stays open, so that its file system stays mounted.
#[derive(Debug)]
pub(crate) struct Place {
    directory: OwnedFd,
    /// Device and inode of the directory.
    pub(crate) identity: Identity,
    pub(crate) name: OsString,
}

#[derive(Debug)]
pub(crate) struct BoundPath {
    pub(crate) place: Place,
    /// The file that bind(2) has created.
    file: Identity,
    /// The name of the second link in the same directory, if the link exists.
    aside: Option<OsString>,
    /// Whether the program has unlinked the path, and the second link was renamed to it since.
    is_put_back: bool,
}

impl Place {
    /// Resolves a path of a thread. Returns `None` if the directory cannot be opened.
    pub(crate) fn of_thread(thread: Tid, path: &Path) -> Option<Self> {
        let start = if path.is_absolute() { "root" } else { "cwd" };
        let base = format!("/proc/{thread}/{start}");
        let parent = path.parent()?.as_os_str().as_bytes();
        let mut directory = [base.as_bytes(), b"/", parent].concat();
        directory.extend(b"/.");
        Self::open(Path::new(OsStr::from_bytes(&directory)), path)
    }

    /// Resolves an absolute path in the mount namespace of this process.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        Self::open(path.parent()?, path)
    }

    fn open(directory: &Path, path: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, directory, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&directory).ok()?;
        let name = path.file_name()?.to_owned();
        Some(Self { directory, identity: (stat.st_dev, stat.st_ino), name })
    }

    /// Returns the device and the inode of the file with this name in the directory.
    fn file_at(&self, name: &OsStr) -> Result<Identity, Errno> {
        let stat = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

impl BoundPath {
    pub(crate) fn new(place: Place, file: Identity) -> Self {
        Self { place, file, aside: None, is_put_back: false }
    }

    /// Creates the second link if the path still leads to the socket. An error is ignored, because a file system may
    /// refuse links.
    pub(crate) fn link_aside(&mut self) {
        if self.aside.is_some() || !self.is_named() {
            return;
        }
        let mut aside = OsString::from(".");
        aside.push(&self.place.name);
        aside.push(format!(".undying-{}", self.file.1));
        let directory = &self.place.directory;
        let made = rustix::fs::linkat(directory, &self.place.name, directory, &aside, AtFlags::empty());
        let is_there = matches!(made, Ok(()) | Err(Errno::EXIST));
        if is_there && self.place.file_at(&aside) == Ok(self.file) {
            self.aside = Some(aside);
        } else if made.is_ok() {
            // Between the check and the link, the name was given to another file.
            let _ = rustix::fs::unlinkat(directory, &aside, AtFlags::empty());
        }
    }

    /// Reports whether the path leads to the socket.
    pub(crate) fn is_named(&self) -> bool {
        self.place.file_at(&self.place.name) == Ok(self.file)
    }

    /// Renames the second link to the path if no file has the path. Reports whether the path then leads to the socket.
    pub(crate) fn is_named_again(&mut self) -> bool {
        if self.place.file_at(&self.place.name) == Err(Errno::NOENT)
            && let Some(aside) = &self.aside
        {
            let directory = &self.place.directory;
            let flags = RenameFlags::NOREPLACE;
            let moved = rustix::fs::renameat_with(directory, aside, directory, &self.place.name, flags);
            if moved.is_ok() {
                (self.aside, self.is_put_back) = (None, true);
            }
        }
        self.is_named()
    }

    /// Records that a program has bound the path again. Removes the second link.
    pub(crate) fn is_bound(&mut self) {
        self.is_put_back = false;
        if let Some(aside) = self.aside.take() {
            self.unlink(&aside);
        }
    }

    /// Removes a name of the socket file.
    fn unlink(&self, name: &OsStr) {
        if self.place.file_at(name) == Ok(self.file) {
            // Without permission, the name stays. It then leads to a socket that is not served.
            let _ = rustix::fs::unlinkat(&self.place.directory, name, AtFlags::empty());
        }
    }
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        if self.is_put_back {
            self.unlink(&self.place.name);
        }
        self.is_bound();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn bound(directory: &Path) -> (UnixListener, BoundPath) {
        let path = directory.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let file = std::fs::metadata(&path).unwrap();
        let place = Place::of_path(&path).unwrap();
        (listener, BoundPath::new(place, (file.dev(), file.ino())))
    }

    #[test]
    fn an_unlinked_path_leads_to_the_socket_again() {
        let directory = tempfile::tempdir().unwrap();
        let (_listener, mut bound) = bound(directory.path());
        assert!(bound.is_named_again());
        bound.link_aside();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
        std::fs::remove_file(directory.path().join("socket")).unwrap();
        assert!(bound.is_named_again());
        std::os::unix::net::UnixStream::connect(directory.path().join("socket")).unwrap();
        // The program had unlinked the path, so no name stays.
        drop(bound);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_path_that_is_bound_again_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (_listener, mut bound) = bound(directory.path());
        bound.link_aside();
        std::fs::remove_file(directory.path().join("socket")).unwrap();
        assert!(bound.is_named_again());
        bound.link_aside();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
        bound.is_bound();
        drop(bound);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_took_the_name_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (_listener, mut bound) = bound(directory.path());
        bound.link_aside();
        std::fs::remove_file(directory.path().join("socket")).unwrap();
        std::fs::write(directory.path().join("socket"), "other").unwrap();
        assert!(!bound.is_named_again());
        drop(bound);
        assert_eq!(std::fs::read(directory.path().join("socket")).unwrap(), b"other");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn paths_of_a_thread_start_at_its_directories() {
        let thread = Tid(std::process::id() as i32);
        let here = Place::of_thread(thread, Path::new("name")).unwrap();
        let cwd = std::fs::metadata(".").unwrap();
        assert_eq!((here.identity, here.name.as_os_str()), ((cwd.dev(), cwd.ino()), OsStr::new("name")));
        let absolute = std::env::current_dir().unwrap().join("name");
        assert_eq!(Place::of_thread(thread, &absolute).unwrap().identity, here.identity);
        assert!(Place::of_thread(thread, Path::new("/nonexistent/name")).is_none());
    }
}
