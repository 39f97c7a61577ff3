//! The locations of the victims' sources, the build directory, and the binary.
//!
//! Owns: the search for these three paths.
//! Does not: create anything except directories below the build directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::HarnessError;

/// Returns the directory with the sources of the victims (test programs).
pub(crate) fn victims_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("victims")
}

/// Returns the build directory of the running test.
pub(crate) fn target_folder() -> PathBuf {
    if let Some(folder) = env::var_os("CARGO_TARGET_DIR") {
        return PathBuf::from(folder);
    }
    profile_folder()
        .and_then(|profile| profile.parent().map(Path::to_path_buf))
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"))
}

/// Returns `target/debug` or `target/release`, the parent of the directory with the test binaries.
fn profile_folder() -> Option<PathBuf> {
    let executable = env::current_exe().ok()?;
    let dependencies = executable.ancestors().find(|folder| folder.ends_with("deps"))?;
    dependencies.parent().map(Path::to_path_buf)
}

/// Returns a directory below the build directory, and creates it if necessary.
pub(crate) fn folder_in_target(name: &str) -> Result<PathBuf, HarnessError> {
    let folder = target_folder().join(name);
    fs::create_dir_all(&folder).map_err(|source| HarnessError::File {
        operation: "create",
        path: folder.clone(),
        source,
    })?;
    Ok(folder)
}

/// Returns the path of the `undying` binary: `UNDYING_BIN`, or the binary of the profile of the running test, or the
/// binary of another profile.
pub(crate) fn undying_binary() -> Result<PathBuf, HarnessError> {
    if let Some(binary) = env::var_os("UNDYING_BIN") {
        let binary = PathBuf::from(binary);
        return if binary.is_file() { Ok(binary) } else { Err(HarnessError::NoBinary(binary)) };
    }
    let own = profile_folder().map(|profile| profile.join("undying"));
    let others = ["debug", "release"].map(|profile| target_folder().join(profile).join("undying"));
    let mut candidates = own.into_iter().chain(others);
    let found = candidates.find(|candidate| candidate.is_file());
    found.ok_or_else(|| HarnessError::NoBinary(target_folder().join("debug/undying")))
}
