//! The interface of a state kind: the code that saves and restores one type of process or thread state.
//!
//! Inside the pause, a state kind copies raw bytes of the kernel's state. After the pause, the state kind converts the
//! raw bytes into the payload of a record. A restore passes this payload to the same state kind.
//!
//! Owns: the trait [`StateKind`], and the contexts that the methods of the trait receive.
//! Invariants: a state kind copies raw bytes inside the pause, and parses the raw bytes after the pause.
//! Does not: name any state kind.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use model::{Address, ByteCount, Fd, Pid, Tid};
use sys::file_rights::FileRights;
use sys::ptrace::RseqConfiguration;
use sys::task_reader::Field;
use tracee::procfs::KeptFiles;
use tracee::remote::{KnownThread, Places, RemoteContext};
use tracee::{ProcessMemory, RemoteError, RemoteSession, Stopped, Stub, Thread, procfs};

use super::caller::Caller;
use super::in_place::InPlace;
use super::remote_calls::{CallResult, RemoteCalls};
use super::result_cache::{ResultCache, ThreadCalls};
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::shared::Shared;

/// What one record of a state kind describes: a process or a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// One record for each process, captured and restored through the leader of the process.
    Process,
    /// One record for each thread.
    Thread,
}

/// A stage of a restore. Each state kind is restored in one stage. The next stage begins when all processes have
/// completed the present stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// At this stage, descriptors and memory are in place, and the threads exist. The processes still have the
    /// privileges of the restoring process.
    Setup,
    /// Timers are set and start to run. This stage follows `Setup`, because a running timer can expire before the
    /// program is resumed.
    Timers,
    /// The processes get the credentials of the subject. Steps that need the privileges of the restoring process come
    /// before the change of credentials.
    Credentials,
    /// This stage restores state that a change of credentials resets (dumpable, parent-death signal). The stage also
    /// restores settings that forbid system calls of earlier stages.
    Sealing,
    /// Pending signals are queued. After this stage, only registers are restored.
    Signals,
}

/// A reusable buffer for the bytes that one kind copies from one process or thread inside the pause.
pub type RawState = Vec<u8>;

/// The context of a state kind inside the pause: one stopped thread. If a kind has one record for each process, the
/// thread is the thread group leader.
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
    /// Files of `/proc` that stay open between two captures.
    kept: Option<&'a RefCell<KeptFiles>>,
    /// The fdinfo texts of all descriptors of the process; `None` if the texts were not read in this pause.
    descriptors: Option<&'a [DescriptorText]>,
    /// The rseq registration; `None` if the registration was not read in this pause.
    sequence: Option<RseqConfiguration>,
    /// The kinds that have added remote calls for this thread.
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

    /// Makes the context read `/proc` through the files in `kept`, which stay open between two captures.
    #[must_use]
    pub fn with_files(self, kept: &'a RefCell<KeptFiles>) -> Self {
        Self { kept: Some(kept), ..self }
    }

    /// Makes the context use results of earlier captures from `cache`, if these results are still valid.
    #[must_use]
    pub fn with_cache(mut self, cache: &'a RefCell<ResultCache>) -> Self {
        self.thread_calls.cache = Some(cache);
        self
    }

    /// Adds the fdinfo texts of all descriptors of the process. The caller has read the texts in this pause.
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

    /// Returns the session in which this thread makes remote calls. All kinds share the session. The first call of
    /// this method begins the session. The caller must have read registers and signal mask before the first call,
    /// because the session changes both until it ends.
    pub fn remote(&mut self) -> Result<&mut RemoteSession<'a>> {
        if self.session.is_none() {
            let thread = self.thread.take().expect("the thread is taken only when a session begins");
            self.session = Some(RemoteSession::begin(thread, self.context)?);
        }
        Ok(self.session.as_mut().expect("begun above"))
    }

    /// Collects the remote calls of all `kinds`. Must be called once, before the first kind captures its state.
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

    /// Reports whether the thread needs no remote call: no kind has added a call, or the cache contains all results.
    /// `known` describes the stopped thread.
    pub fn recall(&mut self, known: &KnownThread) -> bool {
        self.sequence = known.sequence;
        self.thread_calls.recall(self.tid, self.tid == self.pid.leader())
    }

    /// Starts the remote calls of the thread. `places` is memory of the process for the sessions of its threads.
    /// Returns `false` if sessions of other threads occupy this memory. `known` describes the stopped thread.
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

    /// Returns the content of `/proc/PID/task/TID/NAME`. If this file does not exist, returns the content of
    /// `/proc/TID/NAME`. A file is read at the first call, and all kinds share its content.
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

    /// Ends the session, if a session has begun. Returns an error if registers, signal mask or memory of the thread
    /// could not be restored.
    pub fn finish(self) -> Result<()> {
        match self.session {
            Some(session) => Ok(session.end()?),
            None => Ok(()),
        }
    }
}

