//! The rights of a process to open files, and work that is done with the rights of another process.
//!
//! Owns: a thread with file-system user, group, supplementary groups and effective capabilities of its own.
//! Invariants: the other threads of this process keep their credentials. The process stays as dumpable as it was,
//! although the kernel resets that for the whole process when a thread changes its credentials.
//! Does not: add a right: a capability that this process lacks stays away.
//!
//! Man page: setfsuid(2), setfsgid(2), setgroups(2), capset(2), faccessat2(2)
//! Since: Linux 5.8
//! Probe: none; the kernel answers EPERM to a caller that may not change its credentials
//! Fallback: none

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::process::DumpableBehavior;

use crate::error::{Errno, Error, Result};

/// _LINUX_CAPABILITY_VERSION_3.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// setfsuid(2) and setfsgid(2) change nothing when given this, and return the present value.
const ASK: u32 = u32::MAX;
/// Words of the capability sets: effective, permitted and inheritable, the low halves first.
const SET_WORDS: usize = 6;

/// What decides whether a process may open a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileRights {
    /// The file-system user.
    pub user: u32,
    /// The file-system group.
    pub group: u32,
    /// The supplementary groups, rising.
    pub supplementary: Vec<u32>,
    /// The effective capabilities, one bit each.
    pub effective: u64,
}

/// The rights of the calling thread.
///
/// # Errors
///
/// What the kernel says.
pub fn own() -> Result<FileRights> {
    let groups = rustix::process::getgroups().map_err(|errno| Error::new("get our groups", errno))?;
    let mut supplementary: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    supplementary.sort_unstable();
    let [low, _, _, high, _, _] = capabilities()?;
    let effective = u64::from(high) << 32 | u64::from(low);
    Ok(FileRights { user: set_user(ASK), group: set_group(ASK), supplementary, effective })
}

/// Runs `work` in a thread that has the given rights.
///
/// # Errors
///
/// What the kernel says of a change of credentials. `work` has not begun then.
pub fn with<Output: Send>(rights: &FileRights, work: impl FnOnce() -> Output + Send) -> Result<Output> {
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

/// Asks whether the calling thread's rights let it open a file, without opening it.
///
/// # Errors
///
/// EACCES, or what else the kernel says of the path. There is no fallback: faccessat(2) asks for the real user.
pub fn may_open(path: &Path, reads: bool, writes: bool) -> Result<()> {
    let mode = if reads { libc::R_OK } else { 0 } | if writes { libc::W_OK } else { 0 };
    let failed = |errno| Error::path("ask for access to", path, errno);
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| failed(Errno::EINVAL))?;
    // SAFETY: the path ends in zero and outlives the call.
    let outcome =
        unsafe { libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, name.as_ptr(), mode, libc::AT_EACCESS) };
    if outcome < 0 { Err(failed(Errno::last())) } else { Ok(()) }
}

/// Changes the calling thread. Users come last but for the capabilities, which the other changes need.
fn take_on(wanted: &FileRights) -> Result<()> {
    /// Two threads at once could take the reset state of the process for its own.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _changing = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dumpable = rustix::process::dumpable_behavior().map_err(|errno| failed("read", "dumpable", errno))?;
    let now = own()?;
    let mut groups = wanted.supplementary.clone();
    groups.sort_unstable();
    if groups != now.supplementary {
        set_groups(&groups)?;
    }
    set_group(wanted.group);
    set_user(wanted.user);
    if set_group(ASK) != wanted.group {
        return Err(failed("set", "group", Errno::EPERM));
    }
    if set_user(ASK) != wanted.user {
        return Err(failed("set", "user", Errno::EPERM));
    }
    set_effective(wanted.effective)?;
    match dumpable {
        DumpableBehavior::DumpableReadableOnlyByRoot => Ok(()),
        dumpable => {
            rustix::process::set_dumpable_behavior(dumpable).map_err(|errno| failed("set", "dumpable", errno))
        }
    }
}

fn failed(verb: &str, what: &str, errno: impl Into<Errno>) -> Error {
    Error::new(format!("{verb} the {what} of a thread that opens files for the program"), errno)
}

fn set_user(user: u32) -> u32 {
    // SAFETY: takes a number and no pointer. The raw call concerns this thread alone.
    unsafe { libc::syscall(libc::SYS_setfsuid, user) as u32 }
}

fn set_group(group: u32) -> u32 {
    // SAFETY: takes a number and no pointer. The raw call concerns this thread alone.
    unsafe { libc::syscall(libc::SYS_setfsgid, group) as u32 }
}

fn set_groups(groups: &[u32]) -> Result<()> {
    // SAFETY: the kernel reads as many numbers as it is told, and the slice has that many. The raw call concerns
    // this thread alone, unlike that of the C library.
    let outcome = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if outcome < 0 { Err(failed("set", "groups", Errno::last())) } else { Ok(()) }
}

/// The sets of the calling thread: effective, permitted and inheritable, twice.
fn capabilities() -> Result<[u32; SET_WORDS]> {
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = [0; SET_WORDS];
    // SAFETY: version 3 has a header of two words and sets of six, and both arrays have that length.
    let outcome = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    if outcome < 0 { Err(failed("read", "capabilities", Errno::last())) } else { Ok(sets) }
}

/// Makes those of the wanted capabilities effective that are permitted, and no others.
fn set_effective(wanted: u64) -> Result<()> {
    let header = [CAPABILITY_VERSION, 0];
    let mut sets = capabilities()?;
    sets[0] = wanted as u32 & sets[1];
    sets[3] = (wanted >> 32) as u32 & sets[4];
    // SAFETY: version 3 has a header of two words and sets of six, and both arrays have that length.
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
        assert_eq!(with(&rights, || own().unwrap()).unwrap(), rights);
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
        with(&nobody(), || {
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
