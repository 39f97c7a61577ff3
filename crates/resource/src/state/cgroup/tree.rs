//! Saves and creates control groups of a hierarchy without controllers.
//!
//! Owns: modes and owners of a group, of the groups above and below the group, and of their files; the two settings of
//! a group.
//! Invariants: only missing groups are created. An existing group is not changed.
//! Does not: save which processes are in a group.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use sys::Error;

/// The maximum number of saved groups below one group. A program that arranges its own threads needs fewer groups.
pub(super) const BELOW_MAX: usize = 256;
/// Files that list the members of a group. `SETTINGS` are the files with the two settings of a group.
const FILES: &[&str] = &["cgroup.procs", "tasks"];
const SETTINGS: &[&str] = &["notify_on_release", "cgroup.clone_children"];

/// The record of one group in the image.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Group {
    /// The path of the group, relative to the root of the hierarchy.
    #[prost(string, tag = "1")]
    pub(super) path: String,
    #[prost(message, required, tag = "2")]
    access: Access,
    #[prost(message, repeated, tag = "3")]
    files: Vec<File>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Access {
    #[prost(uint32, tag = "1")]
    mode: u32,
    #[prost(uint32, tag = "2")]
    user: u32,
    #[prost(uint32, tag = "3")]
    group: u32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, required, tag = "2")]
    access: Access,
    /// The content of a setting; `None` for other files.
    #[prost(bytes = "vec", optional, tag = "3")]
    value: Option<Vec<u8>>,
}

/// The reason why groups cannot be saved.
#[derive(Debug)]
pub(super) enum Failure {
    /// More than [`BELOW_MAX`] groups are below the group.
    TooMany,
    /// A system call failed.
    Kernel(Error),
}

/// Saves a group with the groups above and below the group, outermost first. `place` returns the directory of a group.
pub(super) fn save(path: &str, place: impl Fn(&str) -> Option<PathBuf>) -> Result<Vec<Group>, Failure> {
    let mut found = Vec::new();
    let above = path.char_indices().skip(1).filter(|(_, letter)| *letter == '/').map(|(at, _)| &path[..at]);
    for path in above.chain([path]) {
        if let Some(directory) = place(path) {
            found.extend(save_one(path, &directory)?);
        }
    }
    let mut waiting = vec![path.to_owned()];
    let first_below = found.len();
    while let Some(path) = waiting.pop() {
        let Some(directory) = place(&path) else { continue };
        for name in names_below(&directory)? {
            let path = format!("{}/{name}", path.trim_end_matches('/'));
            found.extend(save_one(&path, &directory.join(name))?);
            if found.len() - first_below > BELOW_MAX {
                return Err(Failure::TooMany);
            }
            waiting.push(path);
        }
    }
    Ok(found)
}

fn names_below(directory: &Path) -> Result<Vec<String>, Failure> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        outcome => outcome.map_err(|error| failed("list the control group", directory, error))?,
    };
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Saves one group. Returns `None` if the group was removed in the meantime.
fn save_one(path: &str, directory: &Path) -> Result<Option<Group>, Failure> {
    let Some(access) = access_of(directory)? else { return Ok(None) };
    let mut files = Vec::new();
    for name in FILES.iter().chain(SETTINGS) {
        let file = directory.join(name);
        let Some(access) = access_of(&file)? else { continue };
        let value = if SETTINGS.contains(name) {
            Some(fs::read(&file).map_err(|error| failed("read the setting", &file, error))?)
        } else {
            None
        };
        files.push(File { name: (*name).to_owned(), access, value });
    }
    Ok(Some(Group { path: path.to_owned(), access, files }))
}

fn access_of(path: &Path) -> Result<Option<Access>, Failure> {
    match fs::metadata(path) {
        Ok(data) => Ok(Some(Access { mode: data.mode() & 0o7777, user: data.uid(), group: data.gid() })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("stat the control group", path, error)),
    }
}

fn failed(operation: &'static str, path: &Path, error: io::Error) -> Failure {
    Failure::Kernel(Error::path(operation, path, error))
}

impl Group {
    /// Creates the group in `directory`, which must not exist yet.
    pub(super) fn make(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir(directory)?;
        for file in &self.files {
            let path = directory.join(&file.name);
            if let Some(value) = &file.value
                && fs::read(&path).is_ok_and(|now| now != *value)
            {
                fs::write(&path, value)?;
            }
            file.access.apply(&path)?;
        }
        self.access.apply(directory)
    }
}

impl Access {
    fn apply(&self, path: &Path) -> io::Result<()> {
        let now = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            outcome => outcome?,
        };
        if (now.uid(), now.gid()) != (self.user, self.group) {
            std::os::unix::fs::chown(path, Some(self.user), Some(self.group))?;
        }
        if now.mode() & 0o7777 != self.mode {
            fs::set_permissions(path, fs::Permissions::from_mode(self.mode))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a directory with the files of a group.
    fn group_in(root: &Path, path: &str, mode: u32) {
        let directory = root.join(path);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("tasks"), "").unwrap();
        fs::write(directory.join("notify_on_release"), "1\n").unwrap();
        fs::write(directory.join("memory.max"), "not ours").unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn groups_are_saved_and_created_with_those_above_and_below() {
        let old = tempfile::tempdir().unwrap();
        for (path, mode) in
            [("a", 0o711), ("a/b", 0o750), ("a/b/d", 0o700), ("a/b/d/e", 0o755), ("a/c", 0o755)]
        {
            group_in(old.path(), path, mode);
        }
        let saved = save("/a/b", |path| Some(old.path().join(&path[1..]))).unwrap();
        let paths: Vec<&str> = saved.iter().map(|group| group.path.as_str()).collect();
        assert_eq!(paths, ["/a", "/a/b", "/a/b/d", "/a/b/d/e"]);
        let files: Vec<&str> = saved[1].files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(files, ["tasks", "notify_on_release"]);
        let new = tempfile::tempdir().unwrap();
        for group in &saved {
            group.make(&new.path().join(&group.path[1..])).unwrap();
        }
        for (path, mode) in [("a", 0o711), ("a/b", 0o750), ("a/b/d", 0o700), ("a/b/d/e", 0o755)] {
            assert_eq!(fs::metadata(new.path().join(path)).unwrap().mode() & 0o7777, mode, "{path}");
        }
        assert!(saved[0].make(&new.path().join("a")).is_err(), "an existing group is refused");
    }

    #[test]
    fn more_groups_than_the_limit_are_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        for number in 0..=BELOW_MAX {
            fs::create_dir(root.path().join(format!("a/{number}"))).unwrap();
        }
        let place = |path: &str| Some(root.path().join(&path[1..]));
        assert!(matches!(save("/a", place), Err(Failure::TooMany)));
        fs::remove_dir(root.path().join("a/0")).unwrap();
        assert_eq!(save("/a", place).unwrap().len(), 1 + BELOW_MAX);
        assert_eq!(save("/b", place).unwrap(), []);
    }
}
