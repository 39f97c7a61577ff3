//! Records the open files that a subject shares with this process. The files are shared, because this process and the
//! subject have inherited the same descriptors.
//!
//! Owns: the identity of these files for a checkpoint, and duplicates of their descriptors for a restore.
//! Invariants: the files are recorded before this process opens a file itself. The duplicates are closed on exec, so
//! that no subject inherits them. No inherited descriptor is changed.
//! Does not: distinguish pipes, sockets and terminals.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::{Fd, Inode, Pid};
use rustix::fs::{FileType, OFlags, Stat};
use sys::{Error, pidfd};
use tracee::procfs::{self, DescriptorInfo};
use tracee::tree;

use crate::ancestry;
use crate::error::Result;

/// Maximum number of paths that are listed.
const LISTED_MAX: usize = 64;
/// Lowest number of a duplicate, above the numbers of the standard streams.
const FIRST_COPY: i32 = 3;

/// Files that a subject shares with this program.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Device, inode and a duplicate of each file that was open when this program was started. If the subject has a
    /// log, the log is in this list too.
    files: Vec<(u64, Inode, OwnedFd)>,
    /// The log file that replaces standard output and standard error of the subject. The log is never rolled back,
    /// because the output before a death can show the reason of the death.
    log: Option<OwnedFd>,
    /// The logs of programs that have joined the subject, by device and inode.
    member_logs: Vec<(u64, u64)>,
}

impl Streams {
    /// Records only the standard streams. Programs that are started from the same shell share these streams. It is not
    /// certain that the programs share further files.
    pub(crate) fn standard() -> Result<Self> {
        let mut found = Vec::new();
        for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
            // A standard stream may be closed.
            if rustix::io::fcntl_getfd(stream).is_ok() {
                found.extend(named(copy(stream)?));
            }
        }
        Ok(Self { files: found, log: None, member_logs: Vec::new() })
    }

    /// Records all files that this program was started with and that its children inherit. Examples are the pipe of a
    /// jobserver, and the log or the listening sockets of a service manager. Must be called before this program opens a
    /// file.
    pub(crate) fn inherited() -> Result<Self> {
        let mut found = Self::standard()?.files;
        let own = Pid(std::process::id() as i32);
        let handle = pidfd::open(own)?;
        for fd in procfs::descriptors(own)?.into_iter().filter(|fd| fd.get() >= FIRST_COPY) {
            // The list may contain the descriptor that was open only for reading the list. The duplicates are skipped,
            // because they are closed on exec.
            if is_handed_on(own, fd)
                && let Ok(copy) = pidfd::duplicate(handle.as_fd(), own, fd)
            {
                found.extend(named(copy));
            }
        }
        Ok(Self { files: found, log: None, member_logs: Vec::new() })
    }

    /// Returns duplicates of the shared files together with the log of a subject.
    pub(crate) fn with_log(&self, log: OwnedFd) -> Result<Self> {
        let mut files = self.duplicates()?;
        files.extend(named(copy(log.as_fd())?));
        Ok(Self { files, log: Some(log), member_logs: Vec::new() })
    }

    /// Returns duplicates of all files, together with the log of a program that joins the subject.
    pub(crate) fn with_member_log(&self, log: &OwnedFd) -> Result<Self> {
        let (mut files, mut member_logs) = (self.duplicates()?, self.member_logs.clone());
        if let Some((device, inode, log)) = named(copy(log.as_fd())?)
            && !self.identities().contains(&(device, inode))
        {
            member_logs.push((device, inode.get()));
            files.push((device, inode, log));
        }
        let log = self.log.as_ref().map(|log| copy(log.as_fd())).transpose()?;
        Ok(Self { files, log, member_logs })
    }

    pub(crate) fn log(&self) -> Option<&OwnedFd> {
        self.log.as_ref()
    }

    pub(crate) fn identities(&self) -> Vec<(u64, Inode)> {
        self.files.iter().map(|(device, inode, _)| (*device, *inode)).collect()
    }

    /// Returns device and inode of the files that a rollback does not change. Files that other programs write come
    /// first; the logs follow. Also returns the number of files that other programs write.
    pub(crate) fn that_stay(&self) -> (Vec<(u64, u64)>, usize) {
        let log = self.log.as_ref().and_then(|log| rustix::fs::fstat(log).ok());
        let mut logs = self.member_logs.clone();
        logs.extend(log.map(|stat| (stat.st_dev, stat.st_ino)));
        let written: Vec<(u64, u64)> =
            self.those_written().map(|(device, inode, _)| (*device, inode.get())).collect();
        let mut stay = written_by_others(&written);
        stay.retain(|file| !logs.contains(file));
        let of_others = stay.len();
        stay.extend(logs);
        (stay, of_others)
    }

    /// Returns duplicates of the regular files that are open for writing.
    pub(crate) fn written(&self) -> Result<Vec<OwnedFd>> {
        self.those_written().map(|(_, _, file)| copy(file.as_fd())).collect()
    }

    fn those_written(&self) -> impl Iterator<Item = &(u64, Inode, OwnedFd)> {
        self.files.iter().filter(|(_, _, file)| is_written_file(file.as_fd()))
    }

    /// Returns device, inode and a new duplicate of each file, for another owner.
    pub(crate) fn duplicates(&self) -> Result<Vec<(u64, Inode, OwnedFd)>> {
        let duplicate =
            |(device, inode, file): &(u64, Inode, OwnedFd)| Ok((*device, *inode, copy(file.as_fd())?));
        self.files.iter().map(duplicate).collect()
    }
}

/// Reports whether standard error is a regular file that is open for writing.
pub(crate) fn says_into_file() -> bool {
    is_written_file(rustix::stdio::stderr())
}

