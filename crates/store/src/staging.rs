//! Staging directories. A staging directory is hidden and locked, and contains an image or a log that is being written
//! or removed. Publication makes the directory visible under its final name, the *target*.
//!
//! Owns: the names, locks and removal of staging directories; publication. Publication makes the entries of the
//! directory durable, renames the directory, and makes the new name durable.
//! Invariants: a writer holds the lock of its staging directory. A staging directory that can be locked is a leftover
//! of a dead writer, and may be removed. Before publication, the target does not exist or is an empty directory. After
//! publication, the target contains the complete, durable content. A crash during publication leaves the target in the
//! state before or in the state after publication.
//! Does not: write or sync files. The caller writes and syncs files before publication.
//!
//! Proof: `crates/store/tests/all/power_cut.rs`, which cuts the power at every step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::ByteCount;
use sys::Errno;

use crate::error::{Error, Result, is_one_of};
use crate::layout::{COMMIT_FILE, INDEX_FILE, RECORDS_FILE, parent};
use crate::medium::{Entry, Kind, Lock, Medium};

/// The suffix of a staging directory's name. The name begins with a dot.
const SUFFIX: &str = ".partial";

/// The maximum number of names that are tried. A name cannot be used if a process of another pid namespace has created
/// the same name. Another process can lock and remove the new directory as a leftover before this process locks the
/// directory.
const ATTEMPTS_MAX: usize = 16;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A staging directory of this process. Dropping the value removes the directory, unless the directory was published.
#[derive(Debug)]
pub(crate) struct Staging {
    medium: Arc<dyn Medium>,
    /// The path of the directory in which the caller creates the files.
    pub(crate) path: PathBuf,
    target: PathBuf,
    _lock: Box<dyn Lock>,
    published: bool,
}

impl Staging {
    /// Creates a staging directory with the same parent as `target`. `target` must not exist, or must be an empty
    /// directory.
    pub(crate) fn create(medium: Arc<dyn Medium>, target: &Path) -> Result<Self> {
        let exists = || Error::Exists(target.to_path_buf());
        let name = target.file_name().ok_or_else(exists)?.to_string_lossy().into_owned();
        match medium.kind(target)? {
            None => {}
            Some(Kind::Directory { .. }) if medium.list(target)?.is_empty() => {}
            Some(_) => return Err(exists()),
        }
        let (path, lock) = create_locked(&*medium, parent(target), &name)?;
        Ok(Self { medium, path, target: target.to_path_buf(), _lock: lock, published: false })
    }

    /// Makes the directory visible under its final name. All files must be durable.
    pub(crate) fn publish(mut self) -> Result<()> {
        use rustix::io::Errno as Taken;
        let Self { medium, path, target, .. } = &self;
        medium.sync_directory(path)?;
        medium.rename(path, target).map_err(|error| {
            let is_taken = is_one_of(error.errno, &[Taken::EXIST, Taken::NOTEMPTY, Taken::NOTDIR]);
            if is_taken { Error::Exists(target.clone()) } else { error.into() }
        })?;
        medium.sync_directory(parent(target)).inspect_err(|_| {
            // The sync has failed, so a power cut can still undo the rename. The caller gets an error, and the directory
            // gets its hidden name again. If this second rename fails, the directory remains visible, and its content is
            // complete.
            let _ = medium.rename(target, path);
        })?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // If the removal fails now, the sweep of the next writer removes the directory.
            let _ = remove_tree(&*self.medium, &self.path);
        }
    }
}

/// Removes a visible directory. After a crash, the directory is either complete or not visible. Returns false if
/// another process is removing the directory.
pub(crate) fn retire(medium: &dyn Medium, path: &Path) -> Result<bool> {
    let Some(_lock) = medium.lock(path)? else { return Ok(false) };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = parent(path).join(staging_name(&name));
    medium.rename(path, &hidden)?;
    medium.sync_directory(parent(path))?;
    remove_tree(medium, &hidden)?;
    Ok(true)
}

/// Removes the leftovers of dead writers from a directory, and returns the number of removed leftovers. Entries of
/// other programs are not touched.
pub(crate) fn sweep(medium: &dyn Medium, directory: &Path) -> Result<usize> {
    let mut removed = 0;
    each_leftover(medium, directory, |path| {
        // A leftover that cannot be removed belongs to another user, so the error is ignored.
        removed += usize::from(remove_tree(medium, path).is_ok());
        Ok(())
    })?;
    Ok(removed)
}

