//! The claim of a subject name. Each name has at most one guardian.
//!
//! Owns: the lock file in the directory of the subject, and the choice of a name if the user gave none.
//! Invariants: the lock is held as long as the claim exists, and ends with this process. No subject inherits the lock.
//! A claim under which no program was started leaves nothing in the store.
//! Does not: change images.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use model::ProcessKey;
use store::{Store, SubjectName, trust};
use sys::file_lock::ExclusiveLock;
use sys::{Errno, Error};

use super::earlier;
use crate::error::{GuardianError, Result};
use crate::record::Record;

/// The file that a guardian keeps open and locked.
pub(crate) const LOCK_FILE: &str = "guardian.lock";
/// The directory of the undo log of files, below the directory of a subject.
pub(crate) const UNDO_DIRECTORY: &str = "undo";
/// Maximum number of names that are tried for one program: `job`, `job-2` and so on. No operator starts more guardians
/// by hand.
const NAMES_MAX: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Claim {
    pub(super) name: SubjectName,
    /// The directory of the images and the status of the subject.
    pub(super) directory: PathBuf,
    /// The store in which this claim created the directory. `None` once a subject uses the directory, or if the
    /// directory existed before.
    unused_in: Option<Store>,
    _lock: ExclusiveLock,
}

impl Claim {
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

    /// Claims exactly this name, if a guardian has used it before. Creates nothing. On a read-only file system, no
    /// guardian can run, and nothing is claimed.
    pub(crate) fn existing(store: &Store, name: &SubjectName) -> Result<Option<Self>> {
        if !store.root().join(name.as_str()).join(LOCK_FILE).exists() {
            return Ok(None);
        }
        match Self::named(store, name) {
            Err(GuardianError::Store(store::Error::Io(error))) if error.errno == Errno::EROFS => Ok(None),
            claim => claim.map(Some),
        }
    }

    /// Claims a name derived from a program: `job`, or `job-2` and so on if the earlier names belong to living programs:
    /// other guardians hold them, or their guardians have died. `adopted` is the program that gets the name.
    pub(super) fn after(store: &Store, program: &str, adopted: Option<ProcessKey>) -> Result<Self> {
        for number in 1..=NAMES_MAX {
            let name = if number == 1 { program.to_owned() } else { format!("{program}-{number}") };
            let Some(claim) = Self::attempt(store, &name.parse()?)? else { continue };
            let record = Record::read(&claim.directory).ok().flatten();
            let living = record.as_ref().and_then(earlier::unguarded_root);
            if living.is_none() || living == adopted {
                return Ok(claim);
            }
        }
        Err(GuardianError::NameTaken { name: program.to_owned(), by: String::new() })
    }

    /// Records that a subject was started or adopted under the name, so the directory stays.
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
        match ExclusiveLock::try_new(lock) {
            Ok(Some(lock)) => Ok(Some(Self { name: name.clone(), directory, unused_in, _lock: lock })),
            Ok(None) => Ok(None),
            Err(errno) => Err(Error::path("lock", &path, errno).into()),
        }
    }
}

impl Drop for Claim {
    /// Removes the directory if this claim created it, no program was started, and it contains no checkpoint. Errors
    /// are ignored, because the error of the start is reported.
    fn drop(&mut self) {
        if let Some(store) = &self.unused_in
            && store.entries(&self.name).is_ok_and(|found| found.is_empty())
        {
            // The undo log is removed first, because it has links outside of the directory.
            let _ = remove_log(&self.directory);
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}

/// Removes the undo log in the directory of a subject. File contents that were moved aside stay.
pub(crate) fn remove_log(subject: &Path) -> Result<()> {
    let directory = subject.join(UNDO_DIRECTORY);
    if directory.is_dir() {
        undo::back::remove(&directory)?;
    }
    Ok(())
}
