//! Detects files that a program has removed since a checkpoint, beside a file that a restore truncates.
//!
//! If a file only grew after a checkpoint, a restore can truncate the file to its recorded length. The truncation is
//! wrong if the program has also removed files of the same directory. For example, a database (RocksDB, LevelDB)
//! appends the names of its data files to a log (MANIFEST). A compaction after the checkpoint removes data files, and
//! appends this change to the log. A truncated log would refer to the removed files. So a checkpoint records the
//! names in the directory of a file that can be truncated. A restore searches the directory for each recorded name.
//!
//! Listing a directory can take long, so the directory is listed before the pause. In the pause, only the times of the
//! directory are read, to detect a change since the listing.
//!
//! Owns: the record of one directory, the validity of a listing, and the verdict on removed names.
//! Invariants: no directory is listed inside the pause. A listing is valid only if the times of the directory are
//! equal before the listing, after the listing and in the pause. A change that cannot be identified counts as a
//! removal.
//! Does not: compare the files to which the names lead. A name that leads to another file counts as present.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::Inode;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};

use super::times::Clock;
use crate::fd::description::Known;
use crate::support::file_system::is_pseudo;
use crate::support::opening::{may_read, may_write};
use crate::support::path;

/// The maximum number of names that are recorded for one directory. The hashes of these names take 4 KiB in each
/// checkpoint. In a directory with more names, a file can be truncated only if the directory is unchanged.
const NAMES_MAX: usize = 512;
/// The maximum number of directories that are listed for one checkpoint. In a directory that is not listed, a file
/// can be truncated only if the directory is unchanged.
const LISTED_MAX: usize = 64;
/// The time after which a changed directory can be listed, on every kernel version. [`super::times`] needs 20 ms
/// after the change, and the clock of file times can be 10 ms late.
const SETTLING: Duration = Duration::from_millis(30);

/// The record of a directory at a checkpoint. The directory contains at least one file that can be truncated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DirectoryRecord {
    /// The absolute path, as bytes.
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// `st_dev`.
    #[prost(uint64, tag = "2")]
    device: u64,
    /// `st_ino`; 0 if the directory could not be inspected.
    #[prost(uint64, tag = "3")]
    inode: u64,
    /// `st_mtime`, seconds.
    #[prost(int64, tag = "4")]
    modified_s: i64,
    /// `st_mtime`, nanoseconds.
    #[prost(uint64, tag = "5")]
    modified_ns: u64,
    /// `st_ctime`, seconds.
    #[prost(int64, tag = "6")]
    changed_s: i64,
    /// `st_ctime`, nanoseconds.
    #[prost(uint64, tag = "7")]
    changed_ns: u64,
    /// `true` if a change right after the checkpoint could leave the times unchanged, because the last change came
    /// shortly before the checkpoint.
    #[prost(bool, tag = "8")]
    times_are_coarse: bool,
    /// `true` if `names` contains all names of the checkpoint.
    #[prost(bool, tag = "9")]
    is_listed: bool,
    /// The hash of each name (see [`hash`]). The hashes are sorted.
    #[prost(fixed64, repeated, tag = "10")]
    names: Vec<u64>,
}

