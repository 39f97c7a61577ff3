//! Open file descriptions: the interface of a descriptor kind, and the registry.
//!
//! Owns: what a kind is asked, in which order.
//! Invariants: every open file description is saved once, however many descriptors refer to it; what every
//! kind has (status flags, position, owner) is saved by the envelope and not by the kind.
//! Does not: install descriptors into processes; the engine does.
//!
//! A restore goes in two steps. `create` runs in the restoring process, once for each kind with all its records
//! (so that the two ends of a pipe are made together), before any process of the subject exists: every
//! process under construction then inherits all descriptions. `connect` runs when every descriptor has its number
//! in its process, for what depends on numbers (epoll registrations, record locks).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

pub mod deleted;
pub mod device;
pub mod directory;
pub mod duplicate;
pub mod envelope;
pub mod epoll;
pub mod eventfd;
pub mod fdinfo;
pub mod fifo;
#[cfg(test)]
mod file_flags;
pub mod in_flight;
pub(crate) mod inet_address;
pub(crate) mod inherited_socket;
pub mod inotify;
pub mod locks;
pub mod memfd;
pub(crate) mod multicast;
pub mod netlink;
pub(crate) mod peek_queue;
pub mod pidfd;
pub mod pipe;
pub mod proc_file;
pub(crate) mod raw_packet;
pub mod regular;
pub mod scope_index;
pub mod signalfd;
pub(crate) mod socket_events;
mod socket_option_table;
pub(crate) mod socket_options;
pub mod sockets;
pub mod symlink;
pub mod tcp;
#[cfg(test)]
pub(crate) mod test_support;
pub mod timerfd;
pub(crate) mod tmpfs_content;
pub mod tty;
pub mod udp;
pub mod unclaimed;
pub mod unix;
mod waiting;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{DescriptionId, Fd, Inode, Pid};
use rustix::fs::Stat;
use tracee::procfs::{Area, Backing, DescriptorInfo};
use tracee::{ProcessMemory, Stub};

use self::scope_index::ScopeIndex;
use self::sockets::Sockets;
use crate::error::Result;
use crate::files::Covered;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::shared::Shared;

/// Every descriptor kind, asked in this order whether it claims a description.
pub const REGISTRY: &[&dyn FdKind] = &[
    // Before files and directories that have a name of their own.
    &proc_file::ProcFile,
    &directory::Directory,
    &device::Device,
    &pipe::Pipe,
    &fifo::Fifo,
    &tty::Tty,
    &symlink::Symlink,
    &regular::Regular,
    &deleted::Deleted,
    &memfd::Memfd,
    &eventfd::Eventfd,
    &signalfd::Signalfd,
    &timerfd::Timerfd,
    &inotify::Inotify,
    &pidfd::Pidfd,
    &epoll::Epoll,
    &tcp::Tcp,
    &udp::Udp,
    &netlink::Netlink,
    &unix::Unix,
];

/// One open file description of the subject, as far as it is known without a duplicate of it.
#[derive(Debug)]
pub struct Known {
    /// Its number in the image.
    pub id: DescriptionId,
    /// The process in which it was found first.
    pub pid: Pid,
    /// The descriptor under which it was found there.
    pub fd: Fd,
    /// What `/proc` says of that descriptor.
    pub info: DescriptorInfo,
    /// fstat of the description.
    pub stat: Stat,
    kind: KnownKind,
}

/// One open file description of the subject, with a duplicate of it in this process. As long as one is open, a last
/// close inside the subject is none: it has to be short where the subject runs.
#[derive(Debug)]
pub struct Description {
    known: Arc<Known>,
    /// The duplicate: shares position and status flags with the subject's. While the subject runs it stands only for
    /// the file where that is enough, see `duplicate`.
    pub duplicate: OwnedFd,
}

impl Known {
    /// What `/proc` and fstat(2) told.
    #[must_use]
    pub fn new(id: DescriptionId, holder: (Pid, Fd), info: DescriptorInfo, stat: Stat) -> Self {
        Self { id, pid: holder.0, fd: holder.1, info, stat, kind: KnownKind::default() }
    }