/// Returns the leftovers of dead writers in a directory, with their sizes. Removes the leftovers if `remove` is true.
pub(crate) fn leftovers(
    medium: &dyn Medium,
    directory: &Path,
    remove: bool,
) -> Result<Vec<(PathBuf, ByteCount)>> {
    let mut found = Vec::new();
    each_leftover(medium, directory, |path| {
        let mut bytes = 0;
        for entry in medium.list(path)? {
            // An entry that is not a regular file counts as size 0, and is removed too.
            let pages = medium.open_pages(&path.join(entry.name)).ok();
            bytes += pages.and_then(|pages| pages.length().ok()).map_or(0, ByteCount::get);
        }
        if remove {
            remove_tree(medium, path)?;
        }
        found.push((path.to_path_buf(), ByteCount(bytes)));
        Ok(())
    })?;
    Ok(found)
}

/// Calls `each` with each leftover of a dead writer. The leftover is locked during the call.
///
/// A leftover is recognised by its name, its owner and the names of its files, and its lock is free. A running writer
/// holds the lock until the publication. When a writer ends for any reason, the kernel releases the lock. No lock
/// survives a reboot.
fn each_leftover(
    medium: &dyn Medium,
    directory: &Path,
    mut each: impl FnMut(&Path) -> Result<()>,
) -> Result<()> {
    for entry in medium.list(directory)? {
        if !entry.is_directory || !is_staging_name(&entry.name) {
            continue;
        }
        let path = directory.join(&entry.name);
        // A directory that cannot be locked is in use or belongs to another user.
        if medium.check_directory(&path).is_ok()
            && let Ok(Some(_lock)) = medium.lock(&path)
            && is_ours(medium, &path)
        {
            each(&path)?;
        }
    }
    Ok(())
}

/// Reports whether a directory contains only files of an image or a log.
fn is_ours(medium: &dyn Medium, path: &Path) -> bool {
    const NAMES: [&str; 3] = [COMMIT_FILE, RECORDS_FILE, INDEX_FILE];
    let is_known = |name: &str| {
        let pages = name.starts_with("pages-") || name.starts_with("chunks-");
        NAMES.contains(&name) || pages || name.starts_with(|first: char| first.is_ascii_digit())
    };
    let is_file = |entry: &Entry| !entry.is_directory && is_known(&entry.name);
    medium.list(path).is_ok_and(|entries| entries.iter().all(is_file))
}

fn create_locked(medium: &dyn Medium, directory: &Path, name: &str) -> Result<(PathBuf, Box<dyn Lock>)> {
    for _ in 0..ATTEMPTS_MAX {
        let path = directory.join(staging_name(name));
        match medium.create_directory(&path) {
            Ok(()) => {}
            Err(error) if error.errno == Errno::EEXIST => continue,
            Err(error) => return Err(error.into()),
        }
        match medium.lock(&path) {
            Ok(Some(lock)) => return Ok((path, lock)),
            // Another process has locked the new directory before this process, and removes the directory as a
            // leftover.
            Ok(None) => {}
            Err(error) => {
                let _ = medium.remove_directory(&path);
                return Err(error.into());
            }
        }
    }
    Err(sys::Error::path("find a free name for a new image in", directory, Errno::EEXIST).into())
}

fn staging_name(name: &str) -> String {
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!(".{name}.{}-{count}{SUFFIX}", std::process::id())
}

/// Reports whether a name has the form of a staging directory's name. Staging directories appear and disappear with
/// each checkpoint.
#[must_use]
pub fn is_staging_name(name: &str) -> bool {
    let numbers = name.strip_prefix('.').and_then(|name| name.strip_suffix(SUFFIX)?.rsplit_once('.'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|(_, numbers)| numbers.split_once('-'))
        .is_some_and(|(pid, count)| is_number(pid) && is_number(count))
}

/// Removes a directory that contains only files.
fn remove_tree(medium: &dyn Medium, path: &Path) -> sys::Result<()> {
    for entry in medium.list(path)? {
        medium.remove_file(&path.join(entry.name))?;
    }
    medium.remove_directory(path)
}
