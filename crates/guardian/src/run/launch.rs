//! The settings with which a program is started: environment, directory, user, output. The command of the program is
//! not part of these settings.
//!
//! Owns: these settings, the lookup of users and groups, and the steps between fork and exec.
//! Invariants: a program that runs as another user never has a privilege of this process. If a step fails, the start
//! fails.
//! Does not: decide when a program is started.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use health::ready::FdReady;
use model::Fd;
use rustix::fs::OFlags;
use sys::Error;
use sys::file_rights::{self, FileRights};
use sys::launch::User;

use super::channels::ComponentChannels;
use super::component_path;
use super::damaged::Damaged;
use crate::error::{GuardianError, Result};

/// Mode of the log of a component: only its owner may read and write it.
const LOG_MODE: u32 = 0o600;
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// The settings with which a program is started, without its command. The default is an ordinary child process, which
/// inherits the environment, the directory and the user of this process.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Variables that are added to the inherited environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Names of variables that are removed from the inherited environment.
    pub removed: Vec<OsString>,
    /// The working directory. `None`: the inherited directory.
    pub directory: Option<PathBuf>,
    /// The user, by name or by number. `None`: the inherited user.
    pub user: Option<String>,
    /// The file to which standard output and standard error are appended.
    pub log: Option<PathBuf>,
    /// Whether the program has a session of its own and reads from /dev/null. Signals of a terminal then do not reach
    /// the program.
    pub is_service: bool,
    /// A shell command that runs after each restore, before the program goes on.
    pub on_restore: Option<OsString>,
    /// A pipe by which the program reports that it is ready.
    pub ready: Option<Arc<ReadyPipe>>,
    /// Pages of executable files whose copy in memory is damaged.
    pub damaged: Damaged,
    /// The channels of the component. While the program is dead, they keep its listening sockets open, and other
    /// components that connect to it wait.
    pub channels: Option<ComponentChannels>,
}

/// A pipe for reports of readiness. Each incarnation of a program is started with a new writing end.
#[derive(Debug)]
pub struct ReadyPipe {
    number: Fd,
    reader: Mutex<Option<FdReady>>,
}

impl ReadyPipe {
    /// Creates a pipe. `number` is the descriptor number of the writing end in the program.
    #[must_use]
    pub fn new(number: Fd) -> Self {
        Self { number, reader: Mutex::default() }
    }

    /// Returns the reading end for the last started incarnation, if it was not taken yet.
    pub fn take(&self) -> Option<FdReady> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn prepare(&self, command: &mut Command) -> Result<()> {
        let (reader, writer) = FdReady::pipe()?;
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
        // The command owns the writing end, so dropping the command closes the writing end in this program.
        sys::launch::start_with_descriptor(command, self.number, writer);
        Ok(())
    }
}

impl Launch {
    /// Returns the signals that get their default actions in the program, as a set of bits. A service must end at each
    /// signal that its description names as `stop_signal`, however `undying` was started: nohup(1) and background
    /// commands of a shell pass ignored signals on. Only SIGPIPE stays as it is, because it ends nothing by intention.
    pub(super) fn default_signals(&self) -> u64 {
        const PIPE: u32 = 13;
        const CANNOT_CHANGE: [u32; 2] = [9, 19];
        let standard = (1..32).filter(|number| *number != PIPE && !CANNOT_CHANGE.contains(number));
        if self.is_service { standard.map(|number| 1 << (number - 1)).sum() } else { 0 }
    }

    /// Opens the log file, if one is set. If the user of the program can change where the path of the log leads, the log
    /// is opened with the rights of this user.
    pub(super) fn open_log(&self) -> Result<Option<OwnedFd>> {
        let Some(path) = &self.log else { return Ok(None) };
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(LOG_MODE);
        let Some(rights) = self.rights_for(path)? else {
            let opened = options.open(path).map_err(|error| Error::path("open the log", path, error))?;
            return Ok(Some(opened.into()));
        };
        // A FIFO without a reader must not block this thread.
        let flags = OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
        let failed = |errno| GuardianError::LogDenied { path: path.clone(), user: rights.user, errno };
        let opened = file_rights::run_with(&rights, || options.open(path))?;
        let opened = OwnedFd::from(opened.map_err(|error| failed(error.into()))?);
        let kept = rustix::fs::fcntl_getfl(&opened).map_err(|errno| failed(errno.into()))? - flags;
        rustix::fs::fcntl_setfl(&opened, kept).map_err(|errno| failed(errno.into()))?;
        Ok(Some(opened))
    }

    /// Returns the rights with which a path of the program is used. `None`: the rights of this process.
    pub(super) fn rights_for(&self, path: &Path) -> Result<Option<FileRights>> {
        let found = self.found_user()?;
        Ok(found.map(|(user, _)| component_path::rights_for(&user, path)).transpose()?.flatten())
    }

