//! Reads the rights with which a thread opens files, and runs code with the rights of another process.
//!
//! Owns: the file-system user, file-system group, supplementary groups and effective capabilities of a thread.
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
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::Tid;
use rustix::process::DumpableBehavior;

use crate::error::{Errno, Error, Result};

/// _LINUX_CAPABILITY_VERSION_3.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// An invalid id. With this id, setfsuid(2) and setfsgid(2) change nothing and return the current id.
const INVALID_ID: u32 = u32::MAX;
/// Number of words in the capability sets: the low halves of the effective, permitted and inheritable set,
/// then the high halves in the same order.
const SET_WORDS: usize = 6;

/// CAP_CHOWN as a bit of a capability set.
pub const CHOWN: u64 = 1 << 0;
/// CAP_DAC_OVERRIDE as a bit of a capability set.
pub const DAC_OVERRIDE: u64 = 1 << 1;
/// CAP_DAC_READ_SEARCH as a bit of a capability set.
pub const DAC_READ_SEARCH: u64 = 1 << 2;
/// CAP_FOWNER as a bit of a capability set.
pub const FOWNER: u64 = 1 << 3;
/// CAP_SYS_ADMIN as a bit of a capability set.
pub const SYS_ADMIN: u64 = 1 << 21;
/// CAP_SETFCAP as a bit of a capability set.
pub const SETFCAP: u64 = 1 << 31;
/// CAP_FSETID as a bit of a capability set.
pub const FSETID: u64 = 1 << 4;
const LINUX_IMMUTABLE: u64 = 1 << 9;
/// CAP_MKNOD as a bit of a capability set.
pub const MKNOD: u64 = 1 << 27;
/// The capabilities that decide about access to files. setfsuid(2) drops them when the file-system user changes
/// from 0, and raises them when the file-system user changes to 0.
pub const OF_FILES: u64 = CHOWN | DAC_OVERRIDE | DAC_READ_SEARCH | FOWNER | FSETID | LINUX_IMMUTABLE | MKNOD;

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
pub fn own() -> Result<FileRights> {
    let groups = rustix::process::getgroups().map_err(|errno| Error::new("get our groups", errno))?;
    let mut supplementary: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    supplementary.sort_unstable();
    let [low, _, _, high, _, _] = capabilities()?;
    let effective = u64::from(high) << 32 | u64::from(low);
    Ok(FileRights { user: set_user(INVALID_ID), group: set_group(INVALID_ID), supplementary, effective })
}

/// The file `/proc/TID/status` of one thread, which shows the rights of the thread. Reading the open file again is
/// faster than opening it again.
#[derive(Debug)]
pub struct StatusFile {
    file: File,
    thread: Tid,
}

/// Maximum length in bytes of a status with some hundred supplementary groups.
const STATUS_BYTES_MAX: usize = 8192;

impl StatusFile {
    /// Opens the status of a thread.
    ///
    /// # Errors
    ///
    /// The thread does not exist.
    pub fn open(thread: Tid) -> Result<Self> {
        let opened = File::open(format!("/proc/{thread}/status"));
        let file = opened.map_err(|error| Error::thread("read the credentials", thread, error))?;
        Ok(Self { file, thread })
    }

    /// Returns the present rights of the thread.
    ///
    /// # Errors
    ///
    /// ESRCH if the thread has ended, also if another thread now has the same id.
    pub fn rights(&self) -> Result<FileRights> {
        let failed = |errno| Error::thread("read the credentials", self.thread, errno);
        let mut buffer = [0; STATUS_BYTES_MAX];
        let length = self.file.read_at(&mut buffer, 0).map_err(|error| failed(error.into()))?;
        if length < buffer.len() {
            // The name of the program, in the first line, can contain any bytes.
            let start = buffer.iter().position(|byte| *byte == b'\n').unwrap_or(0);
            let status = std::str::from_utf8(&buffer[start..length]).unwrap_or_default();
            return parse(status).ok_or_else(|| failed(Errno::SHORT));
        }
        let status = std::fs::read(format!("/proc/{}/status", self.thread));
        let status = status.map_err(|error| failed(error.into()))?;
        parse(&String::from_utf8_lossy(&status)).ok_or_else(|| failed(Errno::SHORT))
    }
}

fn parse(status: &str) -> Option<FileRights> {
    // The lines have this order in the file.
    let mut lines = status.lines();
    let mut field = |name: &str| lines.find_map(|line| line.strip_prefix(name)).map(str::trim);
    // The last id of a line is the id for accesses to files.
    let last = |ids: &str| ids.split_whitespace().next_back()?.parse().ok();
    let (user, group) = (last(field("Uid:")?)?, last(field("Gid:")?)?);
    let groups = field("Groups:")?.split_whitespace().map(str::parse);
    let mut supplementary = groups.collect::<std::result::Result<Vec<u32>, _>>().ok()?;
    supplementary.sort_unstable();
    let effective = u64::from_str_radix(field("CapEff:")?, 16).ok()?;
    Some(FileRights { user, group, supplementary, effective })
}

