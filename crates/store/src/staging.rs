//! Directories on their way in or out: hidden, locked, and removed when their writer is gone.
//!
//! Owns: the names of such directories, their lock, their removal; the one way in which anything becomes visible in a
//! store: durable first, then renamed, then durable again.
//! Invariants: a staging directory is locked as long as its writer works on it; one that can be locked is
//! a dead writer's and may go. Before it is published nothing is at the target, or an empty directory; afterwards, all
//! of what was staged, durably; after a crash in between, one or the other.
//! Does not: know what an image consists of; write or sync the files inside; the caller does, before.
//!
//! Proof: `crates/store/tests/power_cut.rs`, which cuts the power at every step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::ByteCount;
use sys::Errno;

use crate::error::{Error, Result, is_one_of};
use crate::layout::{COMMIT_FILE, INDEX_FILE, RECORDS_FILE, parent};
use crate::medium::{Entry, Kind, Lock, Medium};

/// What a staging directory's name ends with; it begins with a dot.
const SUFFIX: &str = ".partial";

/// Names tried at most: each can be lost to one sweeper, or to one process of another pid namespace.
const ATTEMPTS_MAX: usize = 16;

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A directory that no other process uses; removed when dropped.
#[derive(Debug)]
pub(crate) struct Staging {
    medium: Arc<dyn Medium>,
    /// Where to put the files.
    pub(crate) path: PathBuf,
    target: PathBuf,
    _lock: Box<dyn Lock>,
    published: bool,
}

impl Staging {
    /// A staging directory beside `target`, which must not exist, or be an empty directory.
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

    /// Makes the directory, whose files are durable, visible under its final name.
    pub(crate) fn publish(mut self) -> Result<()> {
        use rustix::io::Errno as Taken;
        publish(&*self.medium, &self.path, &self.target).map_err(|error| {
            let is_taken = is_one_of(error.errno, &[Taken::EXIST, Taken::NOTEMPTY, Taken::NOTDIR]);
            if is_taken { Error::Exists(self.target.clone()) } else { error.into() }
        })?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.published {
            // Where removal fails now, the next writer's sweep does it.
            let _ = remove_tree(&*self.medium, &self.path);
        }
    }
}

/// Makes a staged directory, whose files are durable, visible under its final name.
fn publish(medium: &dyn Medium, staged: &Path, target: &Path) -> sys::Result<()> {
    medium.sync_directory(staged)?;
    medium.rename(staged, target)?;
    medium.sync_directory(parent(target)).inspect_err(|_| {
        // Visible, but perhaps not for long: better not visible at all. Should this fail too, what is
        // visible is nevertheless whole.
        let _ = medium.rename(target, staged);
    })
}

/// Removes a visible directory, so that after a crash it is there whole or not at all. False when another
/// process is removing it.
pub(crate) fn retire(medium: &dyn Medium, path: &Path) -> Result<bool> {
    let Some(_lock) = medium.lock(path)? else { return Ok(false) };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = parent(path).join(staging_name(&name));
    medium.rename(path, &hidden)?;
    medium.sync_directory(parent(path))?;
    remove_tree(medium, &hidden)?;
    Ok(true)
}

/// Removes what dead writers left behind in a directory. It may be a directory that others use as well.
pub(crate) fn sweep(medium: &dyn Medium, directory: &Path) -> Result<usize> {
    let mut removed = 0;
    each_leftover(medium, directory, |path| {
        // One that cannot be removed belongs to another user: not an error of this process.
        removed += usize::from(remove_tree(medium, path).is_ok());
        Ok(())
    })?;
    Ok(removed)
}

/// What dead writers left behind in a directory, with its size, removed if it is to be.
pub(crate) fn leftovers(
    medium: &dyn Medium,
    directory: &Path,
    remove: bool,
) -> Result<Vec<(PathBuf, ByteCount)>> {
    let mut found = Vec::new();
    each_leftover(medium, directory, |path| {
        let mut bytes = 0;
        for entry in medium.list(path)? {
            // What is no regular file has no size, and is removed as well.
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

/// Calls `each` with each leftover of a dead writer, while it is locked.
///
/// A leftover is recognised by its name, its owner and the names in it. A writer holds the lock until it publishes or
/// ends, however it ends: the kernel drops the lock with the process, and keeps none over a reboot.
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
        // One that cannot be locked is in use, or belongs to another user.
        if medium.check_directory(&path).is_ok()
            && let Ok(Some(_lock)) = medium.lock(&path)
            && is_ours(medium, &path)
        {
            each(&path)?;
        }
    }
    Ok(())
}

/// Whether a directory holds nothing but files of an image or a log.
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
            // A sweeper came first, and removes it.
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

/// Whether a name is one of a directory on its way in or out. Such a name comes and goes with a checkpoint.
#[must_use]
pub fn is_staging_name(name: &str) -> bool {
    let numbers = name.strip_prefix('.').and_then(|name| name.strip_suffix(SUFFIX)?.rsplit_once('.'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|(_, numbers)| numbers.split_once('-'))
        .is_some_and(|(pid, count)| is_number(pid) && is_number(count))
}

/// Removes a directory of files.
fn remove_tree(medium: &dyn Medium, path: &Path) -> sys::Result<()> {
    for entry in medium.list(path)? {
        medium.remove_file(&path.join(entry.name))?;
    }
    medium.remove_directory(path)
}
