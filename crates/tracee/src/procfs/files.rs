//! Reads files, links and directories of `/proc`, and lists processes and threads.
//!
//! Owns: reading a file whose length the kernel does not report, the paths of threads, and the lists of
//! tasks.
//! Does not: parse the content of other files. Does not stop processes, so a list can be out of date at once.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use model::{Pid, Tid};
use rustix::fs::{Mode, OFlags, RawDir};
use sys::{Errno, Error, Result};

/// Bytes of a page. The kernel produces at most one page at a time, and most of these files are shorter.
pub(super) const BUFFER_BYTES: usize = 4096;

/// Bytes of a list of numbers that one system call reads: about 500 entries.
const LIST_BYTES: usize = 4 * BUFFER_BYTES;

/// Files that exist in `/proc/PID`, but not in `/proc/PID/task/TID`. `/proc/TID` exists for every thread and
/// has these files.
const NOT_IN_TASKS: [&str; 3] = ["timers", "timerslack_ns", "coredump_filter"];

thread_local! {
    /// The last failure of a read by this thread for which this process or the machine is the reason.
    static SHORTAGE: Cell<Option<Errno>> = const { Cell::new(None) };
}

/// Returns the last failure since the previous call for which no other process was the reason: this process had no
/// descriptor left, or the machine no memory. A search for obstacles takes what it cannot read for ended. After the
/// search, the caller asks here whether that was true. Only reads by this thread count.
///
/// # Errors
///
/// Such a read has failed.
pub fn shortage() -> Result<()> {
    SHORTAGE.take().map_or(Ok(()), |errno| Err(Error::new("read files of /proc", errno)))
}

/// Creates the error of a failed access to a file of `/proc`.
pub(super) fn failed(operation: &'static str, path: impl AsRef<Path>, error: impl Into<Errno>) -> Error {
    let errno = error.into();
    if errno.is_shortage() {
        SHORTAGE.set(Some(errno));
    }
    Error::path(operation, path, errno)
}

/// Reads a whole small file of `/proc`.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let fail = |error| failed("read", path.as_ref(), error);
    let mut file = File::open(path.as_ref()).map_err(fail)?;
    read_open(&mut file).map_err(fail)
}

/// Reads a small file of `/proc` that was just opened.
pub(super) fn read_open(file: &mut File) -> std::io::Result<Vec<u8>> {
    // These files report a length of zero, so `fs::read` would begin with a buffer of 32 bytes and double it.
    let mut bytes = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    loop {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled == bytes.len() {
            bytes.resize(2 * filled, 0);
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Reads a file of `/proc` from its beginning into a reused buffer, which becomes larger only if the file does not
/// fit. Each record (line) of the file must be shorter than half a page, so the file must not contain paths. The
/// kernel ends a read before a record that does not fit into the rest of the page. A read that returns less than half
/// a page has therefore reached the end of the file.
pub fn read_whole(file: &File, bytes: &mut Vec<u8>) -> std::result::Result<(), Errno> {
    let mut page = [0; BUFFER_BYTES];
    bytes.clear();
    loop {
        match file.read_at(&mut page, bytes.len() as u64) {
            Ok(count) => {
                bytes.extend_from_slice(&page[..count]);
                if count == 0 || bytes.len() < BUFFER_BYTES / 2 {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads a whole small text file of `/proc`, and replaces bytes that are not UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    Ok(String::from_utf8_lossy(&read(path)?).into_owned())
}

/// Returns `/proc/PID/task/TID/NAME`, or `/proc/TID/NAME` if the file exists only there.
#[must_use]
pub fn path_of_thread(pid: Pid, tid: Tid, name: &str) -> String {
    match NOT_IN_TASKS.contains(&name) {
        true => format!("/proc/{tid}/{name}"),
        false => format!("/proc/{pid}/task/{tid}/{name}"),
    }
}

/// Returns the target of a symbolic link of `/proc`.
pub fn link(path: impl AsRef<Path>) -> Result<PathBuf> {
    fs::read_link(path.as_ref()).map_err(|error| failed("read the link", path, error))
}

pub(super) fn numbers(directory: &str) -> Result<Vec<i32>> {
    let failed = |errno: rustix::io::Errno| failed("list", directory, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(failed)?;
    // `fs::read_dir` allocates for each list and for each entry.
    let mut buffer = [MaybeUninit::uninit(); LIST_BYTES];
    let mut entries = RawDir::new(opened, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(failed)?;
        found.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(found)
}

/// Lists all processes that this program may see.
pub fn processes() -> Result<Vec<Pid>> {
    Ok(numbers("/proc")?.into_iter().map(Pid).collect())
}

/// Lists the threads of a process, with the leader first.
pub fn threads(pid: Pid) -> Result<Vec<Tid>> {
    let mut found = numbers(&format!("/proc/{pid}/task"))?.into_iter().map(Tid).collect::<Vec<_>>();
    found.sort_by_key(|tid| (tid.get() != pid.get(), tid.get()));
    Ok(found)
}

/// Parses a text file of `/proc`. If this fails, the error contains the path.
pub(super) fn parsed<T>(path: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T> {
    parse(&read_text(path)?).ok_or_else(|| malformed(path))
}

pub(super) fn malformed(path: &str) -> Error {
    Error::path("understand", path, Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    /// Runs in a process of its own, because no test beside it could open a file.
    #[test]
    fn a_read_without_descriptors_is_a_shortage_and_an_ended_process_is_none() {
        const INNER: &str = "UNDYING_TEST_SHORTAGE";
        const NAME: &str =
            "procfs::files::tests::a_read_without_descriptors_is_a_shortage_and_an_ended_process_is_none";
        if std::env::var_os(INNER).is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output = again.args([NAME, "--exact", "--test-threads=1"]).env(INNER, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        assert!(read("/proc/0/stat").is_err());
        shortage().unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
        let reads = [threads(Pid(1)).map(drop), read("/proc/1/stat").map(drop)];
        let shortages = [shortage(), shortage()];
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(reads.iter().all(|read| read.as_ref().is_err_and(|error| error.errno == Errno::EMFILE)));
        assert_eq!(shortages[0].as_ref().unwrap_err().errno, Errno::EMFILE);
        assert!(shortages[1].is_ok(), "each shortage is reported once");
    }
}
