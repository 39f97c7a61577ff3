//! The registry of store backends. A new backend is a file here and a line in `BACKENDS`.
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

/// A storage type for images.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// The part of a location before `://`.
    pub scheme: &'static str,
    /// A short description for help and documentation.
    pub summary: &'static str,
    /// Returns the medium that serves locations with this scheme.
    pub connect: fn() -> Arc<dyn Medium>,
}

/// All backends.
pub const BACKENDS: &[Backend] = &[DIRECTORY];

const DIRECTORY: Backend = Backend {
    scheme: "dir",
    summary: "a directory of a local file system",
    connect: || Arc::new(Directory::default()),
};

/// Returns the medium and the path on the medium that a location names.
pub(crate) fn locate(location: &Path) -> Result<(Arc<dyn Medium>, PathBuf)> {
    let Some((scheme, rest)) = location.to_str().and_then(|text| text.split_once("://")) else {
        return Ok(((DIRECTORY.connect)(), location.to_path_buf()));
    };
    match BACKENDS.iter().find(|backend| backend.scheme == scheme) {
        Some(backend) => Ok(((backend.connect)(), PathBuf::from(rest))),
        None => Err(Error::UnknownBackend(scheme.to_owned())),
    }
}
