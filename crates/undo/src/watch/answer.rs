//! Records the files that a reported call of the subject is about to change.
//!
//! An epoch is the time between two successive exact checkpoints, to which files can be rolled back. No rollback across
//! a broken epoch is possible.
//!
//! Owns: the choice of records before each kind of change.
//! Invariants: a call whose path leads to no file changes nothing. Any other failure to find the changes of a call
//! breaks the epoch.
//! Does not: receive calls, or allow calls to continue; `threads` does.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use model::{Address, ByteCount, Pid, Tid};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sys::{clock, process_memory};

use super::calls::{
    Call, Change, FileAt, PathAt, change_of, changes, is_nameless, is_sync, is_written_through,
};
use super::content::part_of_open;
use super::descriptors::stat;
use super::epoch::Part;
use super::paths::{self, Entry, Place};
use super::state::State;
use crate::error::Result;

/// Length of the known part of `struct open_how`, in bytes.
const OPEN_HOW_BYTES: usize = 24;
/// Length of `struct sockaddr_un` (family and path), in bytes.
const SOCKET_ADDRESS_BYTES: usize = 110;
const FAMILY_BYTES: usize = 2;
const AF_UNIX: u16 = 1;

impl State {
    /// Records the files that a call is about to change. Ignores a failure if `is_over` reports that the thread of the
    /// call was killed. Queries in /proc about a killed thread can fail in many ways.
    pub(super) fn answer(&mut self, thread: Tid, call: &Call, is_over: impl Fn() -> bool) {
        let change = with_flags(thread, change_of(call));
        self.crossings.passed(thread);
        let opens_through = matches!(change, Change::Open(_, flags) if is_written_through(flags));
        if is_sync(call) || opens_through {
            self.boundaries.durable.syncs(thread, clock::monotonic(), &is_over);
        }
        let outcome = self.before(thread, change);
        if outcome.is_err() && is_over() {
            return;
        }
        self.or_break(outcome, "a change by the program");
    }

    fn before(&mut self, thread: Tid, change: Change) -> Result<()> {
        match change {
            Change::Open(at, flags) => self.before_open(thread, at, flags),
            Change::Make(at) => match self.entry(thread, &at)? {
                Some(entry) => self.name(&entry).map(drop),
                None => Ok(()),
            },
            Change::Link(from, to) => self.before_link(thread, &from, &to),
            Change::Remove(at) => match self.entry(thread, &at)? {
                Some(entry) => self.remove(&entry),
                None => Ok(()),
            },
            Change::Rename(from, to) => match (self.entry(thread, &from)?, self.entry(thread, &to)?) {
                (Some(from), Some(to)) => {
                    self.rename(&from, &to)?;
                    self.moves(thread, &from, &to)
                }
                _ => Ok(()),
            },
            Change::Cut(file, length) => self.before_change(thread, file, Part::Behind(length)),
            Change::Range { file, offset, length } => {
                let part = length.map_or(Part::Behind(offset), |length| Part::Range(offset, length));
                self.before_change(thread, file, part)
            }
            Change::Whole(file) => self.before_change(thread, file, Part::All),
            Change::Attributes(file) => self.before_attributes(thread, file),
            Change::NoAppend(fd) => match passed(paths::descriptor(thread, fd))? {
                Some(file) => self.appends_no_more(file.as_fd()),
                None => Ok(()),
            },
            Change::Bind(address, length) => self.before_bind(thread, address, length),
            // The source of content events reports a mapping once, when the mapping is created.
            Change::Map { .. } | Change::Nothing | Change::OpenHow(..) => Ok(()),
            Change::Unknown(what) => {
                self.break_epoch(&format!(
                    "the program uses {what}, and file changes by this call cannot be recorded"
                ));
                Ok(())
            }
        }
    }

    fn before_open(&mut self, thread: Tid, at: PathAt, flags: OFlags) -> Result<()> {
        if !changes(flags) {
            return Ok(());
        }
        let is_exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let follows = !flags.contains(OFlags::NOFOLLOW) && !is_exclusive;
        match self.place(paths::find(thread, &PathAt { follows, ..at }))? {
            None => Ok(()),
            Some(Place::File(file)) if is_nameless(flags) => self.enable_at(file.as_fd()),
            Some(Place::File(file)) => self.change(file.as_fd(), part_of_open(flags)),
            Some(Place::Entry(entry)) => self.before_open_name(thread, &entry, flags),
        }
    }

