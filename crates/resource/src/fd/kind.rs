//! The interface between the crate `engine` and a descriptor kind.
//!
//! A checkpoint saves the state of each description as the *payload* of a record. The kind copies the state inside the
//! pause, while the threads of the subject are stopped. The kind encodes the payload after the pause. An *outside*
//! connection leads to a process that does not belong to the subject.
//!
//! Owns: the traits that descriptor kinds implement, and the contexts that the methods of these traits receive.
//! Invariants: inside the pause, a kind copies only changed state, and only into memory that is already allocated.
//! Does not: name any kind.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use sys::packet_hold::{PacketHold, SocketMark};
use tracee::{ProcessMemory, Stub};

use super::description::{Description, Known};
use super::pieces::Part;
use super::scope::CaptureScope;
use super::vacated::Vacated;
use crate::error::Result;
use crate::files::covered::Covered;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::shared::Shared;

/// The saved state of one description. In a restore, the kind of the description receives this value.
#[derive(Debug)]
pub struct FdRecord {
    /// The id of the description in the image.
    pub id: DescriptionId,
    /// A process that had the description open at the checkpoint, and its fd. Used in error messages.
    pub holder: (Pid, Fd),
    /// The version of the payload format.
    pub version: u32,
    /// The payload: the bytes that the kind saved.
    pub payload: Vec<u8>,
    /// Status flags at the checkpoint (O_ACCMODE, O_NONBLOCK, O_APPEND …).
    pub flags: u32,
    /// File position at the checkpoint, in bytes.
    pub position: u64,
    /// Opens files with the rights of the processes that had the description open.
    pub opener: Opener,
}

/// What a restore has done with the outside connections of a subject that died.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    /// Number of connections without traffic since the checkpoint. The restored program continues to use these
    /// connections.
    pub kept: usize,
    /// Number of connections that were rewound: their sockets were rebuilt in the state of the checkpoint. They had
    /// traffic since the checkpoint. The peer does not detect a rewind.
    pub rewound: usize,
    /// Number of connections that could neither be kept nor be rewound. They have ended.
    pub ended: usize,
    /// Duplicates of the sockets of the kept connections and of the rewound connections.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// Outside connections that were kept open while a subject was dead.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The sockets of these connections.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// The packet filter that holds back packets that the program has sent since the checkpoint. The peers have not
    /// received these packets. A connection with traffic since the checkpoint can therefore be rewound. With `None`,
    /// no connection is rewound.
    pub rewinds: Option<Arc<PacketHold>>,
    /// The mark of sockets whose output is held; `None` if no output is held.
    pub mark: Option<SocketMark>,
    /// Connections whose old sockets were already disconnected, in this attempt or in an attempt that failed. Clones
    /// share this state.
    pub vacated: Vacated,
}

/// A file that the restoring process has inherited: device, inode and descriptor.
pub type InheritedFile = (u64, Inode, OwnedFd);

/// Context of [`FdKind::create`].
#[derive(Debug)]
pub struct FdCreate<'a> {
    /// Descriptions that already exist: inherited descriptions, and descriptions of kinds that precede this kind in
    /// the registry.
    pub created: &'a mut HashMap<DescriptionId, OwnedFd>,
    /// Descriptions that this process has inherited and may pass to the subject.
    pub inherited: &'a [InheritedFile],
    /// Listening sockets that were held open while the subject was dead.
    pub held: &'a mut Vec<OwnedFd>,
    /// Inherited descriptions in `created` whose saved position is not restored. Processes outside the subject may
    /// write through these descriptions.
    pub handed_on: &'a mut HashSet<DescriptionId>,
    /// Files that the undo log has reverted to the checkpoint. The saved position of such a file is restored, even if
    /// its description is inherited.
    pub covered: &'a Covered,
    /// Memory objects (memfd, shared memory) that the memory kinds have built, by object number.
    pub objects: &'a HashMap<u64, OwnedFd>,
    /// Set when the subject died in a crash. TCP connections that were not kept are restored as sockets that report
    /// an error.
    pub connections_lost: bool,
    /// Outside connections that were kept open while the subject was dead.
    pub kept: &'a Kept,
    /// What the restore does with the outside connections. The kinds fill in this field.
    pub connections: &'a mut Connections,
    /// Objects that several kinds share.
    pub shared: &'a mut Shared,
}

impl FdCreate<'_> {
    /// Decodes the payloads of all records of a kind, and adds the descriptions that `make` returns.
    pub(super) fn make_each<Payload: prost::Message + Default>(
        &mut self,
        kind: &'static str,
        records: &[FdRecord],
        mut make: impl FnMut(Payload, &FdRecord, &mut Self) -> Result<OwnedFd>,
    ) -> Result<()> {
        for record in records {
            let payload = crate::error::decode(kind, &record.payload)?;
            let made = make(payload, record, self)?;
            self.created.insert(record.id, made);
        }
        Ok(())
    }
}