/// Identity and times of a directory. If two values are equal, they describe the same directory, and the directory is
/// unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    device: u64,
    inode: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl State {
    fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    fn is_same_directory(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl DirectoryRecord {
    fn new(path: &Path, state: State) -> Self {
        Self {
            path: path::to_bytes(path),
            device: state.device,
            inode: state.inode,
            modified_s: state.modified.0,
            modified_ns: state.modified.1,
            changed_s: state.changed.0,
            changed_ns: state.changed.1,
            ..Self::default()
        }
    }

    fn state(&self) -> State {
        State {
            device: self.device,
            inode: self.inode,
            modified: (self.modified_s, self.modified_ns),
            changed: (self.changed_s, self.changed_ns),
        }
    }
}

/// The names in one directory at one moment.
#[derive(Debug)]
enum Listing {
    /// The directory is on a pseudo file system. Files of pseudo file systems are not recorded.
    Pseudo,
    /// The listing is not usable. The directory changed during the listing, or so shortly before the listing that the
    /// times of the directory may not show the next change.
    Unsteady,
    /// The state of the directory, and its names. The names are `None` if there are more than [`NAMES_MAX`].
    Names(State, Option<Vec<u64>>),
}

/// The last listing of each directory with a file that can be truncated. The listings are kept between checkpoints.
#[derive(Debug, Default)]
pub struct Directories(HashMap<PathBuf, Listing>);

impl Directories {
    /// Lists the directories of `descriptions` that have changed since their last listing. Called before the pause.
    ///
    /// A directory is listed only if a restore may truncate one of its files. Files in `inherited` are never
    /// truncated. Names for which `is_transient` returns `true` are omitted. With `waits`, a directory that has just
    /// changed is listed again after 30 ms.
    pub fn list<'a>(
        &mut self,
        descriptions: impl Iterator<Item = &'a Known>,
        inherited: &[(u64, Inode)],
        is_transient: &dyn Fn(&str) -> bool,
        waits: bool,
    ) {
        let mut last = std::mem::take(&mut self.0);
        let mut unsteady: HashSet<&Path> = HashSet::new();
        for known in descriptions.filter(|known| may_be_cut_back(known)) {
            let Some(path) = known.info.target.parent() else { continue };
            if self.0.contains_key(path) || unsteady.contains(path) || inherited.contains(&known.file()) {
                continue;
            }
            if self.0.len() + unsteady.len() == LISTED_MAX {
                break;
            }
            match Listing::renew(path, last.remove(path), is_transient) {
                Some(Listing::Unsteady) => drop(unsteady.insert(path)),
                Some(listing) => drop(self.0.insert(path.to_owned(), listing)),
                None => {}
            }
        }
        if waits && !unsteady.is_empty() {
            std::thread::sleep(SETTLING);
            for path in unsteady {
                let listing = Listing::read(path, Clock::now(), is_transient);
                self.0.extend(listing.map(|listing| (path.to_owned(), listing)));
            }
        }
    }

    /// Returns the record of a directory. Called inside the pause. Makes only one system call: stat(2).
    pub(super) fn record(&self, path: &Path, clock: Clock) -> DirectoryRecord {
        let Ok(stat) = rustix::fs::lstat(path) else { return DirectoryRecord::new(path, State::default()) };
        let state = State::of(&stat);
        let names = match self.0.get(path) {
            Some(Listing::Names(listed, Some(names))) if *listed == state => Some(names.clone()),
            _ => None,
        };
        DirectoryRecord {
            times_are_coarse: clock.is_coarse_for(&stat),
            is_listed: names.is_some(),
            names: names.unwrap_or_default(),
            ..DirectoryRecord::new(path, state)
        }
    }
}

impl Listing {
    /// Returns the last listing if it is still valid. Otherwise lists the directory again. Returns `None` if the
    /// directory cannot be read.
    fn renew(path: &Path, last: Option<Self>, is_transient: &dyn Fn(&str) -> bool) -> Option<Self> {
        match last {
            Some(Self::Pseudo) => return Some(Self::Pseudo),
            Some(Self::Names(state, names))
                if rustix::fs::lstat(path).is_ok_and(|stat| State::of(&stat) == state) =>
            {
                return Some(Self::Names(state, names));
            }
            _ => {}
        }
        Self::read(path, Clock::now(), is_transient)
    }

    fn read(path: &Path, clock: Clock, is_transient: &dyn Fn(&str) -> bool) -> Option<Self> {
        let directory = rustix::fs::open(path, LIST | OFlags::NOFOLLOW, Mode::empty()).ok()?;
        if is_pseudo(&directory) {
            return Some(Self::Pseudo);
        }
        let mut directory = Dir::new(directory).ok()?;
        let before = directory.stat().ok()?;
        let is_transient = |name: &[u8]| str::from_utf8(name).is_ok_and(is_transient);
        let mut found = Vec::new();
        while found.len() <= NAMES_MAX
            && let Some(name) = next_name(&mut directory)
        {
            found.extend(name.ok()?.filter(|name| !is_transient(name)).map(|name| hash(&name)));
        }
        let after = directory.stat().ok()?;
        if clock.is_coarse_for(&before) || State::of(&before) != State::of(&after) {
            return Some(Self::Unsteady);
        }
        found.sort_unstable();
        Some(Self::Names(State::of(&before), (found.len() <= NAMES_MAX).then_some(found)))
    }
}

const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Reports whether a restore may have to truncate the file. In the pause, the file is inspected again for the final
/// decision.
fn may_be_cut_back(known: &Known) -> bool {
    let flags = known.info.flags;
    FileType::from_raw_mode(known.stat.st_mode) == FileType::RegularFile
        && known.stat.st_nlink > 0
        && may_write(flags)
        && (OFlags::from_bits_retain(flags).contains(OFlags::APPEND)
            || !may_read(flags)
            || known.stat.st_size == 0)
}

/// Reads the next name. Returns `Some(Ok(None))` for `.` and `..`.
fn next_name(directory: &mut Dir) -> Option<rustix::io::Result<Option<Vec<u8>>>> {
    let entry = directory.next()?;
    Some(entry.map(|entry| {
        let name = entry.file_name().to_bytes();
        (name != b"." && name != b"..").then(|| name.to_vec())
    }))
}

/// Returns the 64-bit FNV-1a hash of a name (Fowler, Noll, Vo). The hash function is part of the image format. The
/// hash functions of the standard library may change, and are therefore not used. Two names with the same hash would
/// harm only the subject, which chooses the names in its directory.
fn hash(name: &[u8]) -> u64 {
    name.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Decides in a restore whether the files beside a grown file still exist. Each directory is inspected once.
pub(super) struct Neighbours<'a> {
    /// The directory records. `None` if the image was written by a version that had no directory records.
    records: Option<&'a [DirectoryRecord]>,
    verdicts: HashMap<PathBuf, Option<&'static str>>,
}

const REMOVED: &str = "was appended to, and files beside it were removed after the checkpoint";
const ANOTHER: &str = "was appended to, and its directory is not the one of the checkpoint";
const UNKNOWN: &str = "was appended to, and its directory was changed after the checkpoint: it is unknown whether \
                       files beside it were removed";

impl<'a> Neighbours<'a> {
    pub(super) fn new(records: Option<&'a [DirectoryRecord]>) -> Self {
        Self { records, verdicts: HashMap::new() }
    }

    /// Returns the reason why a file that only grew must not be truncated. Returns `None` if the file can be
    /// truncated. The text continues a sentence that begins with the path of the file.
    pub(super) fn forbid_cut(&mut self, file: &Path) -> Option<&'static str> {
        let records = self.records?;
        let path = file.parent().unwrap_or(file);
        if let Some(verdict) = self.verdicts.get(path) {
            return *verdict;
        }
        let record = records.iter().find(|record| OsStr::from_bytes(&record.path) == path.as_os_str());
        let verdict = record.map_or(Some(UNKNOWN), judge);
        self.verdicts.insert(path.to_owned(), verdict);
        verdict
    }
}