    fn before_open_name(&mut self, thread: Tid, entry: &Entry, flags: OFlags) -> Result<()> {
        let makes = flags.contains(OFlags::CREATE);
        let is_exclusive = makes && flags.contains(OFlags::EXCL);
        let part = part_of_open(flags);
        match passed(entry.open())? {
            Some(file) if is_nameless(flags) => return self.enable_at(file.as_fd()),
            Some(_) if is_exclusive => {}
            Some(file) if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) => {
                self.note_mount_of(entry)?;
                self.change_named(entry, file.as_fd(), part)?;
            }
            Some(_) => {}
            None if makes => {
                self.name(entry)?;
                self.enable_at(entry.directory.as_fd())?;
            }
            None => {}
        }
        self.opens(thread, entry, part)
    }

    /// Returns the place that a path leads to. Returns `None` if the path leads nowhere, or to a file system whose
    /// content the kernel generates.
    fn place(&mut self, found: std::result::Result<Place, Errno>) -> Result<Option<Place>> {
        let Some(place) = passed(found)? else { return Ok(None) };
        let file = match &place {
            Place::Entry(entry) => entry.directory.as_fd(),
            Place::File(file) => file.as_fd(),
        };
        let device = stat(file)?.st_dev;
        Ok((!self.file_systems.is_made_up(file, device)).then_some(place))
    }

    /// Returns the directory entry that a path leads to, if the path leads to an entry.
    fn entry(&mut self, thread: Tid, at: &PathAt) -> Result<Option<Entry>> {
        match self.place(paths::find(thread, at))? {
            Some(Place::Entry(entry)) => Ok(Some(entry)),
            _ => Ok(None),
        }
    }

    fn enable_at(&mut self, directory: BorrowedFd<'_>) -> Result<()> {
        let device = stat(directory)?.st_dev;
        self.file_systems.enable(self.watched.source(), directory, device)
    }

    fn note_mount_of(&mut self, entry: &Entry) -> Result<()> {
        let device = stat(entry.directory.as_fd())?.st_dev;
        self.file_systems.note_mount(entry.directory.as_fd(), device);
        Ok(())
    }

    fn before_link(&mut self, thread: Tid, from: &PathAt, to: &PathAt) -> Result<()> {
        let Some(to) = self.entry(thread, to)? else { return Ok(()) };
        match self.place(paths::find(thread, from))? {
            Some(Place::Entry(from)) => {
                self.link(&from, &to)?;
                self.moves(thread, &from, &to)
            }
            Some(Place::File(file)) => {
                let found = stat(file.as_fd())?;
                if found.st_nlink == 0 {
                    // The file had no name when the epoch began, and therefore counts as created in this epoch.
                    self.epoch.made.insert((found.st_dev, found.st_ino));
                } else if !self.is_made_file(file.as_fd(), &found)? {
                    self.old(file.as_fd(), &found)?;
                }
                self.name(&to).map(drop)
            }
            None => Ok(()),
        }
    }

    fn before_change(&mut self, thread: Tid, file: FileAt, part: Part) -> Result<()> {
        match file {
            FileAt::Descriptor(fd) => match passed(paths::descriptor(thread, fd))? {
                Some(file) => self.change(file.as_fd(), part),
                None => Ok(()),
            },
            FileAt::Path(at) => match self.place(paths::find(thread, &at))? {
                Some(Place::Entry(entry)) => match passed(entry.open())? {
                    Some(file) => self.change_named(&entry, file.as_fd(), part),
                    None => Ok(()),
                },
                Some(Place::File(file)) => self.change(file.as_fd(), part),
                None => Ok(()),
            },
        }
    }

    fn before_attributes(&mut self, thread: Tid, file: FileAt) -> Result<()> {
        let (file, is_made) = match file {
            FileAt::Descriptor(fd) => match self.place(paths::descriptor(thread, fd).map(Place::File))? {
                Some(Place::Entry(_)) => return Ok(()),
                Some(Place::File(file)) => {
                    let is_made = self.is_made_file(file.as_fd(), &stat(file.as_fd())?)?;
                    (file, is_made)
                }
                None => return Ok(()),
            },
            FileAt::Path(at) => match self.place(paths::find(thread, &at))? {
                Some(Place::Entry(entry)) => match passed(entry.open())? {
                    Some(file) => {
                        let is_made = self.is_made(&entry, file.as_fd(), &stat(file.as_fd())?)?;
                        (file, is_made)
                    }
                    None => return Ok(()),
                },
                Some(Place::File(file)) => {
                    let is_made = self.is_made_file(file.as_fd(), &stat(file.as_fd())?)?;
                    (file, is_made)
                }
                None => return Ok(()),
            },
        };
        let found = stat(file.as_fd())?;
        // The image of the checkpoint contains the attributes of a file without a name.
        if is_made || found.st_nlink == 0 {
            return Ok(());
        }
        self.old(file.as_fd(), &found).map(drop)
    }

    fn before_bind(&mut self, thread: Tid, address: Address, length: ByteCount) -> Result<()> {
        let length = (length.get() as usize).min(SOCKET_ADDRESS_BYTES);
        let mut bytes = vec![0; length];
        if length <= FAMILY_BYTES || process_memory::read(Pid(thread.get()), address, &mut bytes).is_err() {
            return Ok(());
        }
        let path: Vec<u8> = bytes[FAMILY_BYTES..].iter().copied().take_while(|byte| *byte != 0).collect();
        // An abstract name or an empty name is not a file.
        if u16::from_ne_bytes([bytes[0], bytes[1]]) != AF_UNIX || path.is_empty() {
            return Ok(());
        }
        let path = PathBuf::from(OsString::from_vec(path));
        match self.place(paths::find_path(thread, path))? {
            Some(Place::Entry(entry)) => self.name(&entry).map(drop),
            _ => Ok(()),
        }
    }
}

/// Reads the flags of openat2(2) from the memory of the subject. If they cannot be read, the call fails, and the change
/// remains `OpenHow`.
fn with_flags(thread: Tid, change: Change) -> Change {
    let Change::OpenHow(at, how) = change else { return change };
    let mut bytes = [0; OPEN_HOW_BYTES];
    if process_memory::read(Pid(thread.get()), how, &mut bytes).is_err() {
        return change;
    }
    let flags = u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"));
    Change::Open(at, OFlags::from_bits_retain(flags as u32))
}

/// Returns `None` if a path leads to no file, or if the kernel cannot follow the path either. The call fails in these
/// cases.
fn passed<T>(found: std::result::Result<T, Errno>) -> Result<Option<T>> {
    const FAILS: [Errno; 8] = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::LOOP,
        Errno::NAMETOOLONG,
        Errno::FAULT,
        Errno::BADF,
        Errno::SRCH,
        Errno::INVAL,
    ];
    match found {
        Ok(found) => Ok(Some(found)),
        Err(errno) if FAILS.contains(&errno) => Ok(None),
        Err(errno) => Err(sys::Error::new("follow a path of the subject", errno).into()),
    }
}
