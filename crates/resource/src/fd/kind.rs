//! The interface of a descriptor kind.
//!
//! Owns: the traits that descriptor kinds implement, and the contexts that they receive.
//! Invariants: inside the pause a kind copies changed state into memory that is already allocated.
//! Does not: name any kind.

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
    /// Its id in the image.
    pub id: DescriptionId,
    /// A process and fd that held it, for error messages.
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

/// The outcome of a restore for the outside connections of a subject that died.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    /// Connections without traffic since the checkpoint, which were kept.
    pub kept: usize,
    /// Connections that were in use, and were rewound to the checkpoint without notice of the peer.
    pub rewound: usize,
    /// Connections that have ended.
    pub ended: usize,
    /// Duplicates of the sockets that have not ended.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// Outside connections that were kept while a subject was dead.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Their sockets.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// The hold on packets that the program has sent since the checkpoint. No peer has received them, so connections
    /// that the program has used are rewound to the checkpoint.
    pub rewinds: Option<Arc<PacketHold>>,
    /// Sockets that have already been vacated, also in a failed attempt; clones share this state.
    pub vacated: Vacated,
}

/// Context of `create`.
#[derive(Debug)]
pub struct FdCreate<'a> {
    /// Descriptions that exist already: those of earlier kinds in the registry, and inherited ones.
    pub created: &'a mut HashMap<DescriptionId, OwnedFd>,
    /// Descriptions that this process has inherited and may pass on, by device and inode.
    pub inherited: &'a [(u64, Inode, OwnedFd)],
    /// Listeners that were held open while the subject was dead.
    pub held: &'a mut Vec<OwnedFd>,
    /// Descriptions of `created` that are inherited; other processes may write through them too.
    pub handed_on: &'a mut HashSet<DescriptionId>,
    /// Files that are as at the checkpoint, so that the position of their inherited descriptions is restored too.
    pub covered: &'a Covered,
    /// Memory objects (memfd, shared memory) that the memory kinds have built, by object number.
    pub objects: &'a HashMap<u64, OwnedFd>,
    /// The subject died in a crash. Its TCP connections are lost and become sockets that report an error, except kept
    /// ones.
    pub connections_lost: bool,
    /// Outside connections that were kept while the subject was dead.
    pub kept: &'a Kept,
    /// The outcome for its outside connections.
    pub connections: &'a mut Connections,
    /// Objects that this kind shares with other kinds.
    pub shared: &'a mut Shared,
}

/// Context of `connect`: one process under construction whose descriptors have their fds.
#[derive(Debug)]
pub struct FdConnect<'a> {
    /// The process's leader.
    pub stub: &'a mut Stub,
    /// The memory of the process.
    pub memory: &'a ProcessMemory,
    /// The descriptors of the process.
    pub table: &'a [(Fd, DescriptionId)],
}

/// Raw state of one description, copied inside the pause.
pub trait FdCapture: std::fmt::Debug {
    /// Inside the pause, before `inside`: receives the fdinfo of the description if the caller has already read it.
    /// Only for kinds that would read it themselves.
    fn fdinfo_read(&mut self, text: &[u8]) {
        let _ = text;
    }
    /// Inside the pause: copies changed state into memory that is already allocated.
    fn inside(&mut self, description: &Description) -> Result<()>;
    /// Inside the pause, after `inside` of every description: resolves references to other descriptions of the
    /// subject (members of an epoll set, socket peers).
    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        let _ = (description, scope);
        Ok(())
    }
    /// After the pause: the payload of the record.
    fn after(&mut self, description: &Known) -> Result<Vec<u8>>;
    /// Reverts changes of `inside` to the subject's own description. Called when the checkpoint failed and the
    /// subject continues although `scope.kills` was set; never called once the subject is dead.
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

    /// One line for the tables in docs and `doctor`: what is restored.
    fn summary(&self) -> &'static str;

    /// Whether a description is of this kind.
    fn claims(&self, description: &Description) -> bool;

    /// Before the pause: the properties of this description that would prevent a checkpoint.
    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let _ = (description, scope);
        Vec::new()
    }

    /// Descriptions that are reachable only through this one, such as descriptors in flight in a Unix socket. The
    /// caller calls this for every description and for each result that the subject has no descriptor of, and saves
    /// all of them: see `in_flight::discover`. With `takes`, the subject is stopped and will be killed. Then
    /// descriptions that can only be consumed and not inspected (connections waiting to be accepted) are consumed.
    fn hidden(&self, description: &Description, takes: bool) -> Result<Vec<OwnedFd>> {
        let _ = (description, takes);
        Ok(Vec::new())
    }

    /// Whether this description is complete only after `connect`, so that it cannot be referenced before.
    fn completes_in_connect(&self, description: &Description) -> bool {
        let _ = description;
        false
    }

    /// Before the pause: creates the capture, which is kept between checkpoints while the description exists.
    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>>;

    /// Restore, before anything is opened or created: decodes a payload and refuses invalid ones. Changes nothing.
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

    /// Restore, second step, once per process that holds descriptions of this kind.
    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        let _ = (records, context);
        Ok(())
    }

    /// Restore, once per session leader, when it leads its session and has no children: sets state that the children
    /// inherit (the controlling terminal). The stub has all of `created` under the fds of this process.
    fn lead(
        &self,
        records: &[FdRecord],
        created: &HashMap<DescriptionId, OwnedFd>,
        leader: &mut Stub,
    ) -> Result<()> {
        let _ = (records, created, leader);
        Ok(())
    }

    /// Restore, last step, once per kind, when every process is complete and none has run. Makes the effects visible
    /// outside (a TCP connection leaves repair mode). `created` still contains the results of `create`.
    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        let _ = (records, created);
        Ok(())
    }
}

/// A capture whose payload is known before the pause and cannot change.
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
