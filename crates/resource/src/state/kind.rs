//! The interface of a state kind, which saves and restores one type of process or thread state.
//!
//! A remote call is a system call that a stopped thread executes for this program.
//!
//! Owns: the trait that state kinds implement, and the contexts that the methods receive.
//! Invariants: a kind copies raw bytes inside the pause, in which all threads of the subject (the protected program)
//! are stopped. The kind parses the bytes after the pause.
//! Does not: name any state kind.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use model::{Fd, Pid, Tid};
use sys::file_rights::FileRights;
use sys::ptrace::RseqConfiguration;
use sys::task_reader::Field;
use tracee::procfs::KeptFiles;
use tracee::remote::{KnownThread, Places, RemoteContext};
use tracee::{ProcessMemory, RemoteSession, Stopped, Stub, Thread, procfs};

use super::remote_calls::{CallResult, RemoteCalls};
use super::result_cache::{ResultCache, ThreadCalls};
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::shared::Shared;

/// The owner of a record of a kind: a process or a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// One record for each process, captured and restored through the leader of the process.
    Process,
    /// One record for each thread.
    Thread,
}

/// The stage of a restore in which a kind is restored. All processes pass a stage before a process enters the next
/// stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Descriptors and memory are in place, and the threads exist. The processes still have the privileges of the
    /// restoring process.
    Setup,
    /// Timers are set and start to run. This stage is as late as possible.
    Timers,
    /// Privileges change to the privileges of the subject. Steps that need more privileges have run before.
    Credentials,
    /// This stage restores state that a change of privileges resets (dumpable, parent-death signal), and state that
    /// forbids later system calls.
    Sealing,
    /// Pending signals are queued again. Only registers are restored after this stage.
    Signals,
}

/// A reusable buffer for the bytes that one kind copies from one process or thread inside the pause.
pub type RawState = Vec<u8>;

/// The context of a state kind inside the pause: one stopped thread. For a kind with one record for each process, the
/// thread is the leader.
#[derive(Debug)]
pub struct StateCapture<'a> {
    /// The process of the thread.
    pub pid: Pid,
    /// The stopped thread.
    pub tid: Tid,
    thread: Option<&'a mut Thread<Stopped>>,
    context: &'a RemoteContext<'a>,
    session: Option<RemoteSession<'a>>,
    files: HashMap<&'static str, Vec<u8>>,
    /// Files that stay open from one capture to the next.
    kept: Option<&'a RefCell<KeptFiles>>,
    /// The fdinfo texts of all descriptors of the process; `None` if the texts were not read in this pause.
    descriptors: Option<&'a [DescriptorText]>,
    /// The rseq registration; `None` if the registration was not read in this pause.
    sequence: Option<RseqConfiguration>,
    /// The kinds that make remote calls.
    calling: Vec<&'static dyn StateKind>,
    thread_calls: ThreadCalls<'a>,
}

/// The fdinfo text of one descriptor.
#[derive(Debug)]
pub struct DescriptorText {
    /// The process that has the descriptor.
    pub pid: Pid,
    /// The number of the descriptor.
    pub fd: Fd,
    /// The content of the fdinfo file.
    pub text: Vec<u8>,
}

impl<'a> StateCapture<'a> {
    /// Creates the context of one stopped thread.
    pub fn new(thread: &'a mut Thread<Stopped>, context: &'a RemoteContext<'a>) -> Self {
        let (pid, tid) = (thread.pid(), thread.tid());
        Self {
            pid,
            tid,
            thread: Some(thread),
            context,
            session: None,
            files: HashMap::new(),
            kept: None,
            descriptors: None,
            sequence: None,
            calling: Vec::new(),
            thread_calls: ThreadCalls::default(),
        }
    }

    /// Reads files of `/proc` through the open files in `kept`.
    #[must_use]
    pub fn with_files(self, kept: &'a RefCell<KeptFiles>) -> Self {
        Self { kept: Some(kept), ..self }
    }

    /// Uses the results of earlier captures in `cache` that are still valid.
    #[must_use]
    pub fn with_cache(mut self, cache: &'a RefCell<ResultCache>) -> Self {
        self.thread_calls.cache = Some(cache);
        self
    }

