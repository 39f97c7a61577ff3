//! The interface between the crate `engine` and a descriptor kind (the code for one type of open file description).
//!
//! Owns: the traits that descriptor kinds implement, and the contexts that their methods receive.
//! Invariants: inside the pause (while the subject is stopped), a kind only copies changed state into allocated
//! memory.
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

/// The saved state of one description, as its kind receives it in a restore.
#[derive(Debug)]
pub struct FdRecord {
    /// The id of the description in the image.
    pub id: DescriptionId,
    /// A process and an fd that held the description, for error messages.
    pub holder: (Pid, Fd),
    /// The version of the payload format.
    pub version: u32,
    /// The payload: the bytes that the kind saved.
    pub payload: Vec<u8>,
    /// Status flags at the checkpoint (O_ACCMODE, O_NONBLOCK, O_APPEND …).
    pub flags: u32,
    /// File position at the checkpoint, in bytes.
    pub position: u64,
    /// The opener, which opens files with the rights of the processes that hold the description.
    pub opener: Opener,
}

/// The outcome of a restore for the outside connections (to processes outside the subject) of a subject that died.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    /// Number of connections without traffic since the checkpoint. The restored program continues to use them.
    pub kept: usize,
    /// Number of connections with traffic since the checkpoint that were rewound to the checkpoint. The peer does not
    /// detect a rewind.
    pub rewound: usize,
    /// Number of connections that have ended.
    pub ended: usize,
    /// Duplicates of the sockets of the kept and rewound connections.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// Outside connections that were kept open while a subject was dead.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The sockets of these connections.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// The hold on packets that the program has sent since the checkpoint. The peers have not received these packets,
    /// so connections with traffic since the checkpoint can be rewound.
    pub rewinds: Option<Arc<PacketHold>>,
    /// Connections whose sockets have already been vacated, also in a failed attempt. Clones share this state.
    pub vacated: Vacated,
}

/// Context of [`FdKind::create`].
#[derive(Debug)]
pub struct FdCreate<'a> {
    /// Descriptions that already exist: descriptions of kinds that precede this kind in the registry, and inherited
    /// descriptions.
    pub created: &'a mut HashMap<DescriptionId, OwnedFd>,
    /// Descriptions that this process has inherited and may pass on: device, inode and descriptor.
    pub inherited: &'a [(u64, Inode, OwnedFd)],
    /// Listening sockets that were held open while the subject was dead.
    pub held: &'a mut Vec<OwnedFd>,
    /// The inherited descriptions in `created`. Other processes may write through these descriptions too.
    pub handed_on: &'a mut HashSet<DescriptionId>,
    /// Files that the undo log has reverted to the checkpoint. A reverted file also gets its saved position if its
    /// description is inherited.
    pub covered: &'a Covered,
    /// Memory objects (memfd, shared memory) that the memory kinds have built, by object number.
    pub objects: &'a HashMap<u64, OwnedFd>,
    /// Set when the subject died in a crash. Its TCP connections then become sockets that report an error, except
    /// kept connections.
    pub connections_lost: bool,
    /// Outside connections that were kept open while the subject was dead.
    pub kept: &'a Kept,
    /// The outcome for the outside connections. The kinds fill in this field.
    pub connections: &'a mut Connections,
    /// Objects that several kinds share.
    pub shared: &'a mut Shared,
}

/// Context of [`FdKind::connect`]: one process under construction whose descriptors have their fds.
#[derive(Debug)]
pub struct FdConnect<'a> {
    /// The thread group leader of the process, stopped under ptrace.
    pub stub: &'a mut Stub,
    /// The memory of the process.
    pub memory: &'a ProcessMemory,
    /// The descriptors of the process: fd and description.
    pub table: &'a [(Fd, DescriptionId)],
}

