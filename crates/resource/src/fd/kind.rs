//! The interface of a descriptor kind.
//!
//! Owns: what a kind is asked, and what it works with.
//! Invariants: inside the pause a kind copies what may have changed into memory that is already there.
//! Does not: know any kind.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use sys::packet_hold::PacketHold;
use tracee::{ProcessMemory, Stub};

use super::description::{Description, Known};
use super::scope::CaptureScope;
use super::vacated::Vacated;
use crate::error::Result;
use crate::files::covered::Covered;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::shared::Shared;

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

/// What has become of the connections to the outside of a subject that died.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    /// Nothing had passed through them since the checkpoint, and they were kept.
    pub kept: usize,
    /// They were in use, and went back to the checkpoint without their peers noticing.
    pub rewound: usize,
    /// They have ended.
    pub ended: usize,
    /// Duplicates of those that have not.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// Connections to the outside that were kept while a subject was dead.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Their sockets.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// No peer has got what the program has sent since the checkpoint, since it is held there: those that it has used go
    /// back to the checkpoint.
    pub rewinds: Option<Arc<PacketHold>>,
    /// Those whose sockets have given way already, also in an attempt that failed: clones are one and the same.
    pub vacated: Vacated,
}

/// What `create` works with.
#[derive(Debug)]
pub struct FdCreate<'a> {
    /// Descriptions that exist already: those of kinds that come earlier in the registry, and inherited ones.
    pub created: &'a mut HashMap<DescriptionId, OwnedFd>,
    /// Descriptors that this process was started with and may hand on, by device and inode.
    pub inherited: &'a [(u64, Inode, OwnedFd)],
    /// Listeners that were kept while the subject was dead.
    pub held: &'a mut Vec<OwnedFd>,
    /// Descriptions of `created` that are inherited ones, and that others may write through as well.
    pub handed_on: &'a mut HashSet<DescriptionId>,
    /// Files that are those of the checkpoint: their inherited descriptions go back to their position, too.
    pub covered: &'a Covered,
    /// Memory objects (memfd, shared memory) that the memory kinds have built, by object number.
    pub objects: &'a HashMap<u64, OwnedFd>,
    /// The subject died in a crash: its TCP connections are lost and come back as sockets that report it, but for those
    /// that were kept.
    pub connections_lost: bool,
    /// Connections that were kept while the subject was dead.
    pub kept: &'a Kept,
    /// What becomes of its connections to the outside.
    pub connections: &'a mut Connections,
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
    /// saves all of them like the others: see `in_flight::discover`. With `takes` the subject is stopped
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

    /// What the description is of, for people: a path, addresses, a name. `None` where the kind itself says it all. The
    /// payload is one that `check` has accepted.
    fn label(&self, payload: &[u8]) -> Option<String> {
        let _ = payload;
        None
    }

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
