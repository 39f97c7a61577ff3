//! Saves and restores open files and directories below `/proc/PID` of processes of the subject: the descriptor kind
//! `fd/proc_file`.
//!
//! Owns: the recorded paths of these files.
//! Invariants: one of the processes that hold the open file description opens the file again, when process PID
//! exists. All holders share this description. No symbolic link is followed. Of a process outside the subject, only
//! files are restored that every user may read, and only while the same process exists.
//! Does not: handle other files of processes outside the subject, or files of threads other than thread group leaders.
//! These are refused.

use std::os::fd::OwnedFd;
use std::path::Path;

use model::{Address, Pid};
use prost::Message;
use rustix::fs::MemfdFlags;
use sys::{Errno, Error};
use tracee::arch::numbers::{LSEEK, OPENAT2};
use tracee::{RemoteError, procfs};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdConnect, FdCreate, FdFacts, FdKind, FdRecord};
use super::pidfd::{fetch, put};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::{outside, path};

const NAME: &str = "fd/proc_file";

/// Flags that are kept when a file of `/proc` is opened: access mode, O_NONBLOCK, O_DIRECTORY and O_PATH.
const OPEN_FLAGS: u32 = 0o3 | 0o4_000 | 0o200_000 | 0o10_000_000;
/// Flags that are kept when O_PATH is set: O_DIRECTORY and O_PATH.
const PATH_FLAGS: u32 = 0o200_000 | 0o10_000_000;
const O_PATH: u32 = 0o10_000_000;
const O_ACCMODE: u32 = 0o3;
/// RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS of openat2(2).
const NO_LINKS: u64 = 0x02 | 0x04;
const AT_FDCWD: u64 = -100_i64 as u64;
/// Size of `struct open_how` in bytes.
const HOW_BYTES: u64 = 24;

/// Descriptor kind ([`FdKind`]) of open files below `/proc/PID`.
#[derive(Debug)]
pub struct ProcFile;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// The start time of a process outside the subject in clock ticks; 0 for a process of the subject.
    #[prost(uint64, tag = "2")]
    outside_since: u64,
}

/// Files of a process that every user may read. The other files of a process depend on the rights of their opener.
const PUBLIC: &[&str] = &["status", "statm", "comm", "cmdline", "cgroup"];

#[derive(Debug)]
struct Capture {
    outside_since: u64,
}

impl FdKind for ProcFile {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        process_of(description.target()).is_some()
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let about = |why: &str, fix: &str| vec![description.obstacle("file of /proc", why, fix)];
        let Some(pid) = process_of(description.target()) else { return Vec::new() };
        if !Path::new(description.target()).exists() {
            return about(
                "the process or thread that it belongs to has ended",
                "let the program close it before the checkpoint",
            );
        }
        if !scope.pids.contains(&pid) && !is_public(description) {
            let why = format!("it belongs to {}, which is outside the tree", outside::describe(Some(pid)));
            return about(
                &why,
                "let the program close it before the checkpoint, or checkpoint a common ancestor",
            );
        }
        if !is_of_leader(description.target(), pid) {
            return about(
                "it belongs to a thread other than the leader of its process",
                "let the program close it before the checkpoint",
            );
        }
        if !scope.is_held(description.id) {
            return about(
                "it is in flight in a socket, and only a process that holds it can restore it",
                "retry when it has been received",
            );
        }
        Vec::new()
    }

    fn completes_in_connect(&self, _description: &Description) -> bool {
        true
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let outside = process_of(description.target()).filter(|pid| !scope.pids.contains(pid));
        let outside_since =
            outside.map_or(Ok(0), |pid| procfs::stat(pid).map(|stat| stat.starttime.get()))?;
        Ok(Box::new(Capture { outside_since }))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let State { path, .. } = crate::error::decode(NAME, payload)?;
        match std::str::from_utf8(&path).ok().and_then(process_of) {
            Some(_) => Ok(()),
            None => Err(ResourceError::malformed(NAME, "its path is not below /proc/PID")),
        }
    }

    /// Creates placeholder descriptors, since the target process does not exist yet.
    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        for record in records {
            context.created.insert(record.id, placeholder()?);
        }
        Ok(())
    }

    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        for record in records {
            let State { path, outside_since } = crate::error::decode(NAME, &record.payload)?;
            if outside_since != 0 {
                check_outside(&path, outside_since)?;
            }
            let file = if context.stub.pid() == record.holder.0 {
                open(record, &path, context)?
            } else {
                fetch(record, context)?
            };
            put(file, record, context)?;
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, _description: &Description) -> Result<()> {
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let path = path::to_bytes(&description.info.target);
        Ok(State { path, outside_since: self.outside_since }.encode_to_vec())
    }
}

/// Returns the process whose `/proc` directory contains a path.
fn process_of(target: &str) -> Option<Pid> {
    let name = target.strip_prefix("/proc/")?.split(['/', ' ']).next()?;
    name.parse().ok().filter(|number| *number > 0).map(Pid)
}