    /// Device and inode: which file it is, but for anonymous ones, which share theirs.
    #[must_use]
    pub fn file(&self) -> (u64, Inode) {
        (self.stat.st_dev, self.inode())
    }

    /// The kind that claims it, where that has been found out ([`kind_of`]).
    #[must_use]
    pub fn kind(&self) -> Option<&'static dyn FdKind> {
        self.kind.0.get().copied().flatten()
    }
    /// The link in `/proc/PID/fd` as text.
    #[must_use]
    pub fn target(&self) -> &str {
        self.info.target.to_str().unwrap_or("")
    }

    /// The inode behind the description.
    #[must_use]
    pub fn inode(&self) -> Inode {
        Inode(self.stat.st_ino)
    }

    /// How an obstacle names this description: `fd 7 (what)`.
    #[must_use]
    pub fn named(&self, what: &str) -> String {
        format!("fd {} ({what})", self.fd)
    }

    /// An obstacle about this description.
    #[must_use]
    pub fn obstacle(&self, what: &str, why: &str, fix: &str) -> Obstacle {
        Obstacle {
            pid: self.pid,
            what: self.named(what),
            place: self.target().to_owned(),
            why: why.to_owned(),
            fix: fix.to_owned(),
        }
    }
}

impl Description {
    /// With a duplicate.
    #[must_use]
    pub fn new(known: Arc<Known>, duplicate: OwnedFd) -> Self {
        Self { known, duplicate }
    }

    /// What is known without the duplicate.
    #[must_use]
    pub fn known(&self) -> &Arc<Known> {
        &self.known
    }
}

impl Deref for Description {
    type Target = Known;

    fn deref(&self) -> &Known {
        &self.known
    }
}

impl AsFd for Description {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.duplicate.as_fd()
    }
}

/// What a kind may know of the rest of the subject while it captures.
#[derive(Debug)]
pub struct CaptureScope<'a> {
    /// Processes of the subject.
    pub pids: &'a [Pid],
    /// All descriptions of the subject, by number.
    pub descriptions: &'a [Arc<Known>],
    /// Duplicates of all of them, in the same order, while the subject stands; of none while it runs.
    pub open: &'a [Description],
    /// Files that whoever restores will hold itself (its own standard streams): device and inode.
    pub inherited: &'a [(u64, Inode)],
    /// Every descriptor of every process, with the description behind it; the rows of a process stand together, by
    /// rising number.
    pub table: &'a [(Pid, Fd, DescriptionId)],
    /// The checkpoint ends the subject, so that its TCP connections may be taken over.
    pub kills: bool,
    /// Connections to outside the tree come back as ended by the peer.
    pub loses_connections: bool,
    /// What its sockets share.
    pub sockets: &'a Sockets,
    /// The areas of every process: as they are in the pause, before it as far as they are known.
    pub areas: Vec<(Pid, Cow<'a, [Area]>)>,
    /// Answers questions about all descriptions without a search.
    pub index: ScopeIndex,
}

