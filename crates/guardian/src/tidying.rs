//! Maintenance of a store: merging, garbage collection, named copies.
//!
//! Owns: the answers of `squash`, `gc`, `store`, `get`, `link` and `del`.
//! Invariants: what another process writes is refused by name, or not touched. The checkpoints of a subject are never
//! removed here.
//! Does not: know the storage format of an image.

use std::path::Path;

use serde::Serialize;
use store::{Codec, SubjectName};

use crate::error::{GuardianError, Result};
use crate::exit::ExitCode;
use crate::location::StoreLocation;

/// What `squash` did.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct SquashReport {
    pub name: String,
    /// The checkpoint that was written anew; `None` when every checkpoint is an image of its own already.
    pub seq: Option<u64>,
    /// Parts that its index had.
    pub parts: usize,
    /// Bytes of its pages.
    pub bytes: u64,
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Older checkpoints that stay, and with them what they need.
    pub older: usize,
}

/// Something that nothing refers to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GarbageItem {
    /// The file or directory.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// What `gc` found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GarbageReport {
    /// What nothing refers to.
    pub found: Vec<GarbageItem>,
    /// Whether it was removed.
    pub removed: bool,
    /// Subjects whose log is being written; its writer tidies it.
    pub busy: Vec<String>,
    /// Subjects left alone because something of them is damaged or cannot be trusted, and what.
    pub damaged: Vec<(String, String)>,
    /// The exit code of the first of them.
    #[serde(skip)]
    pub code: ExitCode,
}

/// A copy that was made.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Copied {
    /// Where it is.
    pub path: String,
}

/// Merges the deltas of a subject's newest checkpoint.
///
/// # Errors
///
/// When its log is being written, or the store has no such subject or no checkpoint of it, or cannot be changed.
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

/// Finds what nothing in the store refers to, and removes it unless this is a rehearsal.
///
/// # Errors
///
/// When the store cannot be read or changed.
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

/// Keeps an image under a name of its own.
///
/// # Errors
///
/// When the name is taken, or the image is not whole.
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
/// When the first is no copy, or the second is taken.
pub fn link_copy(location: &StoreLocation, copy: &str, new: &str) -> Result<Copied> {
    let (name, new): (SubjectName, SubjectName) = (copy.parse()?, SubjectName::chosen(new)?);
    let store = location.existing(copy)?;
    let source = store.resolve(copy)?;
    if store.copy_of(&name)?.is_none() {
        return Err(store::Error::NotACopy(name.to_string()).into());
    }
    Ok(Copied { path: store.keep_copy(&source, &new)?.display().to_string() })
}

/// Writes an image to a directory of its own, which shares nothing with the store; compresses its pages on request.
///
/// # Errors
///
/// When the directory exists, or the image is not whole.
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
/// When there is none of this name, or it is a subject's own.
pub fn remove_copy(location: &StoreLocation, copy: &str) -> Result<()> {
    let name: SubjectName = copy.parse()?;
    Ok(location.existing(copy)?.remove_copy(&name)?)
}
