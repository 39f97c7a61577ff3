//! Records the files that a reported call of the subject is about to change.
//!
//! Owns: the choice of records before each kind of change.
//! Invariants: a call whose path leads to no file, or for which the thread has no permission, changes nothing. Any
//! other failure to find the changes of a call breaks the epoch.
//! Does not: receive calls, or allow calls to continue; `threads` does.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use model::{Address, ByteCount, Tid};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sys::clock;

use super::callers::Callers;
use super::calls::{
    Attribute, Call, Change, FileAt, PathAt, change_of, changes, is_nameless, is_sync, is_written_through,
};
use super::content::part_of_open;
use super::descriptors::stat;
use super::epoch::Part;
use super::paths::{self, Entry, Place, Sought};
use super::permission::{Need, Write, is_permitted, may_move};
use super::state::State;
use crate::error::Result;
use crate::rights::Aspects;

/// Whether the files of a call are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// They are recorded, or the epoch is broken. The call can continue.
    Given,
    /// This program lacked resources. The call must wait for the next attempt.
    Later,
}

/// Length of the known part of `struct open_how`, in bytes.
const OPEN_HOW_BYTES: usize = 24;
/// Length of `struct sockaddr_un` (family and path), in bytes.
const SOCKET_ADDRESS_BYTES: usize = 110;
const FAMILY_BYTES: usize = 2;
/// Length of `struct timespec` in bytes.
const TIMESPEC_BYTES: usize = 16;
const AF_UNIX: u16 = 1;

impl State {
    /// Notes a call that makes changes durable, before the first call of [`Self::answer`].
    pub(super) fn begin_call(&mut self, thread: Tid, call: &Call, is_over: impl Fn() -> bool) {
        self.calls.crossings.passed(thread);
        // If the flags cannot be read now, the file may be written through.
        let opens_through = with_flags(thread, change_of(call))
            .map_or(true, |change| matches!(change, Change::Open(_, flags) if is_written_through(flags)));
        if is_sync(call) || opens_through {
            self.boundaries.durable.syncs(thread, clock::monotonic(), &is_over);
        }
    }

    /// Records the files that a call is about to change. Ignores a failure if `is_over` reports that the thread of the
    /// call was killed: queries in /proc about a killed thread can fail in many ways. If this program lacks descriptors
    /// or memory, the caller repeats the attempt, because the call of the subject still waits. After the attempt with
    /// `is_last`, any failure breaks the epoch.
    pub(super) fn answer(
        &mut self,
        thread: Tid,
        call: &Call,
        is_over: impl Fn() -> bool,
        is_last: bool,
    ) -> Answer {
        let outcome = match with_flags(thread, change_of(call)) {
            Ok(change) => self.before(thread, change),
            Err(errno) => Err(sys::Error::new("read the arguments of a call", errno).into()),
        };
        match &outcome {
            Err(_) if is_over() => return Answer::Given,
            Err(error) if !is_last && error.is_shortage() => return Answer::Later,
            _ => {}
        }
        self.or_break(outcome, "a change by the program");
        Answer::Given
    }