/// Reports whether the program of a thread has got rights by its own execution: the set-user-ID bit, the set-group-ID bit
/// or the capabilities of its file (AT_SECURE of getauxval(3)).
///
/// # Errors
///
/// The thread does not exist.
pub fn is_raised(thread: Tid) -> Result<bool> {
    let read = std::fs::read(format!("/proc/{thread}/auxv"));
    let bytes = read.map_err(|error| Error::thread("read the start vector", thread, error))?;
    Ok(is_secure(&bytes))
}

fn is_secure(vector: &[u8]) -> bool {
    let is_set = |key: u64, value: u64| key == libc::AT_SECURE && value != 0;
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
    let is_page = |key: u64| key == libc::AT_PAGESZ;
    let mut wide = vector.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    if wide.clone().any(|(key, _)| is_page(key)) {
        return wide.any(|(key, value)| is_set(key, value));
    }
    // A program of 32 bits has a vector of 32-bit words.
    let half = |bytes: &[u8]| u64::from(bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default());
    vector.chunks_exact(8).any(|pair| is_set(half(&pair[..4]), half(&pair[4..])))
}

/// Returns the effective capabilities of a thread. Faster than [`StatusFile::rights`].
///
/// # Errors
///
/// The thread does not exist.
pub fn effective_of(thread: Tid) -> Result<u64> {
    let [low, _, _, high, _, _] = capabilities_of(thread.get())?;
    Ok(u64::from(high) << 32 | u64::from(low))
}

/// The own rights of a thread, which the thread can exchange for the rights of another thread for a short time.
#[derive(Debug)]
pub struct OwnRights {
    rights: FileRights,
    dumpable: DumpableBehavior,
    /// Whether setfsuid(2) drops and raises the capabilities in [`OF_FILES`]. The securebits of a thread can
    /// disable this.
    follows_user: bool,
}

impl OwnRights {
    /// Reads the rights of the calling thread.
    pub fn new() -> Result<Self> {
        let rights = own()?;
        let dumpable =
            rustix::process::dumpable_behavior().map_err(|errno| failed("read", "dumpable", errno))?;
        let bits = rustix::thread::capabilities_secure_bits()
            .map_err(|errno| failed("read", "secure bits", errno))?;
        let is_fixed = bits.contains(rustix::thread::CapabilitiesSecureBits::NO_SETUID_FIXUP);
        let follows_user = rights.user == 0 && rights.effective & OF_FILES == OF_FILES && !is_fixed;
        Ok(Self { rights, dumpable, follows_user })
    }

    /// Returns the rights.
    #[must_use]
    pub fn rights(&self) -> &FileRights {
        &self.rights
    }

    /// Runs `work` in the calling thread with other rights to files, and then takes the own rights back. Other
    /// capabilities than those in [`OF_FILES`] stay. Every thread that calls this method has the same rights.
    ///
    /// # Errors
    ///
    /// The credentials of the thread cannot be changed. The result of `work` is lost.
    ///
    /// # Panics
    ///
    /// The own rights cannot be taken back.
    pub fn act<Output>(&self, other: &FileRights, work: impl FnOnce() -> Output) -> Result<Output> {
        let _changing = changing();
        let mut acting = Acting { own: self, other, is_over: false };
        acting.begin()?;
        let output = work();
        if acting.end() { Ok(output) } else { Err(failed("set", "user and group", Errno::EPERM)) }
    }

    fn sets_capabilities(&self, other: &FileRights) -> bool {
        !self.follows_user || other.user == 0 || other.effective & OF_FILES != 0
    }
}

/// A change of the rights of the calling thread. The own rights are taken back when the value is dropped.
struct Acting<'a> {
    own: &'a OwnRights,
    other: &'a FileRights,
    is_over: bool,
}

impl Acting<'_> {
    fn begin(&self) -> Result<()> {
        let FileRights { user, group, supplementary, effective } = self.other;
        if *supplementary != self.own.rights.supplementary {
            set_groups(supplementary)?;
        }
        set_group(*group);
        set_user(*user);
        if self.own.sets_capabilities(self.other) {
            set_effective(self.own.rights.effective & !OF_FILES | effective & OF_FILES)?;
        }
        Ok(())
    }

    /// Takes the own rights back. Reports whether the thread had the other user and group: setfsuid(2) and setfsgid(2)
    /// return no error, but the previous id.
    fn end(&mut self) -> bool {
        self.is_over = true;
        let had_user = set_user(self.own.rights.user) == self.other.user;
        let had_group = set_group(self.own.rights.group) == self.other.group;
        // No capability that these calls need is in `OF_FILES`.
        self.take_back().expect("a thread can always take its own rights back");
        had_user && had_group
    }

    fn take_back(&self) -> Result<()> {
        if self.own.sets_capabilities(self.other) {
            set_effective(self.own.rights.effective)?;
        }
        if self.own.rights.supplementary != self.other.supplementary {
            set_groups(&self.own.rights.supplementary)?;
        }
        match self.own.dumpable {
            DumpableBehavior::DumpableReadableOnlyByRoot => Ok(()),
            dumpable => rustix::process::set_dumpable_behavior(dumpable)
                .map_err(|errno| failed("set", "dumpable", errno)),
        }
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end();
        }
    }
}