    /// Uses the fdinfo texts of all descriptors of the process, which were already read in this pause.
    #[must_use]
    pub fn with_descriptors(self, descriptors: &'a [DescriptorText]) -> Self {
        Self { descriptors: Some(descriptors), ..self }
    }

    /// Returns the fdinfo texts of all descriptors of the process; `None` if the texts were not read in this pause.
    #[must_use]
    pub fn descriptors(&self) -> Option<&'a [DescriptorText]> {
        self.descriptors
    }

    pub(super) fn known_sequence(&self) -> Option<RseqConfiguration> {
        self.sequence
    }

    /// Returns the memory of the process.
    #[must_use]
    pub fn memory(&self) -> &'a ProcessMemory {
        self.context.memory
    }

    /// Returns the session for remote calls in this thread. The first call begins the session, and all kinds share the
    /// session. Registers and signal mask must have been read before, because the session changes registers and signal
    /// mask until the session ends.
    pub fn remote(&mut self) -> Result<&mut RemoteSession<'a>> {
        if self.session.is_none() {
            let thread = self.thread.take().expect("the thread is taken only when a session begins");
            self.session = Some(RemoteSession::begin(thread, self.context)?);
        }
        Ok(self.session.as_mut().expect("begun above"))
    }

    /// Collects the remote calls of all `kinds`. Must be called once, before a kind captures its state.
    pub fn prepare(&mut self, kinds: impl Iterator<Item = &'static dyn StateKind>) -> Result<()> {
        let mut calls = RemoteCalls::default();
        for kind in kinds {
            calls.of(kind.name());
            let before = calls.len();
            kind.add_calls(self, &mut calls)?;
            if calls.len() > before {
                self.calling.push(kind);
            }
        }
        self.thread_calls.calls = calls;
        Ok(())
    }

    /// Reports whether the thread needs no remote call, because no kind makes a call or all results are cached.
    /// `known` describes the stopped thread.
    pub fn recall(&mut self, known: &KnownThread) -> bool {
        self.sequence = known.sequence;
        self.thread_calls.recall(self.tid, self.tid == self.pid.leader())
    }

    /// Starts the remote calls of the thread. Returns `false` if `places` has no free memory until sessions of other
    /// threads end. `known` describes the stopped thread.
    pub fn begin(&mut self, known: &KnownThread, places: &mut Places) -> Result<bool> {
        let capacity = self.thread_calls.calls.capacity();
        let Some(top) = places.take(capacity.bytes(known)) else { return Ok(false) };
        let (signals, is_filtered) = procfs::call_status(self.file("status")?);
        let thread = self.thread.take().expect("the thread is taken only when a session begins");
        let session = self.session.insert(RemoteSession::begin_at(
            thread,
            self.context,
            known,
            top,
            capacity,
            is_filtered,
        )?);
        self.thread_calls.begin(session, signals)?;
        Ok(true)
    }

    /// Waits for the results of the remote calls.
    pub fn collect(&mut self) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        if self.thread_calls.collect(session)? {
            let holds = |kind: &&dyn StateKind| {
                kind.sources().is_some() && kind.is_steady(self.thread_calls.results_of(kind.name()))
            };
            if self.calling.iter().all(holds) {
                self.thread_calls.note(self.tid);
            }
        }
        Ok(())
    }

    /// Returns the results of the remote calls of a kind, in call order.
    pub fn results(&mut self, kind: &'static str) -> Vec<CallResult> {
        self.thread_calls.take(kind)
    }

    /// Returns the content of `/proc/PID/task/TID/NAME`, or of `/proc/TID/NAME` if the first file does not exist. Each
    /// file is read once for all kinds.
    pub fn file(&mut self, name: &'static str) -> Result<&[u8]> {
        if !self.files.contains_key(name) {
            let bytes = match self.kept {
                Some(kept) => kept.borrow_mut().read(self.pid, self.tid, name)?.to_vec(),
                None => procfs::read(procfs::path_of_thread(self.pid, self.tid, name))?,
            };
            self.files.insert(name, bytes);
        }
        Ok(&self.files[name])
    }

    /// Ends the session, if a session was begun. Returns an error if the thread could not be restored to its stop.
    pub fn finish(self) -> Result<()> {
        match self.session {
            Some(session) => Ok(session.end()?),
            None => Ok(()),
        }
    }
}