    /// Looks up the user and the home directory of the program, if a user is set.
    pub(super) fn found_user(&self) -> Result<Option<(User, Option<PathBuf>)>> {
        let Some(name) = &self.user else { return Ok(None) };
        let known = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let found = user(name, &known(PASSWD), &known(GROUP));
        found.map(Some).ok_or_else(|| GuardianError::NoUser { name: name.clone() })
    }

    /// Prepares the steps that need no privilege. If there is a log, it becomes standard output and standard error.
    pub(super) fn prepare(&self, command: &mut Command, log: Option<&OwnedFd>) -> Result<()> {
        for name in &self.removed {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if self.is_service {
            command.stdin(Stdio::null());
            sys::launch::start_in_session(command);
        }
        if let Some(log) = log {
            let copy = || log.try_clone().map_err(|error| Error::new("duplicate the log", error));
            command.stdout(copy()?).stderr(copy()?);
        }
        self.ready.as_ref().map_or(Ok(()), |ready| ready.prepare(command))
    }

    /// Checks that the program can enter its directory. Returns the rights with which the program enters the directory.
    /// `None`: the rights of this process.
    pub(super) fn check_directory(&self) -> Result<Option<FileRights>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let rights = self.rights_for(directory)?;
        match &rights {
            Some(rights) => file_rights::run_with(rights, || can_enter(directory))??,
            None => can_enter(directory)?,
        }
        Ok(rights)
    }

    /// Prepares the change of the directory and the user, which must be the last preparation. If the user can change
    /// where the path of the directory leads, the program enters the directory with the rights of the user.
    pub(super) fn prepare_user(&self, command: &mut Command) -> Result<()> {
        // The directory is checked here, because a later failure would look like a failure to execute the program.
        let rights = self.check_directory()?;
        if let Some(directory) = self.directory.as_ref().filter(|_| rights.is_none()) {
            command.current_dir(directory);
        }
        if let Some((user, home)) = self.found_user()? {
            let name = self.user.iter();
            command.envs(["USER", "LOGNAME"].into_iter().zip(name.cycle()));
            command.envs(home.map(|home| ("HOME", home)));
            sys::launch::start_as(command, user);
        }
        if let Some(directory) = self.directory.as_ref().filter(|_| rights.is_some()) {
            sys::launch::start_in(command, directory)?;
        }
        Ok(())
    }
}

/// Checks whether the calling thread can change to a directory.
fn can_enter(directory: &Path) -> sys::Result<()> {
    let failed = |why: sys::Errno| Error::path("change to the directory", directory, why);
    let found = std::fs::metadata(directory).map_err(|error| failed(error.into()))?;
    if !found.is_dir() {
        return Err(failed(rustix::io::Errno::NOTDIR.into()));
    }
    file_rights::may_search(directory).map_err(|error| failed(error.errno))
}

/// Looks up a user and the home directory. getpwnam(3) is not used, because a statically linked program cannot load the
/// modules of the name service.
fn user(name: &str, passwd: &str, group: &str) -> Option<(User, Option<PathBuf>)> {
    let entries = passwd.lines().map(|line| line.split(':').collect::<Vec<&str>>());
    let known = entries.filter(|entry| entry.len() >= 6).find(|entry| entry[0] == name || entry[2] == name);
    let Some(entry) = known else {
        // A numeric user needs no entry.
        let id = name.parse().ok()?;
        return Some((User { id, group: id, groups: Vec::new() }, None));
    };
    let (id, primary) = (entry[2].parse().ok()?, entry[3].parse().ok()?);
    let is_member = |members: &str| members.split(',').any(|member| member.trim() == entry[0]);
    let groups = group.lines().map(|line| line.split(':').collect::<Vec<&str>>());
    let groups = groups.filter(|group| group.len() >= 4 && is_member(group[3]));
    let groups = groups.filter_map(|group| group[2].parse().ok()).collect();
    Some((User { id, group: primary, groups }, Some(PathBuf::from(entry[5]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www:/var/www:/usr/sbin/nologin\nbroken\n";
    const GROUPS: &str = "root:x:0:\nadm:x:4:syslog,www-data\nssl:x:99:www-data\n";

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let expected = User { id: 33, group: 33, groups: vec![4, 99] };
        for name in ["www-data", "33"] {
            let (found, home) = user(name, USERS, GROUPS).unwrap();
            assert_eq!((found, home), (expected.clone(), Some(PathBuf::from("/var/www"))));
        }
        let unknown = User { id: 1234, group: 1234, groups: Vec::new() };
        assert_eq!(user("1234", USERS, GROUPS), Some((unknown, None)));
        assert_eq!(user("nobody-here", USERS, GROUPS), None);
    }
}