impl CaptureScope<'_> {
    /// Whether the restorer will hold this very file itself.
    #[must_use]
    pub fn is_inherited(&self, stat: &Stat) -> bool {
        self.inherited.contains(&(stat.st_dev, Inode(stat.st_ino)))
    }

    /// Whether memory of the subject shows the file of a description, so that the memory kinds save its content. Inode
    /// numbers repeat between file systems, so the name must be the same too, there or gone.
    #[must_use]
    pub fn maps(&self, description: &Known) -> bool {
        let name = path_of(description);
        let is_shown = |area: &Area| match &area.backing {
            Backing::File { inode, path, .. } if *inode == description.inode() => {
                path == &description.info.target
                    || path.to_str().is_some_and(|path| Path::new(path.trim_end_matches(GONE)) == name)
            }
            _ => false,
        };
        self.areas.iter().any(|(_, areas)| areas.iter().any(is_shown))
    }

    /// Whether memory of the subject can write to the file of a description through a shared mapping, so that the
    /// memory kinds save the content of a file that has a name. Flags of mappings that are new in the pause are unknown.
    #[must_use]
    pub(crate) fn saves_shared(&self, description: &Known) -> bool {
        let name = path_of(description);
        let saves = |area: &Area| match &area.backing {
            Backing::File { inode, path, .. } if *inode == description.inode() && *path == name => {
                area.protection.shared && (area.flags.has("mw") || area.flags.is_empty())
            }
            _ => false,
        };
        self.areas.iter().any(|(_, areas)| areas.iter().any(saves))
    }

    /// Asks a duplicate: the one of the pause, else one for this question. `None` when there is no such description any
    /// more.
    pub(crate) fn ask<T>(&self, known: &Arc<Known>, ask: impl FnOnce(&Description) -> T) -> Option<T> {
        if let Some(open) = self.open.get(known.id.get() as usize) {
            return Some(ask(open));
        }
        let handle = sys::pidfd::open(known.pid).ok()?;
        Description::beside(known, handle.as_fd()).ok()?.map(|description| ask(&description))
    }

    /// A descriptor of a description, of ours where there is a duplicate. One of the subject may be another's by now
    /// while it runs.
    pub(crate) fn place_of(&self, known: &Known) -> (Pid, Fd) {
        let open = self.open.get(known.id.get() as usize);
        let own = open.map(|open| (Pid(std::process::id() as i32), Fd(open.duplicate.as_raw_fd())));
        own.unwrap_or((known.pid, known.fd))
    }
}

/// The saved state of one description, as its kind wrote it.
#[derive(Debug)]
pub struct FdRecord {
    /// Its number in the image.
    pub id: DescriptionId,
    /// A process and number that held it, for messages.
    pub holder: (Pid, Fd),
    /// The version of the payload.
    pub version: u32,
    /// What the kind saved.
    pub payload: Vec<u8>,
    /// Status flags at the checkpoint (O_ACCMODE, O_NONBLOCK, O_APPEND …).
    pub flags: u32,
    /// File position at the checkpoint.
    pub position: u64,
    /// Opens files for the processes that hold the description.
    pub opener: Opener,
}

/// What `create` works with.
#[derive(Debug)]
pub struct FdCreate<'a> {
    /// Descriptions that exist already: those of kinds that come earlier in the registry, and inherited ones.
    pub created: &'a mut HashMap<DescriptionId, OwnedFd>,
    /// Descriptors that this process was started with and may hand on, by device and inode.
    pub inherited: &'a [(u64, Inode, OwnedFd)],
    /// Descriptions of `created` that are inherited ones, and that others may write through as well.
    pub handed_on: &'a mut HashSet<DescriptionId>,
    /// Files that are those of the checkpoint: their inherited descriptions go back to their position, too.
    pub covered: &'a Covered,
    /// Memory objects (memfd, shared memory) that the memory kinds have built, by object number.
    pub objects: &'a HashMap<u64, OwnedFd>,
    /// The subject died in a crash: its TCP connections are lost and come back as sockets that report it.
    pub connections_lost: bool,
    /// What this kind may build together with others.
    pub shared: &'a mut Shared,
}

/// What `connect` works with: one process under construction whose descriptors have their numbers.
#[derive(Debug)]
pub struct FdConnect<'a> {
    /// The process's leader.
    pub stub: &'a mut Stub,
    /// Its memory.
    pub memory: &'a ProcessMemory,
    /// Its descriptors.
    pub table: &'a [(Fd, DescriptionId)],
}

/// Raw state of one description, taken inside the pause.
pub trait FdCapture: std::fmt::Debug {
    /// Inside the pause, before `inside`: what fdinfo says of the description, where the caller has read it. For kinds
    /// that would else read it themselves.
    fn told(&mut self, text: &[u8]) {
        let _ = text;
    }
    /// Inside the pause: copies what may have changed into memory that is already there.
    fn inside(&mut self, description: &Description) -> Result<()>;
    /// Inside the pause, after `inside` of every description: what depends on which descriptors the subject
    /// has now (whom an epoll set watches, whom a socket is connected to).
    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        let _ = (description, scope);
        Ok(())
    }
    /// After the pause: the payload of the record.
    fn after(&mut self, description: &Known) -> Result<Vec<u8>>;
    /// The subject goes on although `scope.kills` was promised, because the checkpoint failed: takes back what
    /// `inside` did to the subject's own description. Never called once the subject is dead.
    fn release(&mut self, description: &Description) {
        let _ = description;
    }
}

