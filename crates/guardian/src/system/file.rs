//! The file that describes a system.
//!
//! Owns: reading it from the disk.
//! Does not: know its keys; `supervise` does.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use supervise::System;

use crate::error::GuardianError;

/// Far more than thousands of components; `/dev/zero` is no system file.
const BYTES_MAX: u64 = 16 << 20;

/// Reads a system file and checks all that can be told without looking at this machine.
///
/// # Errors
///
/// That it cannot be read, or all that is wrong with it.
pub fn read_system(path: &Path) -> Result<System, GuardianError> {
    let failed = |error: std::io::Error| sys::Error::path("read", path, error);
    let mut content = Vec::new();
    File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut content)).map_err(failed)?;
    System::parse(content).map_err(|mistakes| GuardianError::System {
        path: path.to_path_buf(),
        mistakes: mistakes.shown(&path.to_string_lossy()),
    })
}
