//! Reads the rights with which a thread opens files, and runs code with the rights of another process.
//!
//! Owns: a thread that has its own file-system user, file-system group, supplementary groups and effective
//! capabilities.
//! Invariants: the other threads of this process keep their credentials. The kernel resets the dumpable
//! attribute of the whole process when a thread changes its credentials. This module restores the attribute
//! afterwards.
//! Does not: add rights. A capability that this process lacks stays missing.
//!
//! Man page: setfsuid(2), setfsgid(2), setgroups(2), capset(2), faccessat2(2)
//! Since: Linux 5.8
//! Probe: none; the kernel returns EPERM to a caller that may not change its credentials
//! Fallback: none

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::process::DumpableBehavior;

use crate::error::{Errno, Error, Result};

/// _LINUX_CAPABILITY_VERSION_3.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// An invalid id. With this id, setfsuid(2) and setfsgid(2) change nothing and return the current id.
const INVALID_ID: u32 = u32::MAX;
/// Number of words in the capability sets: the low halves of the effective, permitted and inheritable set,
/// then the high halves in the same order.
const SET_WORDS: usize = 6;

/// The credentials that decide whether a process may open a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileRights {
    /// The file-system user id.
    pub user: u32,
    /// The file-system group id.
    pub group: u32,
    /// The supplementary group ids, in ascending order.
    pub supplementary: Vec<u32>,
    /// The effective capabilities, one bit for each capability.
    pub effective: u64,
}

/// Returns the rights of the calling thread.
///
/// # Errors
///
/// Returns the errors of getgroups(2) and capget(2).
pub fn own() -> Result<FileRights> {
    let groups = rustix::process::getgroups().map_err(|errno| Error::new("get our groups", errno))?;
    let mut supplementary: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    supplementary.sort_unstable();
    let [low, _, _, high, _, _] = capabilities()?;
    let effective = u64::from(high) << 32 | u64::from(low);
    Ok(FileRights { user: set_user(INVALID_ID), group: set_group(INVALID_ID), supplementary, effective })
}

