//! Where things are: the victims' sources, the build directory, the binary.
//!
//! Owns: finding these three.
//! Does not: create anything but the folders below the build directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::HarnessError;

/// The folder with the victims' sources.
pub(crate) fn victims_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("victims")
}

/// The build directory that the running test was built into.
pub(crate) fn target_folder() -> PathBuf {
    if let Some(folder) = env::var_os("CARGO_TARGET_DIR") {
        return PathBuf::from(folder);
    }
    profile_folder()
        .and_then(|profile| profile.parent().map(Path::to_path_buf))
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"))
}

/// `target/debug` or `target/release`: the folder above the one with the test binaries.
fn profile_folder() -> Option<PathBuf> {
    let executable = env::current_exe().ok()?;
    let dependencies = executable.ancestors().find(|folder| folder.ends_with("deps"))?;
    dependencies.parent().map(Path::to_path_buf)
}

/// A folder below the build directory, created if need be.
pub(crate) fn folder_in_target(name: &str) -> Result<PathBuf, HarnessError> {
    let folder = target_folder().join(name);
    fs::create_dir_all(&folder).map_err(|source| HarnessError::File {
        operation: "create",
        path: folder.clone(),
        source,
    })?;
    Ok(folder)
}

/// The `undying` binary: `UNDYING_BIN`, or the one beside the running test, or any other profile's.
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
