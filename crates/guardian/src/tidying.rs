//! Maintenance of a store: merging of checkpoints, garbage collection, named copies.
//!
//! Owns: the output of `squash`, `gc`, `store`, `get`, `link` and `del`.
//! Invariants: data that another process writes is never changed: a command skips this data, or returns an error that
//! names it. The checkpoints of a subject are never removed here.
//! Does not: know the storage format of an image.

use std::path::Path;

use serde::Serialize;
use store::{Codec, SubjectName};

use crate::error::{GuardianError, Result};
use crate::exit::ExitCode;
use crate::location::StoreLocation;

/// The result of `squash`.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct SquashReport {
    pub name: String,
    /// The checkpoint that was rewritten. `None` if every checkpoint is already a complete image.
    pub seq: Option<u64>,
    /// Number of parts in the index of this checkpoint before the merge.
    pub parts: usize,
    /// Bytes of the pages of this checkpoint.
    pub bytes: u64,
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Number of older checkpoints that stay, together with the data that they need.
    pub older: usize,
}

/// A file or directory of the store to which nothing refers.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GarbageItem {
    /// Path of the file or directory.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The result of `gc`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GarbageReport {
    /// Files and directories to which nothing refers.
    pub found: Vec<GarbageItem>,
    /// Whether these files and directories were removed.
    pub removed: bool,
    /// Subjects whose log is being written. The writer of a log removes the garbage itself.
    pub busy: Vec<String>,
    /// Subjects that were skipped, because their data is damaged or cannot be trusted. The second text describes the
    /// cause.
    pub damaged: Vec<(String, String)>,
    /// The exit code for the first damaged subject.
    #[serde(skip)]
    pub code: ExitCode,
}

/// A copy that was made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Copied {
    /// Path of the copy.
    pub path: String,
}

/// Merges the deltas of the newest checkpoint of a subject.
///
/// # Errors
///
/// The log of the subject is being written, the subject or its checkpoint does not exist, or the store cannot be
/// changed.
pub fn squash(location: &StoreLocation, name: &str) -> Result<SquashReport> {
    let parsed: SubjectName = name.parse()?;
    let squashed = location.with_subject(&parsed)?.squash(&parsed)?;
    Ok(SquashReport {
        name: name.to_owned(),
        seq: squashed.map(|done| done.sequence.get()),
        parts: squashed.map_or(0, |done| done.parts),
        bytes: squashed.map_or(0, |done| done.bytes.get()),
        before_bytes: squashed.map_or(0, |done| done.disk_before.get()),
        after_bytes: squashed.map_or(0, |done| done.disk_after.get()),
        older: squashed.map_or(0, |done| done.older),
    })
}

/// Finds data in the store to which nothing refers. Removes the data unless `dry_run` is set.
///
/// # Errors
///
/// The store cannot be read or changed.
pub fn gc(location: &StoreLocation, dry_run: bool) -> Result<GarbageReport> {
    let garbage = match location.open()? {
        Some(store) => store.garbage(!dry_run)?,
        None => store::Garbage::default(),
    };
    let found = garbage.found.into_iter();
    let damaged: Vec<(String, GuardianError)> =
        garbage.damaged.into_iter().map(|(name, error)| (name.to_string(), error.into())).collect();
    Ok(GarbageReport {
        found: found
            .map(|(path, bytes)| GarbageItem { path: path.display().to_string(), bytes: bytes.get() })
            .collect(),
        removed: !dry_run,
        busy: garbage.busy.iter().map(ToString::to_string).collect(),
        code: damaged.first().map_or(ExitCode::Done, |(_, error)| error.exit_code()),
        damaged: damaged.into_iter().map(|(name, error)| (name, error.to_string())).collect(),
    })
}

/// Copies an image to the store under a name of its own.
///
/// # Errors
///
/// The name is taken, or the image is not complete.
pub fn store_copy(location: &StoreLocation, image: &str, copy: &str) -> Result<Copied> {
    let name = SubjectName::chosen(copy)?;
    let source = location.image(image)?;
    let path = location.create()?.keep_copy(&source, &name)?;
    Ok(Copied { path: path.display().to_string() })
}

/// Gives a copy a second name.
///
/// # Errors
///
/// The first name is not a copy, or the second name is taken.
pub fn link_copy(location: &StoreLocation, copy: &str, new: &str) -> Result<Copied> {
    let (name, new): (SubjectName, SubjectName) = (copy.parse()?, SubjectName::chosen(new)?);
    let store = location.existing(copy)?;
    let source = store.resolve(copy)?;
    if store.copy_of(&name)?.is_none() {
        return Err(store::Error::NotACopy(name.to_string()).into());
    }
    Ok(Copied { path: store.keep_copy(&source, &new)?.display().to_string() })
}

/// Writes an image to a directory that shares no data with the store. Compresses the pages on request.
///
/// # Errors
///
/// The directory exists, or the image is not complete.
pub fn get_copy(
    location: &StoreLocation,
    image: &str,
    directory: &Path,
    compression: Option<&'static dyn Codec>,
) -> Result<Copied> {
    let source = location.image(image)?;
    location.existing(image)?.export(&source, directory, compression)?;
    Ok(Copied { path: directory.display().to_string() })
}

/// Removes a copy.
///
/// # Errors
///
/// There is no copy of this name, or the name belongs to a subject.
pub fn remove_copy(location: &StoreLocation, copy: &str) -> Result<()> {
    let name: SubjectName = copy.parse()?;
    Ok(location.existing(copy)?.remove_copy(&name)?)
}