/// The context of a state kind during a restore: one stub, which is a stopped thread of a process under construction.
/// If a kind has one record for each process, the stub is the thread group leader.
#[derive(Debug)]
pub struct StateRestore<'a> {
    /// The stub.
    pub stub: &'a mut Stub,
    /// The memory of the stub's process.
    pub memory: &'a ProcessMemory,
    /// Objects that several kinds share.
    pub shared: &'a mut Shared,
    /// Opens files for the stub's process.
    pub opener: &'a Opener,
}

impl Caller for StateRestore<'_> {
    fn ids(&self) -> (Pid, Tid) {
        (self.stub.pid(), self.stub.tid())
    }

    fn call_with(
        &mut self,
        number: i64,
        bytes: &[u8],
        arguments: impl FnOnce(Address) -> [u64; 6],
    ) -> std::result::Result<u64, RemoteError> {
        self.stub.call_with(self.memory, number, bytes, arguments)
    }

    fn read_data(&mut self, length: ByteCount) -> sys::Result<Vec<u8>> {
        self.memory.read_vec(self.stub.data().start, length)
    }
}

/// The constant properties of a state kind.
#[derive(Clone, Copy, Debug)]
pub struct StateFacts {
    /// The name of the kind in records: `state/` and the name of the file that implements the kind, or a name in a table
    /// of kinds.
    pub name: &'static str,
    /// Whether a record belongs to a process or to a thread.
    pub level: Level,
    /// The stage in which this kind is restored.
    pub stage: Stage,
}

/// A state kind: saves and restores one type of process or thread state.
pub trait StateKind: Sync {
    /// Returns the constant properties of this kind.
    fn facts(&self) -> StateFacts;

    /// Returns the name of this kind in records.
    fn name(&self) -> &'static str {
        self.facts().name
    }

    /// Returns the version of the payload format that this kind writes. The kind reads this version and all earlier
    /// versions.
    fn version(&self) -> u32 {
        1
    }

    /// Returns the state of this process that the kind cannot save, and that prevents a checkpoint. Called before the
    /// pause.
    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let _ = pid;
        Vec::new()
    }

    /// Adds the remote calls that this kind needs. Called inside the pause, before the first kind captures its state.
    /// The thread makes the calls of all kinds in one batch. With single calls, the thread would stop after each
    /// call, which takes more time.
    fn add_calls(&self, capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        let _ = (capture, calls);
        Ok(())
    }

    /// Returns the fields of kernel structures that determine the results of this kind's remote calls. If the bytes
    /// of these fields are unchanged, the results are unchanged. Returns `None` if no set of fields determines the
    /// results.
    fn sources(&self) -> Option<&'static [Field]> {
        None
    }

    /// Reports whether `results` may be cached for later pauses.
    fn is_steady(&self, results: &[CallResult]) -> bool {
        let _ = results;
        true
    }

    /// Copies raw state into `raw`. Called inside the pause. `raw` is an empty buffer that the caller reuses for each
    /// capture.
    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()>;

    /// Converts raw state into the payload of the record. Called after the pause. Returns `None` if there is nothing
    /// to save.
    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(raw.to_vec()))
    }

    /// Decodes a payload, and refuses an invalid payload. Has no other effect. Called at a restore, before any object
    /// is opened or created.
    fn check(&self, version: u32, payload: &[u8]) -> Result<()>;

    /// Removes effects that the end of a thread has on objects outside the image. Called for each captured thread, right
    /// before the subject is killed. The image is already committed, so the subject is never resumed after this call.
    fn before_kill(&self, pid: Pid, tid: Tid) -> Result<()> {
        let _ = (pid, tid);
        Ok(())
    }

    /// Creates objects that must exist before the restore opens or creates any other object. Called once at a
    /// restore. `payloads` contains process, version and payload of each record of this kind.
    fn prepare(&self, payloads: &[(Pid, u32, &[u8])]) -> Result<()> {
        let _ = payloads;
        Ok(())
    }

    /// Sets state that a process needs before its mappings are filled. Called at a restore for each record of a
    /// process, when the mappings exist and are empty.
    fn before_pages(&self, version: u32, payload: &[u8], stub: &mut Stub) -> Result<()> {
        let _ = (version, payload, stub);
        Ok(())
    }

    /// Returns the file access rights that a record gives to a thread. Only the kind `state/credentials` returns
    /// rights.
    fn file_rights(&self, version: u32, payload: &[u8]) -> Result<Option<FileRights>> {
        let _ = (version, payload);
        Ok(None)
    }

    /// Returns the implementation that sets this state in a living process; `None` if that is not possible.
    fn in_place(&self) -> Option<&dyn InPlace> {
        None
    }

    /// Sets state that child processes inherit. Called at a restore for the leader of each session, right after the
    /// leader has created the session.
    fn lead(&self, version: u32, payload: &[u8], stub: &mut Stub, memory: &ProcessMemory) -> Result<()> {
        let _ = (version, payload, stub, memory);
        Ok(())
    }

    /// Restores the state in a stub.
    fn restore(&self, version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()>;
}

impl fmt::Debug for dyn StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