    fn before(&mut self, thread: Tid, change: Change) -> Result<()> {
        self.calls.rights = match change {
            Change::Map { .. } | Change::Nothing | Change::Unknown(_) => None,
            _ => self.calls.callers.rights_of(thread)?,
        };
        self.calls.limit = match change {
            Change::Map { .. } | Change::Nothing | Change::Unknown(_) => None,
            _ => Callers::limit_of(thread, self.calls.rights.as_ref())?,
        };
        match change {
            Change::Open(at, flags) => self.before_open(thread, at, flags),
            Change::Make(at) => match self.entry(thread, &at, &Need::Create)? {
                Some(entry) => self.make(&entry),
                None => Ok(()),
            },
            Change::Link(from, to) => self.before_link(thread, &from, &to),
            Change::Remove { at, is_directory } => match self.entry(thread, &at, &Need::Remove)? {
                Some(entry) => self.remove(thread, &entry, is_directory),
                None => Ok(()),
            },
            Change::Rename { from, to, is_exchange } => self.before_rename(thread, &from, &to, is_exchange),
            Change::Cut(file, length) => self.before_change(thread, file, Part::Behind(length)),
            Change::Range { file, offset, length } => {
                let part = length.map_or(Part::Behind(offset), |length| Part::Range(offset, length));
                self.before_change(thread, file, part)
            }
            Change::Whole(file) => self.before_change(thread, file, Part::All),
            // The source of content events reports the hole, unless the file is tracked.
            Change::MappedHole => {
                self.watched.mapped.note_call_on_all();
                Ok(())
            }
            Change::Attributes(file, attribute) => self.before_attributes(thread, file, attribute),
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
        let need = if is_nameless(flags) { Need::Find } else { Need::Write(write_of_open(flags)) };
        let part = part_of_open(flags);
        match self.judged(paths::seek(thread, &PathAt { follows, ..at }), &need)? {
            // Another thread may be moving a file to this name, which the thread may open.
            Some((Place::Entry(entry), false)) => self.opens(thread, &entry, part),
            None | Some((_, false)) => Ok(()),
            Some((Place::File(file), true)) if is_nameless(flags) => self.enable_at(file.as_fd()),
            Some((Place::File(file), true)) => self.change(file.as_fd(), part),
            Some((Place::Entry(entry), true)) => self.before_open_name(thread, &entry, flags),
        }
    }

    fn before_open_name(&mut self, thread: Tid, entry: &Entry, flags: OFlags) -> Result<()> {
        let makes = flags.contains(OFlags::CREATE);
        let is_exclusive = makes && flags.contains(OFlags::EXCL);
        let part = part_of_open(flags);
        match passed(entry.open())? {
            Some(file) if is_nameless(flags) => return self.enable_at(file.as_fd()),
            Some(_) if is_exclusive => {}
            Some(file) if writes(flags) => {
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

    /// Returns the place that a path leads to. Returns `None` if the path leads nowhere, if the path leads to a file
    /// system whose content the kernel generates, or if the thread has no permission for what it `needs`.
    fn place(&mut self, sought: std::result::Result<Sought, Errno>, needs: &Need) -> Result<Option<Place>> {
        Ok(self.judged(sought, needs)?.and_then(|(place, is_permitted)| is_permitted.then_some(place)))
    }

    /// Works like `place`, but also returns a place for which the thread has no permission. The second value is the
    /// permission.
    fn judged(
        &mut self,
        sought: std::result::Result<Sought, Errno>,
        needs: &Need,
    ) -> Result<Option<(Place, bool)>> {
        let Some(sought) = passed(sought)? else { return Ok(None) };
        let Some((place, is_permitted)) = self.find(sought, needs)? else { return Ok(None) };
        let file = match &place {
            Place::Entry(entry) => entry.directory.as_fd(),
            Place::File(file) => file.as_fd(),
        };
        let device = stat(file)?.st_dev;
        Ok((!self.file_systems.is_made_up(file, device)?).then_some((place, is_permitted)))
    }

    /// Follows a path with the rights of the thread, and checks the permission of the thread. Returns `None` if the
    /// thread may not follow the path.
    fn find(&self, sought: Sought, needs: &Need) -> Result<Option<(Place, bool)>> {
        let Some(rights) = &self.calls.rights else {
            return Ok(passed(sought.find())?.map(|place| (place, true)));
        };
        // The rights that this program can take on lack what a thread may do in its own directory of /proc, and the
        // capabilities of another user namespace. The kernel may then refuse a path to this program that the thread may
        // follow. The last file of the path decides in these cases.
        let Some(is_in_proc) = passed(sought.is_in_proc())? else { return Ok(None) };
        let follows_all = is_in_proc || rights.namespace.is_some();
        let sought = if follows_all { Err(passed(sought.find())?) } else { Ok(sought) };
        let outcome = self.calls.callers.act(Some(rights), || {
            let place = match sought {
                Ok(sought) => sought.find()?,
                Err(Some(place)) => place,
                Err(None) => return Ok(None),
            };
            let is_permitted = match is_permitted(rights, &place, needs) {
                Err(Errno::ACCESS | Errno::PERM) => false,
                outcome => outcome?,
            };
            Ok(Some((place, is_permitted)))
        })?;
        granted(outcome)
    }

    /// Checks the permission of the thread for an open file.
    fn is_granted(&self, file: OwnedFd, needs: &Need) -> Result<Option<OwnedFd>> {
        let Some(rights) = &self.calls.rights else { return Ok(Some(file)) };
        let place = Place::File(file);
        let outcome = self.calls.callers.act(Some(rights), || is_permitted(rights, &place, needs))?;
        let is_granted = granted(outcome.map(Some))?.unwrap_or(false);
        match place {
            Place::File(file) if is_granted => Ok(Some(file)),
            _ => Ok(None),
        }
    }

    /// Returns the directory entry that a path leads to, if the path leads to an entry.
    fn entry(&mut self, thread: Tid, at: &PathAt, needs: &Need) -> Result<Option<Entry>> {
        match self.place(paths::seek(thread, at), needs)? {
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

    fn before_rename(&mut self, thread: Tid, from: &PathAt, to: &PathAt, is_exchange: bool) -> Result<()> {
        let Some(from) = self.entry(thread, from, &Need::Remove)? else { return Ok(()) };
        let Some(to) = self.entry(thread, to, &Need::Remove)? else { return Ok(()) };
        if let Some(rights) = &self.calls.rights {
            let outcome = self.calls.callers.act(Some(rights), || may_move(rights, &from, &to))?;
            if granted(outcome.map(Some))? != Some(true) {
                return Ok(());
            }
        }
        self.rename(thread, &from, &to, is_exchange)?;
        self.moves(thread, &from, &to)
    }

    fn before_link(&mut self, thread: Tid, from: &PathAt, to: &PathAt) -> Result<()> {
        let Some(to) = self.entry(thread, to, &Need::Create)? else { return Ok(()) };
        match self.place(paths::seek(thread, from), &Need::Link)? {
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
                    self.old(file.as_fd(), &found, Aspects::NONE)?;
                }
                self.make(&to)
            }
            None => Ok(()),
        }
    }

    fn before_change(&mut self, thread: Tid, file: FileAt, part: Part) -> Result<()> {
        match file {
            // The rights of the thread were checked when the descriptor was opened.
            FileAt::Descriptor(fd) => match passed(paths::writable(thread, fd))? {
                Some(file) => self.change(file.as_fd(), part),
                None => Ok(()),
            },
            FileAt::Path(at) => match self.place(paths::seek(thread, &at), &Need::Write(CUTS))? {
                Some(Place::Entry(entry)) => match passed(entry.open())? {
                    Some(file) => self.change_named(&entry, file.as_fd(), part),
                    None => Ok(()),
                },
                Some(Place::File(file)) => self.change(file.as_fd(), part),
                None => Ok(()),
            },
        }
    }

    fn before_attributes(&mut self, thread: Tid, file: FileAt, attribute: Attribute) -> Result<()> {
        let Some((needs, aspects)) = passed(needs_of(thread, attribute))? else { return Ok(()) };
        let place = match file {
            FileAt::Descriptor(fd) => match passed(paths::descriptor(thread, fd))? {
                Some(file) => self.is_granted(file, &needs)?.map(Place::File),
                None => None,
            },
            FileAt::Path(at) => self.place(paths::seek(thread, &at), &needs)?,
        };
        let (file, is_made) = match place {
            Some(Place::Entry(entry)) => match passed(entry.open())? {
                Some(file) => {
                    let is_made = self.is_made(&entry, file.as_fd(), &stat(file.as_fd())?)?;
                    (file, is_made)
                }
                None => return Ok(()),
            },
            Some(Place::File(file)) => {
                let found = stat(file.as_fd())?;
                if self.file_systems.is_made_up(file.as_fd(), found.st_dev)? {
                    return Ok(());
                }
                let is_made = self.is_made_file(file.as_fd(), &found)?;
                (file, is_made)
            }
            None => return Ok(()),
        };
        let found = stat(file.as_fd())?;
        // The image of the checkpoint contains the attributes of a file without a name.
        if is_made || found.st_nlink == 0 {
            return Ok(());
        }
        self.old(file.as_fd(), &found, aspects).map(drop)
    }

    fn before_bind(&mut self, thread: Tid, address: Address, length: ByteCount) -> Result<()> {
        let Some(path) = passed(socket_path(thread, address, length))?.flatten() else { return Ok(()) };
        match self.place(paths::seek_path(thread, path), &Need::Create)? {
            Some(Place::Entry(entry)) => self.make(&entry),
            _ => Ok(()),
        }
    }
}

/// Returns the path of a socket address in the memory of the subject. Returns `None` if the address is not a path.
pub(super) fn socket_path(
    thread: Tid,
    address: Address,
    length: ByteCount,
) -> std::result::Result<Option<PathBuf>, Errno> {
    let length = (length.get() as usize).min(SOCKET_ADDRESS_BYTES);
    let mut bytes = vec![0; length];
    if length <= FAMILY_BYTES {
        return Ok(None);
    }
    paths::memory(thread, address, &mut bytes)?;
    let path: Vec<u8> = bytes[FAMILY_BYTES..].iter().copied().take_while(|byte| *byte != 0).collect();
    // An abstract name or an empty name is not a file.
    let is_path = u16::from_ne_bytes([bytes[0], bytes[1]]) == AF_UNIX && !path.is_empty();
    Ok(is_path.then(|| PathBuf::from(OsString::from_vec(path))))
}

/// Reads the flags of openat2(2) from the memory of the subject. If they cannot be read, the call fails, and the change
/// remains `OpenHow`.
pub(super) fn with_flags(thread: Tid, change: Change) -> std::result::Result<Change, Errno> {
    let Change::OpenHow(at, how) = change else { return Ok(change) };
    let mut bytes = [0; OPEN_HOW_BYTES];
    match paths::memory(thread, how, &mut bytes) {
        Err(Errno::FAULT) => return Ok(change),
        read => read?,
    }
    let flags = u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"));
    Ok(Change::Open(at, OFlags::from_bits_retain(flags as u32)))
}

/// What truncate(2) needs.
const CUTS: Write = Write { reads: false, writes: true, creates: false };

fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

fn write_of_open(flags: OFlags) -> Write {
    Write {
        reads: !flags.contains(OFlags::WRONLY),
        writes: writes(flags),
        creates: flags.contains(OFlags::CREATE),
    }
}

/// Returns the permission that a change of an attribute needs, and the aspects that the call changes.
fn needs_of(thread: Tid, attribute: Attribute) -> std::result::Result<(Need, Aspects), Errno> {
    Ok(match attribute {
        Attribute::Mode => (Need::Change(attribute), Aspects::RIGHTS),
        // The kernel removes the capabilities of a file when its owner changes.
        Attribute::Owner { .. } => (Need::Change(attribute), Aspects::RIGHTS | Aspects::PRIVILEGED),
        Attribute::Times { values, is_fine } => {
            let is_explicit = match values {
                Some(values) => !(is_fine && is_present(thread, values)?),
                None => false,
            };
            (Need::SetTimes { is_explicit }, Aspects::TIMES)
        }
        Attribute::Flags => (Need::Change(attribute), Aspects::NONE),
        Attribute::Extended(name) => {
            let name = paths::read(thread, name)?.into_os_string().into_vec();
            let aspects = Aspects::of_extended(&name);
            (Need::ChangeExtended(name), aspects)
        }
    })
}

/// Reports whether both times at an address mean the present time.
fn is_present(thread: Tid, values: Address) -> std::result::Result<bool, Errno> {
    let mut bytes = [0; 2 * TIMESPEC_BYTES];
    paths::memory(thread, values, &mut bytes)?;
    let present = libc::UTIME_NOW.to_ne_bytes();
    Ok(bytes.chunks(TIMESPEC_BYTES).all(|time| time[TIMESPEC_BYTES / 2..] == present))
}

/// Works like `passed` for a query with the rights of a thread. Returns `None` if the thread has no permission.
fn granted<T>(outcome: std::result::Result<Option<T>, Errno>) -> Result<Option<T>> {
    match outcome {
        Err(Errno::ACCESS | Errno::PERM) => Ok(None),
        outcome => passed(outcome).map(Option::flatten),
    }
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