/// A kind of open file description.
pub trait FdKind: Sync {
    /// The name of its records: `fd/` and the name of the file that implements it.
    fn name(&self) -> &'static str;

    /// The version of the payload it writes; it reads this and all earlier ones.
    fn version(&self) -> u32 {
        1
    }

    /// One line for the tables in docs and `doctor`: what comes back.
    fn summary(&self) -> &'static str;

    /// Whether a description is of this kind.
    fn claims(&self, description: &Description) -> bool;

    /// Before the pause: everything about this description that would stop a checkpoint.
    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let _ = (description, scope);
        Vec::new()
    }

    /// Descriptions that are reached only through this one, such as descriptors in flight in a Unix socket. The
    /// caller asks every description, adds those that no descriptor of the subject has, asks these in turn, and
    /// saves all of them like the others: see `in_flight::discover`. With `takes` the subject stands still
    /// and is going to end, and what can only be taken and not be looked at (connections that wait to be accepted)
    /// is taken.
    fn hidden(&self, description: &Description, takes: bool) -> Result<Vec<OwnedFd>> {
        let _ = (description, takes);
        Ok(Vec::new())
    }

    /// Whether this description gets its final form only in `connect`, so that nothing can be linked to it before.
    fn completes_in_connect(&self, description: &Description) -> bool {
        let _ = description;
        false
    }

    /// Before the pause: what later steps need; kept between checkpoints while the description lives.
    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>>;

    /// Restore, before anything is opened or made: decodes a payload, and refuses what no restore can use. Changes
    /// nothing.
    fn check(&self, version: u32, payload: &[u8]) -> Result<()>;

    /// Restore, first step: builds the descriptions of all records of this kind and adds them to
    /// `context.created`. Status flags and position are set by the caller afterwards.
    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()>;

    /// Restore, second step, once for each process that holds descriptions of this kind.
    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        let _ = (records, context);
        Ok(())
    }

    /// Restore, while the tree is made, once for each session leader: it has left its parent's session and has no
    /// children yet. What they inherit from it (the controlling terminal). The stub has all of `created` under our
    /// own numbers.
    fn lead(
        &self,
        records: &[FdRecord],
        created: &HashMap<DescriptionId, OwnedFd>,
        leader: &mut Stub,
    ) -> Result<()> {
        let _ = (records, created, leader);
        Ok(())
    }

    /// Restore, last step, once for each kind: every process is complete and none has run. What is seen from
    /// outside from here on (a TCP connection leaves repair mode). `created` still holds what `create` built.
    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        let _ = (records, created);
        Ok(())
    }
}

/// The answer of [`kind_of`]: a description stays of one kind, and asking all of them takes system calls.
#[derive(Default)]
pub struct KnownKind(OnceLock<Option<&'static dyn FdKind>>);

impl std::fmt::Debug for KnownKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KnownKind").field(&self.0.get().map(|kind| kind.map(FdKind::name))).finish()
    }
}

/// The kind that claims a description.
#[must_use]
pub fn kind_of(description: &Description) -> Option<&'static dyn FdKind> {
    *description.known.kind.0.get_or_init(|| REGISTRY.iter().copied().find(|kind| kind.claims(description)))
}

/// The kind of a record.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static dyn FdKind> {
    REGISTRY.iter().copied().find(|kind| kind.name() == name)
}

/// A capture whose payload is known before the pause and cannot change inside it.
#[derive(Debug)]
pub struct Constant(pub Vec<u8>);

impl FdCapture for Constant {
    fn inside(&mut self, _description: &Description) -> Result<()> {
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(self.0.clone())
    }
}

/// The kernel's mark of a name that is gone.
const GONE: &str = " (deleted)";

/// The path a description was opened under, without the mark of a deleted file.
#[must_use]
pub fn path_of(description: &Known) -> PathBuf {
    PathBuf::from(description.target().trim_end_matches(GONE))
}
