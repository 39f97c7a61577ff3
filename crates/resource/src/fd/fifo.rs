//! Saves and restores named pipes (fifo(7)): the descriptor kind `fd/fifo`.
//!
//! Owns: opening named pipes again without blocking, their content, and creating pipes whose name was removed.
//! Invariants: content is saved if the subject can read it, and is written only into an empty pipe. A pipe that an
//! outside process still has open already contains the content. A reader that never had a writer is restored without
//! a writer, so that poll(2) does not report POLLHUP.
//! Does not: hold an end open while the subject does not exist. An outside process at the other end sees this end
//! close and open again.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use model::DescriptionId;
use prost::Message;
use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags, mkfifoat};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::pipe::{content, events, is_carrier};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::{Found, Opener, Refusal};
use crate::support::identity::Identity;
use crate::support::making::{self, Ownership};
use crate::support::opening::{self, flags_for, is_path_only, may_read, may_write};
use crate::support::path::{self, Link, Name};
use crate::support::pipe_queue::{self, Chunk, QueueCopy};

const NAME: &str = "fd/fifo";
const O_DIRECT: u32 = 0o40_000;

/// The payload: one end of a named pipe as it is in the image.
#[derive(Clone, PartialEq, Message)]
struct FifoPayload {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(uint64, tag = "2")]
    device: u64,
    #[prost(uint64, tag = "3")]
    inode: u64,
    /// Set when the name was removed.
    #[prost(bool, tag = "4")]
    nameless: bool,
    #[prost(uint32, tag = "5")]
    mode: u32,
    #[prost(uint32, tag = "6")]
    user: u32,
    #[prost(uint32, tag = "7")]
    group: u32,
    /// Capacity of the pipe in bytes.
    #[prost(uint64, tag = "8")]
    capacity: u64,
    /// Unread content. Only the record of one readable end contains the content.
    #[prost(message, repeated, tag = "9")]
    chunks: Vec<Chunk>,
    /// Set when poll(2) reports for a readable end that all writers have closed (POLLHUP).
    #[prost(bool, tag = "10")]
    hung_up: bool,
    /// Identity of the file. Images of earlier versions contain only device and inode.
    #[prost(message, optional, tag = "20")]
    identity: Option<Identity>,
}

/// Descriptor kind ([`FdKind`]) of named pipes.
#[derive(Clone, Copy, Debug)]
pub struct Fifo;

impl FdKind for Fifo {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<FifoPayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Fifo
            && Name::of(description) != Name::None
            && !is_path_only(description.info.flags)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        match Name::of(description) {
            Name::Live(path) => path::unreachable(description, &path, scope),
            Name::Gone(_) | Name::None => Vec::new(),
        }
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let queue = if is_carrier(description, scope) {
            Some(QueueCopy::new(pipe_queue::capacity(&description.duplicate)?)?)
        } else {
            None
        };
        let mut ends = scope.of_file(description.file());
        let packets = ends.any(|end| may_write(end.info.flags) && end.info.flags & O_DIRECT != 0);
        let link = Link::new();
        let identity = Identity::with(description, &description.stat);
        Ok(Box::new(FifoCapture { link, queue, packets, capacity: 0, hung_up: false, identity }))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut fifos: BTreeMap<(u64, u64), FifoEnds> = BTreeMap::new();
        for record in records {
            let payload: FifoPayload = crate::error::decode(NAME, &record.payload)?;
            let fifo = fifos.entry((payload.device, payload.inode)).or_default();
            fifo.ends.push(End {
                id: record.id,
                flags: record.flags,
                hung_up: payload.hung_up,
                opener: record.opener.clone(),
            });
            if fifo.ends.len() == 1 || !payload.chunks.is_empty() {
                fifo.state = payload;
            }
        }
        fifos.values().try_for_each(|fifo| fifo.create(context))
    }
}

#[derive(Debug)]
struct FifoCapture {
    link: Link,
    queue: Option<QueueCopy>,
    packets: bool,
    capacity: usize,
    hung_up: bool,
    identity: Identity,
}

impl FdCapture for FifoCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.link.read(description)?;
        self.capacity = pipe_queue::capacity(&description.duplicate)?;
        self.hung_up = events(description).contains(PollFlags::HUP);
        if let Some(queue) = &mut self.queue {
            queue.copy(description.duplicate.as_fd())?;
        }
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let chunks = match &mut self.queue {
            Some(queue) => content(queue, self.packets, description, "named pipe")?,
            None => Vec::new(),
        };
        let stat = &description.stat;
        let name = Name::new(self.link.bytes(), stat);
        let payload = FifoPayload {
            path: path::to_bytes(name.path()),
            device: stat.st_dev,
            inode: stat.st_ino,
            nameless: matches!(name, Name::Gone(_)),
            mode: stat.st_mode & 0o7777,
            user: stat.st_uid,
            group: stat.st_gid,
            capacity: self.capacity as u64,
            chunks,
            hung_up: self.hung_up,
            identity: Some(self.identity),
        };
        Ok(payload.encode_to_vec())
    }
}