/// Starts a thread that has the given rights, runs `work` in this thread, and waits for the result.
///
/// # Errors
///
/// Fails if the thread cannot be started, or if the credentials of the thread cannot be changed. If the
/// function fails, `work` was not called.
pub fn run_with<Output: Send>(rights: &FileRights, work: impl FnOnce() -> Output + Send) -> Result<Output> {
    let changed = || {
        take_on(rights)?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("rights".to_owned())
            .spawn_scoped(scope, changed)
            .map_err(|error| Error::new("start a thread", error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Checks whether the rights of the calling thread are sufficient to open a file. Does not open the file.
///
/// # Errors
///
/// EACCES if the rights are not sufficient; otherwise the errors of the path lookup. There is no fallback to
/// faccessat(2), because faccessat(2) checks the real user id.
pub fn may_open(path: &Path, reads: bool, writes: bool) -> Result<()> {
    may_access(path, if reads { libc::R_OK } else { 0 } | if writes { libc::W_OK } else { 0 })
}

/// Checks whether the rights of the calling thread are sufficient to create a file in a directory.
///
/// # Errors
///
/// EACCES if the rights are not sufficient; otherwise the errors of the path lookup.
pub fn may_create_in(directory: &Path) -> Result<()> {
    may_access(directory, libc::W_OK | libc::X_OK)
}

/// Checks whether the rights of the calling thread are sufficient to change to a directory.
///
/// # Errors
///
/// EACCES if the rights are not sufficient; otherwise the errors of the path lookup.
pub fn may_search(directory: &Path) -> Result<()> {
    may_access(directory, libc::X_OK)
}

fn may_access(path: &Path, mode: libc::c_int) -> Result<()> {
    let failed = |errno| Error::path("ask for access to", path, errno);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::EINVAL))?;
    // SAFETY: the path ends in a zero byte and outlives the call.
    let outcome =
        unsafe { libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, name.as_ptr(), mode, libc::AT_EACCESS) };
    if outcome < 0 { Err(failed(Errno::last())) } else { Ok(()) }
}

/// Changes the credentials of the calling thread. The capabilities are changed last, because the changes of
/// user and groups need the present capabilities.
fn take_on(wanted: &FileRights) -> Result<()> {
    /// Allows only one change at a time. Otherwise, a second thread could read the dumpable attribute after
    /// the kernel has reset it for the first thread. The second thread would then restore the wrong value.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _changing = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dumpable = rustix::process::dumpable_behavior().map_err(|errno| failed("read", "dumpable", errno))?;
    let changed = change_to(wanted);
    // The attribute is restored after a failure, too: a step before the failed step may have reset it.
    let restored = match dumpable {
        DumpableBehavior::DumpableReadableOnlyByRoot => Ok(()),
        dumpable => {
            rustix::process::set_dumpable_behavior(dumpable).map_err(|errno| failed("set", "dumpable", errno))
        }
    };
    changed.and(restored)
}

fn change_to(wanted: &FileRights) -> Result<()> {
    let now = own()?;
    let mut groups = wanted.supplementary.clone();
    groups.sort_unstable();
    if groups != now.supplementary {
        set_groups(&groups)?;
    }
    set_group(wanted.group);
    set_user(wanted.user);
    if set_group(INVALID_ID) != wanted.group {
        return Err(failed("set", "group", Errno::EPERM));
    }
    if set_user(INVALID_ID) != wanted.user {
        return Err(failed("set", "user", Errno::EPERM));
    }
    set_effective(wanted.effective)
}

fn failed(verb: &str, what: &str, errno: impl Into<Errno>) -> Error {
    Error::new(format!("{verb} the {what} of a thread that opens files for the program"), errno)
}

fn set_user(user: u32) -> u32 {
    // SAFETY: the call takes a number and no pointer. The raw system call changes only this thread.
    unsafe { libc::syscall(libc::SYS_setfsuid, user) as u32 }
}

fn set_group(group: u32) -> u32 {
    // SAFETY: the call takes a number and no pointer. The raw system call changes only this thread.
    unsafe { libc::syscall(libc::SYS_setfsgid, group) as u32 }
}

fn set_groups(groups: &[u32]) -> Result<()> {
    // SAFETY: the kernel reads `groups.len()` numbers, which is the length of the slice. The raw system call
    // changes only this thread, while the function of the C library changes all threads.
    let outcome = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if outcome < 0 { Err(failed("set", "groups", Errno::last())) } else { Ok(()) }
}

/// Returns the capability sets of the calling thread, in the order of [`SET_WORDS`].
fn capabilities() -> Result<[u32; SET_WORDS]> {
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [0; SET_WORDS];
    // SAFETY: in version 3, the header has two words and the sets have six words. Both arrays have these
    // lengths.
    let outcome = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    if outcome < 0 { Err(failed("read", "capabilities", Errno::last())) } else { Ok(sets) }
}

/// Sets the effective capabilities to those `wanted` capabilities that are permitted.
fn set_effective(wanted: u64) -> Result<()> {
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = capabilities()?;
    sets[0] = wanted as u32 & sets[1];
    sets[3] = (wanted >> 32) as u32 & sets[4];
    // SAFETY: in version 3, the header has two words and the sets have six words. Both arrays have these
    // lengths.
    let outcome = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    if outcome < 0 { Err(failed("set", "capabilities", Errno::last())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn nobody() -> FileRights {
        FileRights { user: 65534, group: 65534, supplementary: Vec::new(), effective: 0 }
    }

    #[test]
    fn our_own_rights_can_always_be_taken_on() {
        let rights = own().unwrap();
        assert_eq!(run_with(&rights, || own().unwrap()).unwrap(), rights);
    }

    #[test]
    fn a_change_that_fails_leaves_the_process_dumpable_as_before() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let before = (own().unwrap(), rustix::process::dumpable_behavior().unwrap());
        let invalid = FileRights { user: u32::MAX, ..nobody() };
        assert_eq!(run_with(&invalid, || ()).unwrap_err().errno, Errno::EPERM);
        assert_eq!((own().unwrap(), rustix::process::dumpable_behavior().unwrap()), before);
    }

    #[test]
    fn another_user_opens_what_that_user_may_and_we_stay_who_we_are() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let before = own().unwrap();
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        let folder = std::env::temp_dir().join(format!("undying-rights-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let (secret, public) = (folder.join("secret"), folder.join("public"));
        for (path, mode) in [(&secret, 0o600), (&public, 0o644)] {
            fs::write(path, "text").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        run_with(&nobody(), || {
            assert_eq!(own().unwrap(), nobody());
            assert_eq!(File::open(&secret).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            File::open(&public).unwrap();
            assert!(File::options().write(true).open(&public).is_err());
            may_open(&public, true, false).unwrap();
            assert_eq!(may_open(&public, true, true).unwrap_err().errno, Errno::EACCES);
            assert_eq!(may_open(&secret, true, false).unwrap_err().errno, Errno::EACCES);
        })
        .unwrap();
        assert_eq!(own().unwrap(), before);
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), dumpable);
        File::open(&secret).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
