//! What lies in a log that nothing refers to.
//!
//! Owns: the choice of the segments that can go.
//! Invariants: only while nobody writes the log, which the caller's lock says.
//! Does not: remove them.

use std::path::{Path, PathBuf};

use super::layout;
use super::load::LogFiles;
use super::open;
use crate::error::Result;
use crate::medium::Medium;

/// Segments that no checkpoint of the log in this directory needs.
pub(crate) fn unreferenced(medium: &dyn Medium, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = LogFiles::new(medium, directory);
    let newest = files.newest()?;
    let kept = match &newest {
        Some(newest) => open::kept(&mut files, newest)?,
        None => Vec::new(),
    };
    let needed = open::needed(&kept, newest.as_ref());
    let there = layout::files(medium, directory)?.into_iter();
    let garbage = there.flat_map(|(number, files)| match needed.contains(&number) {
        true => files.leftovers(directory, number),
        false => files.paths(directory, number),
    });
    Ok(garbage.collect())
}
