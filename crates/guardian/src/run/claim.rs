//! One guardian for each name.
//!
//! Owns: the lock file in the directory of the subject, and the choice of a name if none was given.
//! Invariants: the lock is held as long as the value lives, and ends with this process. No subject inherits it. A claim
//! under which nothing was started leaves nothing in the store.
//! Does not: touch images.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use store::{Store, SubjectName, trust};
use sys::Error;

use crate::error::{GuardianError, Result};
use crate::record::Record;

/// The file that a guardian holds open and locked.
pub(crate) const LOCK_FILE: &str = "guardian.lock";
/// The undo log of files, below the directory of a subject.
pub(crate) const UNDO_DIRECTORY: &str = "undo";
/// Names that are tried for one program: `job`, `job-2` … More are not guarded by hand.
const NAMES_MAX: u32 = 1000;

/// A claimed name.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(super) name: SubjectName,
    /// Where images and status of the subject live.
    pub(super) directory: PathBuf,
    /// Set while the directory, created for this claim, is removed with it.
    unused_in: Option<Store>,
    _lock: File,
}

impl Claim {
    /// Claims exactly this name.
    pub(crate) fn named(store: &Store, name: &SubjectName) -> Result<Self> {
        Self::attempt(store, name)?.ok_or_else(|| {
            let record = Record::read(&store.root().join(name.as_str()));
            let by = record
                .ok()
                .flatten()
                .map_or(String::new(), |record| format!(" (pid {})", record.guardian.pid));
            GuardianError::NameTaken { name: name.to_string(), by }
        })
    }

    /// Claims a name after a program: `job`, or `job-2` and so on when others are guarded under it.
    pub(super) fn after(store: &Store, program: &str) -> Result<Self> {
        for number in 1..=NAMES_MAX {
            let name = if number == 1 { program.to_owned() } else { format!("{program}-{number}") };
            if let Some(claim) = Self::attempt(store, &name.parse()?)? {
                return Ok(claim);
            }
        }
        Err(GuardianError::NameTaken { name: program.to_owned(), by: String::new() })
    }

    /// A subject was started or adopted under the name: the directory stays.
    pub(super) fn use_it(&mut self) {
        self.unused_in = None;
    }

    fn attempt(store: &Store, name: &SubjectName) -> Result<Option<Self>> {
        let directory = store.root().join(name.as_str());
        let created = DirBuilder::new().mode(0o700).create(&directory);
        let unused_in = match created {
            Ok(()) => Some(store.clone()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
            Err(error) => return Err(Error::path("create", &directory, error).into()),
        };
        let path = directory.join(LOCK_FILE);
        trust::check_directory(&directory)?;
        let lock = trust::open_or_create(&path, trust::Access::Write)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { name: name.clone(), directory, unused_in, _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::path("lock", &path, errno).into()),
        }
    }
}

impl Drop for Claim {
    /// Removes the directory if it was made for this claim, nothing was started and it holds no checkpoint. An error is
    /// dropped: that of the start is reported.
    fn drop(&mut self) {
        if let Some(store) = &self.unused_in
            && store.entries(&self.name).is_ok_and(|found| found.is_empty())
        {
            // The undo log first: it keeps links outside of the directory.
            let _ = remove_log(&self.directory);
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

/// Removes the undo log in the directory of a subject; parts that were moved aside stay.
pub(crate) fn remove_log(subject: &Path) -> Result<()> {
    let directory = subject.join(UNDO_DIRECTORY);
    if directory.is_dir() {
        undo::back::remove(&directory)?;
    }
    Ok(())
}
