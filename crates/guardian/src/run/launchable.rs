//! Checks whether a program can be started with its settings, without starting it.
//!
//! Owns: the check of the user, the directory, the log and the program file.
//! Invariants: a check creates and changes nothing. A path is checked with the rights with which a start uses it.
//! Does not: check what the program itself needs, for example the interpreter of a script.

use std::ffi::{OsStr, OsString};
use std::fs::metadata;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sys::file_rights::{self, FileRights};
use sys::launch::User;
use sys::{Errno, Error};

use super::launch::Launch;
use crate::error::{GuardianError, Result};

const PATH: &str = "PATH";
/// The directories that execvp(3) searches if there is no variable PATH.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting {
    User,
    Directory,
    Log,
    Program,
}

impl Launch {
    /// Returns the settings with which `program` cannot be started now, each with the reason. If the user cannot be
    /// used, the other settings are not checked, because they depend on the rights of the user.
    pub(crate) fn obstacles(&self, program: &OsStr) -> Vec<(Setting, GuardianError)> {
        let rights = match self.check_user() {
            Ok(rights) => rights,
            Err(error) => return vec![(Setting::User, error)],
        };
        let checks = [
            (Setting::Directory, self.check_directory().map(drop)),
            (Setting::Log, self.check_log()),
            (Setting::Program, self.check_program(program, rights.as_ref())),
        ];
        checks.into_iter().filter_map(|(setting, outcome)| Some((setting, outcome.err()?))).collect()
    }

    /// Returns the rights of the program; `None` for the rights of this process.
    fn check_user(&self) -> Result<Option<FileRights>> {
        let Some((User { id, group, groups }, _)) = self.found_user()? else { return Ok(None) };
        if id == file_rights::own()?.user {
            return Ok(None);
        }
        let rights = FileRights { user: id, group, supplementary: groups, effective: 0 };
        file_rights::run_with(&rights, || ())?;
        Ok(Some(rights))
    }

    /// Checks that the log can be opened or created.
    fn check_log(&self) -> Result<()> {
        let Some(path) = &self.log else { return Ok(()) };
        let Some(rights) = self.rights_for(path)? else {
            return Ok(may_append(path).map_err(|errno| Error::path("open the log", path, errno))?);
        };
        let outcome = file_rights::run_with(&rights, || may_append(path))?;
        outcome.map_err(|errno| GuardianError::LogDenied { path: path.clone(), user: rights.user, errno })
    }

    /// Checks that the program file exists, and that the user of the program may execute it.
    fn check_program(&self, program: &OsStr, rights: Option<&FileRights>) -> Result<()> {
        let candidates = self.candidates(program);
        let find = || executable(&candidates);
        let found = rights.map_or_else(|| Ok(find()), |rights| file_rights::run_with(rights, find))?;
        found.map_err(|errno| GuardianError::Command {
            command: program.to_owned(),
            source: Error::path("execute", Path::new(program), errno),
        })
    }

    /// Returns the paths that execvp(3) tries for a program.
    fn candidates(&self, program: &OsStr) -> Vec<PathBuf> {
        let directory = self.directory.as_deref().unwrap_or(Path::new("."));
        if program.as_bytes().contains(&b'/') {
            return vec![directory.join(program)];
        }
        let own = self.environment.iter().rfind(|(name, _)| name == PATH).map(|(_, value)| value.clone());
        let search = own.or_else(|| std::env::var_os(PATH)).unwrap_or_else(|| OsString::from(PATH_DEFAULT));
        std::env::split_paths(&search).map(|at| directory.join(at).join(program)).collect()
    }
}

/// Looks for a file that the calling thread may execute. Like execvp(3), continues after a file that may not be
/// executed, and then reports EACCES.
fn executable(candidates: &[PathBuf]) -> std::result::Result<(), Errno> {
    let mut failure = Errno::ENOENT;
    for path in candidates {
        let outcome = match metadata(path) {
            Ok(found) if !found.is_file() => Err(Errno::EACCES),
            Ok(_) => file_rights::may_search(path).map_err(|error| error.errno),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(Errno::ENOENT) => {}
            Err(errno) => failure = errno,
        }
    }
    Err(failure)
}

/// Checks whether the calling thread may append to a file, or create the file.
fn may_append(path: &Path) -> std::result::Result<(), Errno> {
    let outcome = match metadata(path) {
        Ok(found) if found.is_dir() => return Err(rustix::io::Errno::ISDIR.into()),
        Ok(_) => file_rights::may_open(path, false, true),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            file_rights::may_create_in(path.parent().unwrap_or(path))
        }
        Err(error) => return Err(error.into()),
    };
    outcome.map_err(|error| error.errno)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(launch: &Launch, program: &str) -> Vec<Setting> {
        launch.obstacles(OsStr::new(program)).into_iter().map(|(setting, _)| setting).collect()
    }

    #[test]
    fn each_setting_that_prevents_a_start_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        create_dir(path("bin")).unwrap();
        write(path("bin/tool"), "").unwrap();
        write(path("bin/text"), "").unwrap();
        set_permissions(path("bin/tool"), Permissions::from_mode(0o755)).unwrap();
        let good = Launch { directory: Some(path("")), log: Some(path("log")), ..Launch::default() };
        for program in ["bin/tool", "sh", "/bin/sh"] {
            assert_eq!(settings(&good, program), [], "{program}");
        }
        for program in ["bin/text", "bin/none", "bin", "no-such-program", ""] {
            assert_eq!(settings(&good, program), [Setting::Program], "{program}");
        }
        let search = vec![(PATH.into(), path("bin").into())];
        let own = Launch { environment: search, ..good.clone() };
        assert_eq!((settings(&own, "tool"), settings(&own, "sh")), (vec![], vec![Setting::Program]));
        let gone = Launch { directory: Some(path("gone")), log: Some(path("gone/log")), ..good.clone() };
        assert_eq!(settings(&gone, "sh"), [Setting::Directory, Setting::Log]);
        let nobody = Launch { user: Some("nobody-here".into()), ..gone };
        assert_eq!(settings(&nobody, "none"), [Setting::User]);
        assert!(!path("log").exists(), "a check creates nothing");
    }

    #[test]
    fn files_are_checked_with_the_rights_of_the_user() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let tool = folder.path().join("tool");
        write(&tool, "").unwrap();
        set_permissions(&tool, Permissions::from_mode(0o700)).unwrap();
        let tool = tool.to_str().unwrap();
        assert_eq!(settings(&Launch::default(), tool), []);
        let nobody = Launch { user: Some("65534".into()), ..Launch::default() };
        assert_eq!(settings(&nobody, tool), [Setting::Program]);
        assert_eq!(settings(&nobody, "sh"), []);
    }
}