/// The context of a state kind during a restore: one thread of a stub. A stub is a process under construction. For a
/// kind with one record for each process, the thread is the leader.
#[derive(Debug)]
pub struct StateRestore<'a> {
    /// The thread under construction.
    pub stub: &'a mut Stub,
    /// The memory of the process of this thread.
    pub memory: &'a ProcessMemory,
    /// Objects that this kind shares with other kinds.
    pub shared: &'a mut Shared,
    /// Opens files for the process of this thread.
    pub opener: &'a Opener,
}

/// A kind of process or thread state.
pub trait StateKind: Sync {
    /// Returns the name of this kind in records: `state/` and the name of the file that implements the kind.
    fn name(&self) -> &'static str;

    /// Returns the version of the payload that this kind writes. The kind reads this version and all earlier versions.
    fn version(&self) -> u32 {
        1
    }

    /// Returns one line about the restored state, for tables in the documentation and in `doctor`.
    fn summary(&self) -> &'static str;

    /// Returns whether a record belongs to a process or to a thread.
    fn level(&self) -> Level;

    /// Returns the stage in which this kind is restored.
    fn stage(&self) -> Stage;

    /// Returns the objects of this process that would prevent a checkpoint. Called before the pause.
    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let _ = pid;
        Vec::new()
    }

    /// Adds the remote calls that this kind needs. Called inside the pause, before a kind captures its state. The
    /// calls of all kinds run in one batch, because each stop has a cost.
    fn add_calls(&self, capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        let _ = (capture, calls);
        Ok(())
    }

    /// Returns the kernel fields that determine the results of this kind's remote calls: equal bytes mean equal
    /// results. Returns `None` if the results can change without a change of kernel fields.
    fn sources(&self) -> Option<&'static [Field]> {
        None
    }

    /// Reports whether `results` can stay valid for longer than one pause.
    fn is_steady(&self, results: &[CallResult]) -> bool {
        let _ = results;
        true
    }

    /// Copies raw state into `raw`. Called inside the pause. `raw` is empty but retains its capacity.
    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()>;

    /// Converts raw state into the payload of the record. Called after the pause. Returns `None` if there is nothing
    /// to save.
    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(raw.to_vec()))
    }

    /// Decodes a payload, and refuses an invalid payload. Called at a restore, before anything is opened or created.
    /// Changes nothing.
    fn check(&self, version: u32, payload: &[u8]) -> Result<()>;

    /// Creates objects that must exist before any other object is opened or created. Called at a restore. `payloads`
    /// contains process, version and payload of each record of this kind.
    fn prepare(&self, payloads: &[(Pid, u32, &[u8])]) -> Result<()> {
        let _ = payloads;
        Ok(())
    }

    /// Sets state that must be set before the mappings of a process are filled. Called at a restore for each record,
    /// when the mappings exist and are empty.
    fn before_pages(&self, version: u32, payload: &[u8], stub: &mut Stub) -> Result<()> {
        let _ = (version, payload, stub);
        Ok(())
    }

    /// Returns the file access rights that a record gives to a thread. Only the kind of credentials returns rights.
    fn file_rights(&self, version: u32, payload: &[u8]) -> Result<Option<FileRights>> {
        let _ = (version, payload);
        Ok(None)
    }

    /// Sets state that child processes inherit. Called at a restore, when a process leads its session and has no
    /// children yet.
    fn lead(&self, version: u32, payload: &[u8], stub: &mut Stub, memory: &ProcessMemory) -> Result<()> {
        let _ = (version, payload, stub, memory);
        Ok(())
    }

    /// Restores the state in a thread under construction.
    fn restore(&self, version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()>;
}

impl fmt::Debug for dyn StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