/// The capture of one description: its raw state, copied inside the pause.
pub trait FdCapture: std::fmt::Debug {
    /// Receives the fdinfo text of the description. Called inside the pause, before `inside`, if the caller has
    /// already read the text. Only kinds that read fdinfo themselves need this method.
    fn fdinfo_read(&mut self, text: &[u8]) {
        let _ = text;
    }
    /// Copies changed state into memory that is already allocated. Called inside the pause.
    fn inside(&mut self, description: &Description) -> Result<()>;
    /// Resolves references to other descriptions of the subject (members of an epoll set, socket peers). Called
    /// inside the pause, after `inside` of every description.
    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        let _ = (description, scope);
        Ok(())
    }
    /// Returns the payload of the record. Called after the pause.
    fn after(&mut self, description: &Known) -> Result<Vec<u8>>;
    /// Reverts the changes that `inside` made to the subject's own description. Called when a checkpoint failed and
    /// the subject continues although `scope.kills` was set. Not called once the subject is dead.
    fn release(&mut self, description: &Description) {
        let _ = description;
    }
}

/// A descriptor kind: saves and restores one type of open file description.
pub trait FdKind: Sync {
    /// Returns the name of the records: `fd/` and the name of the source file of the kind.
    fn name(&self) -> &'static str;

    /// Returns the version of the payload format that this kind writes. The kind reads this and all earlier versions.
    fn version(&self) -> u32 {
        1
    }

    /// Returns one line for the tables in the documents and in `doctor`: what the kind restores.
    fn summary(&self) -> &'static str;

    /// Reports whether this kind handles a description.
    fn claims(&self, description: &Description) -> bool;

    /// Returns the properties of this description that would prevent a checkpoint. Called before the pause.
    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let _ = (description, scope);
        Vec::new()
    }

    /// Returns descriptions that are reachable only through this description, such as descriptors in flight in a Unix
    /// socket. The caller (`in_flight::discover`) calls this method for every description, also for the returned
    /// descriptions, and saves all of these descriptions. With `takes`, the subject is stopped and will be killed.
    /// Connections that wait in an accept queue cannot be inspected. Only with `takes`, these connections are
    /// accepted and returned.
    fn hidden(&self, description: &Description, takes: bool) -> Result<Vec<OwnedFd>> {
        let _ = (description, takes);
        Ok(Vec::new())
    }

    /// Reports whether this description is complete only after `connect`. Before `connect`, no other object can refer
    /// to the description.
    fn completes_in_connect(&self, description: &Description) -> bool {
        let _ = description;
        false
    }

    /// Creates the capture. Called before the pause; the caller keeps the capture for later checkpoints while the
    /// description exists.
    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>>;

    /// Decodes a payload and refuses an invalid payload. Called in a restore before anything is opened or created.
    /// Changes nothing.
    fn check(&self, version: u32, payload: &[u8]) -> Result<()>;

    /// Returns a label of the object for users: a path, addresses, a name. Returns `None` if the name of the kind is
    /// enough. `payload` is a payload that `check` has accepted.
    fn label(&self, payload: &[u8]) -> Option<String> {
        let _ = payload;
        None
    }

    /// Builds the descriptions of all records of this kind and adds them to `context.created`. First step of a
    /// restore. The caller sets status flags and positions afterwards.
    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()>;

    /// Restores state that depends on fds. Second step of a restore, called once per process that holds descriptions
    /// of this kind.
    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        let _ = (records, context);
        Ok(())
    }

    /// Sets state that child processes inherit (the controlling terminal). Called in a restore once per session
    /// leader, when the leader has created its session and has no children. The leader holds all descriptions of
    /// `created` under the fds of this process.
    fn lead(
        &self,
        records: &[FdRecord],
        created: &HashMap<DescriptionId, OwnedFd>,
        leader: &mut Stub,
    ) -> Result<()> {
        let _ = (records, created, leader);
        Ok(())
    }

    /// Makes the effects of the restore visible outside (a TCP connection leaves repair mode). Last step of a
    /// restore, called once per kind when every process is complete and no process has run. `created` still contains
    /// the results of `create`.
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