/// Context of [`FdKind::connect`]: one process under construction. Its descriptors already have the saved fds.
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
    /// Receives the fdinfo text of the description. The caller calls this method inside the pause, before `inside`,
    /// if the caller has the text. Without this call, `inside` reads the text itself.
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
    /// Returns the parts of the payload that follow the bytes of `after`. Called after `after`.
    fn parts(&mut self) -> Vec<Part> {
        Vec::new()
    }
    /// Reverts the changes that `inside` made to the subject's own description. Called when a checkpoint that should
    /// kill the subject (`scope.kills`) has failed, and the subject continues. Not called for a dead subject.
    fn release(&mut self, description: &Description) {
        let _ = description;
    }
}

/// The constant properties of a descriptor kind.
#[derive(Clone, Copy, Debug)]
pub struct FdFacts {
    name: &'static str,
    /// Decodes a payload, and drops the result.
    decode: fn(&'static str, &[u8]) -> Result<()>,
    /// Whether `create` opens or creates files by their names, or needs memory objects. A restore that rolls files back
    /// calls `create` of all other kinds before the rollback, so that their refusals change no file.
    pub needs_files: bool,
}

impl FdFacts {
    /// Returns the facts of a kind that needs files. `Payload` is the type of the payload of its records.
    pub(super) fn of<Payload: prost::Message + Default>(name: &'static str) -> Self {
        let decode = |name, payload: &[u8]| crate::error::decode::<Payload>(name, payload).map(drop);
        Self { name, decode, needs_files: true }
    }

    pub(super) fn without_files(self) -> Self {
        Self { needs_files: false, ..self }
    }
}

/// A descriptor kind: saves and restores one type of open file description.
pub trait FdKind: Sync {
    /// Returns the constant properties of this kind.
    fn facts(&self) -> FdFacts;

    /// Returns the name of the records: `fd/` and the name of the source file of the kind.
    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// Returns the version of the payload format that this kind writes. The kind reads this version and all earlier
    /// versions.
    fn version(&self) -> u32 {
        1
    }

    /// Reports whether this kind saves and restores a description.
    fn claims(&self, description: &Description) -> bool;

    /// Returns the properties of this description that would prevent a checkpoint. Called before the pause.
    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let _ = (description, scope);
        Vec::new()
    }

    /// Returns descriptions that are reachable only through this description, for example descriptors in flight in a
    /// Unix socket. The caller (`in_flight::discover`) saves the returned descriptions, and calls this method for
    /// each of them. `takes` is `true` if the subject is stopped and will be killed. Connections that wait in an
    /// accept queue cannot be inspected there. With `takes`, this method accepts these connections and returns them.
    fn hidden(&self, description: &Description, takes: bool) -> Result<Vec<OwnedFd>> {
        let _ = (description, takes);
        Ok(Vec::new())
    }

    /// Reports whether this description becomes complete only in `connect`. If the description is a member of an
    /// epoll set, the epoll kind adds the member in its own `connect`.
    fn completes_in_connect(&self, description: &Description) -> bool {
        let _ = description;
        false
    }

    /// Creates the capture. Called before the pause. The caller uses one capture for all checkpoints as long as the
    /// description exists.
    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>>;

    /// Decodes a payload, and refuses an invalid payload. Has no other effect. Called in a restore, before any object
    /// is opened or created.
    fn check(&self, version: u32, payload: &[u8]) -> Result<()> {
        let _ = version;
        (self.facts().decode)(self.name(), payload)
    }

    /// Checks that `create` would find the files of these records. Opens and creates nothing. Called before a checkpoint
    /// ends the subject.
    fn check_files(&self, records: &[FdRecord]) -> Result<()> {
        let _ = records;
        Ok(())
    }

    /// Checks that the objects outside the tree exist that `create` needs, and that no rollback of files brings back.
    /// Changes nothing. `inherited` are the files of the restoring process, as in [`FdCreate`].
    fn check_outside(&self, records: &[FdRecord], inherited: &[InheritedFile]) -> Result<()> {
        let _ = (records, inherited);
        Ok(())
    }

    /// Returns a path, addresses or a name by which a user recognizes the object. Returns `None` if the kind alone
    /// describes the object. The caller passes only a `payload` that `check` has accepted.
    fn label(&self, payload: &[u8]) -> Option<String> {
        let _ = payload;
        None
    }

    /// Builds the descriptions of all records of this kind, and adds these descriptions to `context.created`. This is
    /// the first step of a restore. The caller sets status flags and positions after this call.
    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()>;

    /// Restores state that depends on fds. This is the second step of a restore. Called once per process that holds
    /// descriptions of this kind.
    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        let _ = (records, context);
        Ok(())
    }

    /// Sets state that child processes inherit (the controlling terminal). Called in a restore once per session
    /// leader, right after the leader has created its session. At this time, the leader has a descriptor of each
    /// description in `created`, with the fd that this process uses.
    fn lead(
        &self,
        records: &[FdRecord],
        created: &HashMap<DescriptionId, OwnedFd>,
        leader: &mut Stub,
    ) -> Result<()> {
        let _ = (records, created, leader);
        Ok(())
    }

    /// Makes effects of the restore visible to other processes (a TCP connection leaves repair mode). This is the
    /// last step of a restore. Called once per kind, when every process is complete and before any process runs.
    /// `created` contains the results of `create`.
    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        let _ = (records, created);
        Ok(())
    }
}

/// A capture for a description whose state cannot change. The payload is computed before the pause.
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
