//! The pid file of `restore`.
//!
//! Owns: a temporary file beside the pid file, and its publication under the name of the pid file.
//! Invariants: the temporary file is created before the restore begins, so that a path that cannot be written refuses the
//! restore. A reader never sees a partial pid file. A restore that is refused leaves no temporary file.
//! Does not: decide when the pid is known.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use model::Pid;
use rustix::fs::{FallocateFlags, fallocate};
use sys::{Errno, Error};

use crate::error::{GuardianError, Result};

/// Bytes that are reserved on the disk: the digits of a pid, and a line break.
const LENGTH_MAX: u64 = 16;

/// A pid file that can be written.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
}

impl PidFile {
    /// Creates the temporary file, and reserves its space on the disk.
    ///
    /// # Errors
    ///
    /// `PidFileRefused` if the pid file cannot be written. An existing pid file is not changed.
    pub(crate) fn prepare(path: &Path) -> Result<Self> {
        let refused = |errno: Errno| GuardianError::PidFileRefused { path: path.to_path_buf(), errno };
        let of = |error: std::io::Error| refused(Error::path("write", path, error).errno);
        if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            return Err(refused(Errno::EISDIR));
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let temporary = PathBuf::from(name);
        // An existing file of this name may be a link that another user has made to any file of ours.
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(of(error)),
            _ => {}
        }
        let file = File::create_new(&temporary).map_err(of)?;
        let prepared = Self { path: path.to_path_buf(), temporary, file };
        match fallocate(&prepared.file, FallocateFlags::KEEP_SIZE, 0, LENGTH_MAX) {
            // Some file systems cannot reserve space.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(prepared),
            Err(errno) => Err(refused(errno.into())),
        }
    }

    /// Writes the pid, and gives the file its name.
    ///
    /// # Errors
    ///
    /// `PidFileLost`, because the program already runs.
    pub(crate) fn write(mut self, root: Pid) -> Result<()> {
        let written =
            writeln!(self.file, "{root}").and_then(|()| std::fs::rename(&self.temporary, &self.path));
        written.map_err(|error| {
            let errno = Error::path("write", &self.path, error).errno;
            GuardianError::PidFileLost { path: self.path.clone(), root, errno }
        })
    }
}

impl Drop for PidFile {
    /// Removes the temporary file, unless it has become the pid file.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_not_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("pid"), folder.path().join("precious"));
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, folder.path().join("pid.new")).unwrap();
        PidFile::prepare(&path).unwrap().write(Pid(7)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "7\n");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("directory");
        std::fs::create_dir(&directory).unwrap();
        for path in [directory, folder.path().join("missing/pid")] {
            let refused = PidFile::prepare(&path);
            assert!(matches!(refused, Err(GuardianError::PidFileRefused { .. })), "{refused:?}");
        }
        std::fs::write(folder.path().join("pid"), "6\n").unwrap();
        drop(PidFile::prepare(&folder.path().join("pid")).unwrap());
        assert_eq!(std::fs::read_to_string(folder.path().join("pid")).unwrap(), "6\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