fn is_regular(stat: Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn is_written_file(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(is_regular)
        && rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags & OFlags::ACCMODE != OFlags::RDONLY)
}

/// Returns the files in `files` (device and inode) that another process has open for writing. This process and its
/// ancestors do not count as other processes. A process that this user may not inspect does not count as a writer.
pub(crate) fn written_by_others(files: &[(u64, u64)]) -> Vec<(u64, u64)> {
    if files.is_empty() {
        return Vec::new();
    }
    let own: HashSet<Pid> = ancestry::line(Pid(std::process::id() as i32)).collect();
    let others = procfs::processes().unwrap_or_default().into_iter().filter(|pid| !own.contains(pid));
    let mut found = HashSet::new();
    for pid in others {
        for fd in procfs::descriptors(pid).unwrap_or_default() {
            let Ok(stat) = rustix::fs::stat(format!("/proc/{pid}/fd/{fd}")) else { continue };
            let file = (stat.st_dev, stat.st_ino);
            if files.contains(&file) && procfs::descriptor_info(pid, fd).is_ok_and(|info| may_write(&info)) {
                found.insert(file);
            }
        }
    }
    files.iter().filter(|file| found.contains(file)).copied().collect()
}

/// Returns the sorted paths of regular files that a tree has open for writing, at most [`LISTED_MAX`]. Skips processes
/// and descriptors that have ended or may not be inspected.
pub(crate) fn files_written_by(root: Pid) -> Vec<String> {
    let mut found = BTreeSet::new();
    for pid in tree::descendants(root).unwrap_or_default() {
        for fd in procfs::descriptors(pid).unwrap_or_default() {
            let is_regular = rustix::fs::stat(format!("/proc/{pid}/fd/{fd}")).is_ok_and(is_regular);
            match procfs::descriptor_info(pid, fd) {
                Ok(info) if is_regular && may_write(&info) => {
                    found.insert(info.target.display().to_string());
                }
                _ => {}
            }
        }
    }
    found.into_iter().take(LISTED_MAX).collect()
}

fn may_write(info: &DescriptorInfo) -> bool {
    let flags = OFlags::from_bits_retain(info.description_flags());
    !flags.contains(OFlags::PATH) && flags & OFlags::ACCMODE != OFlags::RDONLY
}

/// Reports whether a program that this process starts inherits the descriptor.
fn is_handed_on(own: Pid, fd: Fd) -> bool {
    procfs::descriptor_info(own, fd).is_ok_and(|info| !info.close_on_exec())
}

fn copy(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, FIRST_COPY);
    Ok(copy.map_err(|errno| Error::new("duplicate an inherited descriptor", errno))?)
}

/// Identifies a file by device and inode. Returns `None` for files without an own inode: event descriptors, for
/// example, all share one inode.
fn named(copy: OwnedFd) -> Option<(u64, Inode, OwnedFd)> {
    let stat = rustix::fs::fstat(&copy).ok()?;
    let has_own_inode = FileType::from_raw_mode(stat.st_mode) != FileType::Unknown;
    has_own_inode.then_some((stat.st_dev, Inode(stat.st_ino), copy))
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::FdFlags;

    use super::*;

    fn inode(file: &impl AsFd) -> Inode {
        Inode(rustix::fs::fstat(file).unwrap().st_ino)
    }

    #[test]
    fn what_closes_on_exec_is_not_shared() {
        let own = std::fs::File::open("/proc/self/stat").unwrap();
        let other = std::fs::File::open("/proc/self/maps").unwrap();
        rustix::io::fcntl_setfd(&other, FdFlags::empty()).unwrap();
        let shared = Streams::inherited().unwrap().identities();
        assert!(!shared.iter().any(|(_, found)| *found == inode(&own)));
        assert!(shared.iter().any(|(_, found)| *found == inode(&other)));
        let standard = Streams::standard().unwrap().identities();
        assert!(!standard.iter().any(|(_, found)| *found == inode(&other)));
    }

    #[test]
    fn an_inode_that_all_share_names_nothing() {
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        let shared = Streams::inherited().unwrap().identities();
        assert!(!shared.iter().any(|(_, found)| *found == inode(&event)));
    }

    #[test]
    fn a_file_that_another_program_writes_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        let (own, shared, read) = (open("own"), open("shared"), open("read"));
        let reader = std::fs::File::open(folder.path().join("read")).unwrap();
        let mut child = std::process::Command::new("sleep");
        child.arg("60").stdin(reader).stdout(shared.try_clone().unwrap());
        let mut child = child.spawn().unwrap();
        let file = |file: &std::fs::File| {
            let stat = rustix::fs::fstat(file).unwrap();
            (stat.st_dev, stat.st_ino)
        };
        let files = [&own, &shared, &read].map(file);
        let found = written_by_others(&files);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [file(&shared)]);
        assert_eq!(written_by_others(&files), []);
    }

    #[test]
    fn the_log_of_a_subject_stays_when_files_go_back() {
        let folder = tempfile::tempdir().unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let stat = rustix::fs::fstat(&log).unwrap();
        let streams = Streams::standard().unwrap().with_log(log.into()).unwrap();
        let (stay, of_others) = streams.that_stay();
        assert_eq!(stay[of_others..], [(stat.st_dev, stat.st_ino)]);
        assert!(streams.identities().contains(&(stat.st_dev, Inode(stat.st_ino))));
        assert!(streams.log().is_some());
    }

    #[test]
    fn duplicates_are_the_same_file() {
        let streams = Streams::inherited().unwrap();
        for (device, inode, file) in streams.duplicates().unwrap() {
            let stat = rustix::fs::fstat(&file).unwrap();
            assert_eq!((stat.st_dev, Inode(stat.st_ino)), (device, inode));
            assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC));
        }
    }
}