/// One named pipe in a restore.
#[derive(Debug, Default)]
struct FifoEnds {
    ends: Vec<End>,
    state: FifoPayload,
}

#[derive(Debug)]
struct End {
    id: DescriptionId,
    flags: u32,
    hung_up: bool,
    opener: Opener,
}

impl FifoEnds {
    fn create(&self, context: &mut FdCreate<'_>) -> Result<()> {
        let path = path::from_bytes(&self.state.path);
        if self.state.nameless {
            let fifo = self.make_again(&path)?;
            return self.open(context, |_, flags| Ok(opening::reopen(&fifo, flags)?));
        }
        self.open_named(&path, context)
    }

    fn open_named(&self, path: &Path, context: &mut FdCreate<'_>) -> Result<()> {
        let cannot = |refusal: Refusal| match refusal {
            Refusal::Failed(errno) if !errno.may_pass() => missing(path),
            refusal => refusal.of(
                path,
                "the program has this named pipe open",
                "create the named pipe (mkfifo), then restore again",
            ),
        };
        let numbers = || Identity::from_numbers(self.state.device, self.state.inode, FileType::Fifo);
        let recorded = self.state.identity.unwrap_or_else(numbers);
        let mut found: HashMap<DescriptionId, Found<'_>> = HashMap::new();
        for end in &self.ends {
            let named = end.opener.find(path, Some(recorded)).map_err(cannot)?;
            if !making::is_a(named.as_fd(), FileType::Fifo) {
                return Err(missing(path));
            }
            found.insert(end.id, named);
        }
        self.open(context, |end, flags| found[&end.id].open(flags).map_err(cannot))
    }

    /// Opens the ends. A reader that never had a writer is opened before any writer. For the other ends, this process
    /// first opens helper ends for reading and writing, so that no later open blocks. Each helper end is opened with
    /// the rights of a holder, since a helper end can write.
    fn open(&self, context: &mut FdCreate<'_>, open: impl Fn(&End, OFlags) -> Result<OwnedFd>) -> Result<()> {
        let has_writer = self.ends.iter().any(|end| may_write(end.flags));
        let (quiet, rest): (Vec<&End>, Vec<&End>) =
            self.ends.iter().partition(|end| !has_writer && may_read(end.flags) && !end.hung_up);
        for end in quiet {
            context.created.insert(end.id, open(end, flags_for(end.flags))?);
        }
        if rest.is_empty() && self.state.chunks.is_empty() {
            return Ok(());
        }
        let both_ways = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let helpers = self.ends.iter().map(|end| open(end, both_ways)).collect::<Result<Vec<_>>>()?;
        for end in rest {
            let flags = flags_for(end.flags) - OFlags::DIRECT;
            context.created.insert(end.id, open(end, flags)?);
        }
        helpers.first().map_or(Ok(()), |helper| self.fill(helper))
    }

    fn fill(&self, helper: &OwnedFd) -> Result<()> {
        let wanted = self.state.capacity as usize;
        if pipe_queue::capacity(helper)? < wanted {
            pipe_queue::set_capacity(helper, wanted)?;
        }
        if pipe_queue::waiting(helper)? == 0 {
            pipe_queue::fill(helper.as_fd(), &self.state.chunks)?;
        }
        Ok(())
    }

    /// Creates a named pipe near the path of the removed pipe, and removes its name.
    fn make_again(&self, removed: &Path) -> Result<OwnedFd> {
        let state = &self.state;
        let ownership = Ownership { mode: state.mode, user: state.user, group: state.group };
        let make = |directory: BorrowedFd<'_>, name: &str| mkfifoat(directory, name, Mode::RUSR | Mode::WUSR);
        Ok(making::make_nameless(removed, ownership, make)?)
    }
}

