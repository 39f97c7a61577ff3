//! The rights of the thread that makes a call.
//!
//! The kernel reports a call before it decides whether the thread may make the call. This program usually runs as root,
//! so that its own access to the file says nothing about the thread. Therefore, this module reads the rights of the
//! thread, takes them on, and lets the kernel decide.
//!
//! The thread waits for the answer, and only the thread itself can change its credentials. Therefore, the credentials
//! cannot change between the decision here and the decision of the kernel. Security modules (LSM) are not asked.
//!
//! Owns: the rights of the present caller, and code that runs with these rights.
//! Invariants: a thread with at least the rights of this program costs only one or two short queries.
//! Does not: know which rights a call needs; `permission` does.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use model::Tid;
use sys::file_rights::{self, FileRights, OwnRights, StatusFile};

use crate::error::Result;
use crate::rights::{Namespace, Rights};

/// Capabilities that let a thread change every file, also a file of another user.
const CHANGES_ALL: u64 = file_rights::CHOWN | file_rights::DAC_OVERRIDE | file_rights::FOWNER;
/// Capabilities that count only in the user namespace of the thread.
const COUNTED: u64 = file_rights::OF_FILES | file_rights::SYS_ADMIN | file_rights::SETFCAP;

/// The rights of this program, and the rights of callers.
#[derive(Debug)]
pub(super) struct Callers {
    own: OwnRights,
    /// The user namespace of this program: device and inode number.
    namespace: (u64, u64),
    /// The status files of threads that have called.
    statuses: HashMap<Tid, StatusFile>,
}

/// A user id and group id that no file has.
const NOBODY: u32 = u32::MAX - 1;
/// Maximum number of status files that are held open.
const STATUSES_MAX: usize = 64;

impl Callers {
    /// Reads the rights of this program. All threads of the watch have these rights.
    pub(super) fn new() -> Result<Self> {
        let namespace = namespace_of("self")?;
        Ok(Self { own: OwnRights::new()?, namespace, statuses: HashMap::new() })
    }

    /// Returns the rights of a thread. Returns `None` if the thread has at least the rights of this program.
    pub(super) fn rights_of(&mut self, thread: Tid) -> Result<Option<Rights>> {
        if self.is_equal(thread)? {
            return Ok(None);
        }
        let files = self.files_of(thread)?;
        let is_here = files.effective & COUNTED == 0 || namespace_of(&thread.to_string())? == self.namespace;
        let namespace = if is_here { None } else { Some(ids_of(thread)?) };
        Ok(Some(Rights { files, namespace }))
    }

    /// Returns the rights with which a rollback may revert the changes of a thread with these rights. `None` means the
    /// same rights.
    ///
    /// A set-user-ID program makes only the change for which it was written, for example of one line of a file. Its user
    /// could not revert later changes of this file, so that the rollback may not do it, either.
    pub(super) fn limit_of(thread: Tid, rights: Option<&Rights>) -> Result<Option<Rights>> {
        let has_own_rights_only =
            rights.is_some_and(|rights| rights.files.effective & COUNTED == 0 && rights.files.user != 0);
        if has_own_rights_only || !file_rights::is_raised(thread)? {
            return Ok(None);
        }
        let (user, group) = (NOBODY, NOBODY);
        let files = FileRights { user, group, supplementary: Vec::new(), effective: 0 };
        Ok(Some(Rights { files, namespace: None }))
    }

    fn files_of(&mut self, thread: Tid) -> Result<FileRights> {
        // A status file of an ended thread cannot be read. Its id can belong to a new thread now.
        if let Some(rights) = self.statuses.get(&thread).and_then(|status| status.rights().ok()) {
            return Ok(rights);
        }
        let status = StatusFile::open(thread)?;
        let rights = status.rights()?;
        if self.statuses.len() >= STATUSES_MAX {
            self.statuses.clear();
        }
        self.statuses.insert(thread, status);
        Ok(rights)
    }

    /// Reports whether a thread has at least the rights of this program.
    ///
    /// With the capabilities in `CHANGES_ALL`, the file-system user and the groups of a thread do not matter. A thread
    /// that creates a user namespace has all capabilities there, but they do not count outside. As seen from the user
    /// namespace of this program, the user of such a thread stays the same. Therefore, the user must be equal, too.
    fn is_equal(&self, thread: Tid) -> Result<bool> {
        let own = self.own.rights();
        let needed = own.effective & file_rights::OF_FILES;
        if needed & CHANGES_ALL != CHANGES_ALL {
            return Ok(false);
        }
        if file_rights::effective_of(thread)? & needed != needed {
            return Ok(false);
        }
        // The kernel shows the effective user of a thread as the owner of its directory in /proc.
        let path = format!("/proc/{thread}");
        let stat = rustix::fs::stat(&path).map_err(|errno| sys::Error::path("inspect", &path, errno))?;
        Ok(stat.st_uid == own.user)
    }

    /// Runs `work` with the rights of a thread. With `None`, runs `work` with the own rights.
    pub(super) fn act<Output>(
        &self,
        rights: Option<&Rights>,
        work: impl FnOnce() -> Output,
    ) -> Result<Output> {
        match rights {
            Some(rights) => Ok(self.own.act(&rights.to_act(), work)?),
            None => Ok(work()),
        }
    }
}

/// Returns the identity of the user namespace of a process or thread.
fn namespace_of(process: &str) -> Result<(u64, u64)> {
    let path = format!("/proc/{process}/ns/user");
    let found = fs::metadata(&path).map_err(|error| sys::Error::path("inspect", &path, error))?;
    Ok((found.dev(), found.ino()))
}

/// Reads the ids that the user namespace of a thread contains, as ids of the user namespace of this program.
fn ids_of(thread: Tid) -> Result<Namespace> {
    let read = |name: &str| -> Result<Vec<u32>> {
        let path = format!("/proc/{thread}/{name}");
        let text = fs::read_to_string(&path).map_err(|error| sys::Error::path("read", &path, error))?;
        Ok(text.lines().filter_map(range_of).flatten().collect())
    };
    Ok(Namespace { users: read("uid_map")?, groups: read("gid_map")? })
}

/// Parses a line of `uid_map`: the first id inside, the first id outside, and the number of ids.
fn range_of(line: &str) -> Option<[u32; 2]> {
    let mut fields = line.split_whitespace().skip(1).map(str::parse);
    Some([fields.next()?.ok()?, fields.next()?.ok()?])
}