fn judge(record: &DirectoryRecord) -> Option<&'static str> {
    const NAMED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    let opened = rustix::fs::open(path::from_bytes(&record.path), NAMED, Mode::empty());
    let opened = opened.and_then(|directory| rustix::fs::fstat(&directory).map(|stat| (directory, stat)));
    let Ok((directory, now)) = opened else { return Some(ANOTHER) };
    let (recorded, now) = (record.state(), State::of(&now));
    if !now.is_same_directory(&recorded) {
        return Some(ANOTHER);
    }
    if now == recorded && !record.times_are_coarse {
        return None;
    }
    if !record.is_listed {
        return Some(UNKNOWN);
    }
    match has_all(&directory, &record.names) {
        Ok(true) => None,
        Ok(false) => Some(REMOVED),
        Err(_) => Some(UNKNOWN),
    }
}

/// Reports whether each recorded name exists in the directory.
fn has_all(directory: &OwnedFd, names: &[u64]) -> rustix::io::Result<bool> {
    let mut missing: HashSet<u64> = names.iter().copied().collect();
    let mut directory = Dir::new(rustix::fs::openat(directory.as_fd(), ".", LIST, Mode::empty())?)?;
    while !missing.is_empty()
        && let Some(name) = next_name(&mut directory)
    {
        if let Some(name) = name? {
            missing.remove(&hash(&name));
        }
    }
    Ok(missing.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_the_published_function() {
        // The test vectors are published by the authors of the hash.
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_directory_that_has_just_changed_is_not_listed_where_times_are_coarse() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::coarse();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let listing = Listing::read(folder.path(), clock, &|_| false);
        assert!(matches!(listing, Some(Listing::Unsteady)));
        std::thread::sleep(SETTLING);
        let listing = Listing::read(folder.path(), Clock::coarse(), &|_| false);
        assert!(matches!(listing, Some(Listing::Names(_, Some(names))) if names == [hash(b"file")]));
    }

    #[test]
    fn transient_names_are_omitted() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".image.1-0.partial", "log"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::thread::sleep(SETTLING);
        let listing = Listing::read(folder.path(), Clock::now(), &|name| name.ends_with(".partial"));
        assert!(matches!(listing, Some(Listing::Names(_, Some(names))) if names == [hash(b"log")]));
    }

    #[test]
    fn a_directory_of_a_pseudo_file_system_is_not_listed() {
        let listing = Listing::read(Path::new("/proc/sys/kernel"), Clock::now(), &|_| false);
        assert!(matches!(listing, Some(Listing::Pseudo)));
    }
}
