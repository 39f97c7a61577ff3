//! Uses paths of a component that runs as another user, without giving this user rights of this process.
//!
//! Owns: the check whether the user can change where a path leads, and the rights with which a path is used.
//! Invariants: a path that the user of the component can change is used only with the rights of this user.
//! Does not: restrict the paths of a component that runs as the user of this process.

use std::ffi::OsString;
use std::fs::{Metadata, metadata, read_link, symlink_metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use sys::file_rights::{self, FileRights};
use sys::launch::User;

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
/// In a directory with this bit, only the owner of a file can rename or remove the file.
const STICKY: u32 = 0o1000;
/// Maximum number of symbolic links on a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// Returns the rights with which a path of a component is used. `None`: the rights of this process, because the
/// component has the same user, or because its user cannot change where the path leads.
///
/// # Errors
///
/// The rights of this process cannot be read.
pub(super) fn rights_for(user: &User, path: &Path) -> sys::Result<Option<FileRights>> {
    let own = file_rights::own()?.user;
    let User { id, group, groups } = user.clone();
    let rights = FileRights { user: id, group, supplementary: groups, effective: 0 };
    Ok((id != own && !is_fixed(path, own, &rights)).then_some(rights))
}

/// Reports whether only root and the user `own` can change where an absolute path leads. The file itself may be
/// missing. Symbolic links are followed, because another user cannot have changed them.
fn is_fixed(path: &Path, own: u32, of_component: &FileRights) -> bool {
    // The names that are left, with the next name at the end.
    let (mut left, mut at, mut links) = (reversed(path), PathBuf::from("/"), 0);
    if !path.is_absolute() {
        return false;
    }
    while let Some(name) = left.pop() {
        if name == "/" {
            at = PathBuf::from("/");
            continue;
        }
        if name == ".." {
            at.pop();
            continue;
        }
        let Some(writers) = writers(&at, own, of_component) else { return false };
        let next = at.join(name);
        match symlink_metadata(&next) {
            Err(error) => {
                let is_new_file = error.kind() == ErrorKind::NotFound && left.is_empty();
                return is_new_file && writers == Writers::Own;
            }
            // Another user can link any file into a shared directory, but no directory.
            Ok(found) if writers == Writers::Shared => {
                if left.is_empty() || !found.is_dir() || !is_own(&found, own) {
                    return false;
                }
                at = next;
            }
            Ok(found) if found.is_symlink() => {
                links += 1;
                let Some(target) = read_link(&next).ok().filter(|_| links <= LINKS_MAX) else { return false };
                left.extend(reversed(&target));
            }
            Ok(_) => at = next,
        }
    }
    true
}

/// The users that can create files in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    /// Only root, this user, and trusted groups.
    Own,
    /// All users, but they cannot rename or remove files of other users.
    Shared,
}

/// Returns the users that can create files in a directory. Returns `None` if another user can also rename files of
/// other users.
fn writers(directory: &Path, own: u32, of_component: &FileRights) -> Option<Writers> {
    let found = metadata(directory).ok().filter(|found| is_own(found, own))?;
    let mode = found.mode();
    // The bit of the group is also set if an access control list names a user who may write. The directory
    // /var/log belongs to a group of the system logger in some distributions.
    let is_open = mode & OTHERS_WRITE != 0 || mode & GROUP_WRITES != 0 && may_write(of_component, directory);
    match (is_open, mode & STICKY != 0) {
        (false, _) => Some(Writers::Own),
        (true, true) => Some(Writers::Shared),
        (true, false) => None,
    }
}

fn may_write(of_component: &FileRights, directory: &Path) -> bool {
    let answer = file_rights::run_with(of_component, || file_rights::may_create_in(directory));
    // If the rights cannot be tried, the component may have them.
    !matches!(answer, Ok(Err(_)))
}

fn is_own(found: &Metadata, own: u32) -> bool {
    found.uid() == 0 || found.uid() == own
}

fn reversed(path: &Path) -> Vec<OsString> {
    let is_name = |component: &Component<'_>| !matches!(component, Component::CurDir);
    path.components().rev().filter(is_name).map(|component| component.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const USER: u32 = 65_534;

    #[test]
    fn only_a_path_that_the_user_cannot_change_is_used_with_our_rights() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let user = User { id: USER, group: USER, groups: vec![7] };
        let is_ours = |name: &str| rights_for(&user, &folder.join(name)).unwrap().is_none();
        let make = |name: &str, mode: u32, owner: u32, group: u32| {
            create_dir(folder.join(name)).unwrap();
            chown(folder.join(name), Some(owner), Some(group)).unwrap();
            set_permissions(folder.join(name), Permissions::from_mode(mode)).unwrap();
        };
        set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        make("ours", 0o755, 0, 0);
        make("ours/theirs", 0o755, USER, USER);
        make("ours/theirs/below", 0o755, 0, 0);
        make("group", 0o775, 0, 7);
        make("other-group", 0o775, 0, 8);
        make("open", 0o777, 0, 0);
        make("sticky", 0o1777, 0, 0);
        make("sticky/ours", 0o755, 0, 0);
        make("sticky/theirs", 0o755, USER, USER);
        write(folder.join("ours/log"), "").unwrap();
        write(folder.join("sticky/log"), "").unwrap();
        symlink("../ours/./log", folder.join("ours/link")).unwrap();
        symlink("theirs/log", folder.join("ours/link-to-theirs")).unwrap();
        symlink("loop", folder.join("ours/loop")).unwrap();
        for name in ["ours/log", "ours/new", "ours/link", "other-group/new", "sticky/ours/new"] {
            assert!(is_ours(name), "{name}");
        }
        for name in [
            "ours/theirs/new",
            "ours/theirs/below/new",
            "group/new",
            "open/new",
            "sticky/new",
            "sticky/log",
            "sticky/theirs/new",
            "ours/link-to-theirs",
            "ours/loop",
            "ours/missing/new",
        ] {
            assert!(!is_ours(name), "{name}");
        }
        let root = User { id: 0, group: 0, groups: Vec::new() };
        assert_eq!(rights_for(&root, &folder.join("open/new")).unwrap(), None);
    }
}