fn missing(path: &Path) -> ResourceError {
    ResourceError::File {
        path: path.display().to_string(),
        why: "the program has this named pipe open, and it no longer exists".to_owned(),
        fix: format!("create it: mkfifo {}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use rustix::fs::CWD;
    use rustix::io::Errno as E;

    use super::*;
    use crate::support::testing::{Subject, Watched, describe, flags};

    fn make(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        path
    }

    fn open(path: &Path, flags: OFlags) -> OwnedFd {
        opening::open(path, flags | OFlags::CLOEXEC).unwrap()
    }

    fn read(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
        let mut bytes = vec![0; 1 << 20];
        let count = rustix::io::read(file, &mut bytes[..])?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Captures the ends, closes them as at the end of the subject, and restores them.
    fn recreate(files: Vec<OwnedFd>) -> Result<Vec<OwnedFd>> {
        let borrowed: Vec<&dyn AsFd> = files.iter().map(|file| file as _).collect();
        let mut subject = Subject::new(&borrowed);
        assert_eq!(subject.obstacles(&Fifo), Vec::new());
        let envelopes = subject.capture(&Fifo, || {})?;
        subject.descriptions.clear();
        drop(borrowed);
        drop(files);
        subject.build(&Fifo, &envelopes, &[])
    }

    #[test]
    fn ends_and_content_are_restored_under_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = make(&folder);
        let reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK);
        let writer = open(&path, OFlags::WRONLY);
        rustix::io::write(&writer, b"waiting").unwrap();
        let expected = [flags(&reader), flags(&writer)];
        let built = recreate(vec![reader, writer]).unwrap();
        assert_eq!([flags(&built[0]), flags(&built[1])], expected);
        let third = open(&path, OFlags::WRONLY | OFlags::NONBLOCK);
        rustix::io::write(&third, b" more").unwrap();
        assert_eq!(read(&built[0]).unwrap(), b"waiting more");
        drop(third);
        assert_eq!(read(&built[0]), Err(E::AGAIN));
        drop(built.into_iter().nth(1));
    }

    #[test]
    fn one_end_for_both_directions_keeps_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let both = open(&make(&folder), OFlags::RDWR);
        rustix::io::write(&both, b"to myself").unwrap();
        let built = recreate(vec![both]).unwrap();
        assert_eq!(read(&built[0]).unwrap(), b"to myself");
    }

    #[test]
    fn a_reader_without_writers_is_restored_with_or_without_a_hang_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = make(&folder);
        let hangs_up = |file: &OwnedFd| events(&describe(0, file)).contains(PollFlags::HUP);
        let built = recreate(vec![open(&path, OFlags::RDONLY | OFlags::NONBLOCK)]).unwrap();
        assert!(!hangs_up(&built[0]));
        drop(built);
        let reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK);
        let writer = open(&path, OFlags::WRONLY);
        rustix::io::write(&writer, b"left").unwrap();
        drop(writer);
        assert!(hangs_up(&reader));
        let built = recreate(vec![reader]).unwrap();
        assert!(hangs_up(&built[0]));
        assert_eq!(read(&built[0]).unwrap(), b"left");
        assert_eq!(read(&built[0]).unwrap(), b"");
    }

    #[test]
    fn content_that_an_outside_process_kept_is_not_written_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = make(&folder);
        let outside = open(&path, OFlags::RDWR);
        let reader = open(&path, OFlags::RDONLY);
        rustix::io::write(&outside, b"once").unwrap();
        let built = recreate(vec![reader]).unwrap();
        assert_eq!(read(&built[0]).unwrap(), b"once");
        assert_eq!(pipe_queue::waiting(&outside).unwrap(), 0);
    }

    #[test]
    fn a_removed_fifo_is_created_without_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = make(&folder);
        let reader = open(&path, OFlags::RDONLY | OFlags::NONBLOCK);
        let writer = open(&path, OFlags::WRONLY);
        rustix::io::write(&writer, b"x").unwrap();
        fs::remove_file(&path).unwrap();
        let built = recreate(vec![reader, writer]).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        rustix::io::write(&built[1], b"y").unwrap();
        assert_eq!(read(&built[0]).unwrap(), b"xy");
    }

    #[test]
    fn another_user_never_sees_a_fifo_while_it_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let path = make(&folder);
        let both = open(&path, OFlags::RDWR);
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o642)).unwrap();
        fs::remove_file(&path).unwrap();
        let watched = Watched::new(folder.path());
        let built = recreate(vec![both]).unwrap();
        assert_eq!(watched.events(), []);
        assert_eq!(rustix::fs::fstat(&built[0]).unwrap().st_mode & 0o7777, 0o642);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_missing_fifo_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = make(&folder);
        let both = open(&path, OFlags::RDWR);
        let subject = Subject::new(&[&both]);
        let envelopes = subject.capture(&Fifo, || {}).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file now").unwrap();
        let error = subject.build(&Fifo, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains("mkfifo") && error.contains("help:"), "{error}");
    }
}