/// Reports whether the rights of the calling thread permit access to an open file. The file may be open with
/// O_PATH. A read-only mount and an immutable file permit no writing.
///
/// # Errors
///
/// Returns the errors of faccessat2(2) that are no answer.
pub fn permits(file: BorrowedFd<'_>, access: Access) -> Result<bool> {
    let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
    // SAFETY: the path is an empty string that ends in a zero byte.
    let outcome =
        unsafe { libc::syscall(libc::SYS_faccessat2, file.as_raw_fd(), c"".as_ptr(), access.0, flags) };
    match outcome {
        0 => Ok(true),
        _ => match Errno::last() {
            Errno::EACCES | Errno::EPERM | READ_ONLY => Ok(false),
            errno => Err(Error::new("ask for access to a file", errno)),
        },
    }
}

const READ_ONLY: Errno = Errno(libc::EROFS);

/// Kinds of access to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(libc::c_int);

impl Access {
    /// Write the content of a file.
    pub const WRITE: Self = Self(libc::W_OK);
    /// Read and write the content of a file.
    pub const READ_WRITE: Self = Self(libc::R_OK | libc::W_OK);
    /// Change names in a directory.
    pub const CHANGE_NAMES: Self = Self(libc::W_OK | libc::X_OK);
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
    let _changing = changing();
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

/// Allows only one change at a time. Otherwise, a second thread could read the dumpable attribute after the kernel
/// has reset it for the first thread. The second thread would then restore the wrong value.
fn changing() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
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
    capabilities_of(0)
}

/// Returns the capability sets of a thread; 0 means the calling thread.
fn capabilities_of(thread: i32) -> Result<[u32; SET_WORDS]> {
    let header = [CAPABILITY_VERSION, thread.cast_unsigned()];
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
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn nobody() -> FileRights {
        FileRights { user: 65534, group: 65534, supplementary: Vec::new(), effective: 0 }
    }

    /// Reads the attribute while no other test changes the rights of its thread.
    fn dumpable() -> DumpableBehavior {
        let _changing = changing();
        rustix::process::dumpable_behavior().unwrap()
    }

    #[test]
    fn our_own_rights_can_always_be_taken_on() {
        let rights = own().unwrap();
        assert_eq!(run_with(&rights, || own().unwrap()).unwrap(), rights);
    }

    #[test]
    fn a_thread_acts_with_other_rights_and_takes_its_own_back() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let before = (own().unwrap(), dumpable());
        let rights = OwnRights::new().unwrap();
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let thread = || Tid(rustix::thread::gettid().as_raw_nonzero().get());
        for (effective, permitted) in [(0, false), (DAC_OVERRIDE, true), (FOWNER, false)] {
            let other = FileRights { supplementary: vec![3, 7], effective, ..nobody() };
            rights
                .act(&other, || {
                    let now = StatusFile::open(thread()).unwrap().rights().unwrap();
                    assert_eq!(effective_of(thread()).unwrap(), now.effective);
                    assert_eq!(FileRights { effective: now.effective & OF_FILES, ..now }, other);
                    assert_eq!(permits(file.as_fd(), Access::WRITE).unwrap(), permitted);
                })
                .unwrap();
            assert_eq!((own().unwrap(), dumpable()), before);
        }
        // A thread without capabilities keeps its user.
        let other = FileRights { effective: 0, ..own().unwrap() };
        rights.act(&other, || assert_eq!(own().unwrap().effective & OF_FILES, 0)).unwrap();
        assert!(rights.act(&FileRights { user: u32::MAX, ..nobody() }, || ()).is_err());
        assert_eq!((own().unwrap(), dumpable()), before);
    }

    #[test]
    fn a_change_that_fails_leaves_the_process_dumpable_as_before() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let before = (own().unwrap(), dumpable());
        let invalid = FileRights { user: u32::MAX, ..nobody() };
        assert_eq!(run_with(&invalid, || ()).unwrap_err().errno, Errno::EPERM);
        assert_eq!((own().unwrap(), dumpable()), before);
    }

    #[test]
    fn another_user_opens_what_that_user_may_and_we_stay_who_we_are() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let before = (own().unwrap(), dumpable());
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
        assert_eq!((own().unwrap(), dumpable()), before);
        File::open(&secret).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_raised_program_is_told_from_its_start_vector() {
        let wide = |secure: u64| {
            [libc::AT_PAGESZ, 4096, libc::AT_SECURE, secure, 0, 0].map(u64::to_ne_bytes).concat()
        };
        assert!(is_secure(&wide(1)) && !is_secure(&wide(0)));
        let narrow = |secure: u32| [6, 4096, 23, secure, 0, 0].map(u32::to_ne_bytes).concat();
        assert!(is_secure(&narrow(1)) && !is_secure(&narrow(0)));
        assert!(!is_raised(Tid(std::process::id().cast_signed())).unwrap());
    }
}
