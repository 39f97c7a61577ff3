//! What a test needs from the machine.
//!
//! Owns: looking for programs and rights, saying `unsupported: X`.

use std::path::{Path, PathBuf};

/// Folders with servers that are not in every PATH.
const MORE_FOLDERS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/go/bin"];

/// Whether everything is here; else says what is not.
pub(crate) fn are_met(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    let lacks = match missing {
        Some(program) => Some((*program).to_owned()),
        None if !rustix::process::geteuid().is_root() => Some("root".to_owned()),
        None => None,
    };
    if let Some(lacks) = &lacks {
        testkit::unsupported(lacks);
    }
    lacks.is_none()
}

/// The path of an installed program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(MORE_FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
