//! The registry of store backends: a new one is a file here and a line in `BACKENDS`.
//!
//! Owns: choosing a backend by the scheme of a location.
//! Invariants: a location without a scheme is a directory.
//! Does not: open anything.

pub(crate) mod directory;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::directory::Directory;
use crate::error::{Error, Result};
use crate::medium::Medium;

/// A kind of place that images can live in.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// What comes before `://` in a location.
    pub scheme: &'static str,
    /// What it is, for help and documentation.
    pub summary: &'static str,
    /// Gives the medium that serves the rest of a location.
    pub connect: fn() -> Arc<dyn Medium>,
}

/// Every backend.
pub const BACKENDS: &[Backend] = &[DIRECTORY];

const DIRECTORY: Backend = Backend {
    scheme: "dir",
    summary: "a directory of a local file system",
    connect: || Arc::new(Directory::default()),
};

/// The medium and the path on it that a location names.
pub(crate) fn locate(location: &Path) -> Result<(Arc<dyn Medium>, PathBuf)> {
    let Some((scheme, rest)) = location.to_str().and_then(|text| text.split_once("://")) else {
        return Ok(((DIRECTORY.connect)(), location.to_path_buf()));
    };
    match BACKENDS.iter().find(|backend| backend.scheme == scheme) {
        Some(backend) => Ok(((backend.connect)(), PathBuf::from(rest))),
        None => Err(Error::UnknownBackend(scheme.to_owned())),
    }
}