/// Reports whether a description is a file of a process that every user may read, open for reading.
fn is_public(description: &Description) -> bool {
    let name = description.target().strip_prefix("/proc/").and_then(|rest| rest.split_once('/'));
    name.is_some_and(|(_, name)| PUBLIC.contains(&name))
        && description.info.flags & O_ACCMODE == 0
        && description.info.flags & O_PATH == 0
}

/// Checks that the process outside the subject still exists, and that its file may be read by every user.
fn check_outside(path: &[u8], since: u64) -> Result<()> {
    let path = path::from_bytes(path);
    let parts = path.to_str().and_then(|text| Some((process_of(text)?, path.file_name()?.to_str()?)));
    let is_same = parts.is_some_and(|(pid, name)| {
        PUBLIC.contains(&name) && procfs::stat(pid).is_ok_and(|stat| stat.starttime.get() == since)
    });
    if is_same {
        return Ok(());
    }
    Err(ResourceError::File {
        path: path.display().to_string(),
        why: "the process outside of the tree that this file belonged to has ended".to_owned(),
        fix: "restore while this process exists".to_owned(),
    })
}

/// Reports whether a path belongs to the thread group leader. Such a path does not lead through `task/TID` of another
/// thread.
fn is_of_leader(target: &str, pid: Pid) -> bool {
    let below = format!("/proc/{pid}/task/");
    let Some(rest) = target.strip_prefix(&below) else { return true };
    rest.split('/').next() == Some(pid.to_string().as_str())
}

/// Creates a placeholder: a memfd that every holder of the description has until [`FdKind::connect`]. Like the file,
/// a memfd has a position.
fn placeholder() -> Result<OwnedFd> {
    rustix::fs::memfd_create("stand-in", MemfdFlags::CLOEXEC)
        .map_err(|errno| Error::new("create a placeholder descriptor", errno).into())
}

fn open(record: &FdRecord, path: &[u8], context: &mut FdConnect<'_>) -> Result<u64> {
    let allowed = if record.flags & O_PATH != 0 { PATH_FLAGS } else { OPEN_FLAGS };
    let how = [u64::from(record.flags & allowed), 0, NO_LINKS];
    let mut bytes: Vec<u8> = how.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(path);
    bytes.push(0);
    let call = |at: Address| {
        let name = at + model::ByteCount(HOW_BYTES);
        [AT_FDCWD, name.get(), at.get(), HOW_BYTES, 0, 0]
    };
    let file = context.stub.call_with(context.memory, OPENAT2, &bytes, call).map_err(|error| {
        ResourceError::File {
            path: path::from_bytes(path).display().to_string(),
            why: format!("it cannot be opened: {error}"),
            fix: "restore an earlier checkpoint, or restore as a user that may open this file".to_owned(),
        }
    })?;
    if record.position != 0 {
        match context.stub.call(LSEEK, [file, record.position, 0, 0, 0, 0]) {
            // EINVAL: the file is shorter than at the checkpoint, and a read at the position would return end of
            // file.
            Ok(_) | Err(RemoteError::Refused { errno: Errno::EINVAL, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::support::testing::Subject;

    #[test]
    fn paths_below_proc_pid_are_recognized() {
        assert_eq!(process_of("/proc/812/maps"), Some(Pid(812)));
        assert_eq!(process_of("/proc/812 (deleted)"), Some(Pid(812)));
        assert_eq!(process_of("/proc/812"), Some(Pid(812)));
        for other in ["/proc/meminfo", "/proc", "/proc/sys/kernel", "/home/proc/1", "/procession/1"] {
            assert_eq!(process_of(other), None, "{other}");
        }
        assert!(is_of_leader("/proc/812/task/812/stat", Pid(812)));
        assert!(is_of_leader("/proc/812/task", Pid(812)));
        assert!(!is_of_leader("/proc/812/task/813/stat", Pid(812)));
    }

    #[test]
    fn a_public_file_of_a_process_outside_the_tree_is_bound_to_this_process() {
        let parent = Pid(std::os::unix::process::parent_id() as i32);
        let file = File::open(format!("/proc/{parent}/status")).unwrap();
        // No process of the test's subject holds the descriptor.
        let found = Subject::new(&[&file]).obstacles(&ProcFile);
        assert!(found.len() == 1 && found[0].why.contains("in flight"), "{found:?}");
        let since = procfs::stat(parent).unwrap().starttime.get();
        let path = |name: &str| format!("/proc/{parent}/{name}").into_bytes();
        check_outside(&path("status"), since).unwrap();
        assert!(check_outside(&path("status"), since + 1).is_err());
        assert!(check_outside(&path("mem"), since).is_err());
    }

    #[test]
    fn a_file_of_a_process_outside_the_tree_is_refused_with_its_pid() {
        let parent = File::open(format!("/proc/{}/maps", std::os::unix::process::parent_id())).unwrap();
        let found = Subject::new(&[&parent]).obstacles(&ProcFile);
        let number = format!("pid {}", std::os::unix::process::parent_id());
        assert!(found.len() == 1 && found[0].why.contains(&number), "{found:?}");
    }
}
