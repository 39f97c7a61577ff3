//! The interface of a state kind.
//!
//! Owns: the trait that state kinds implement, and the contexts that they receive.
//! Invariants: a kind copies raw bytes inside the pause and parses them after it.
//! Does not: name any kind.

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

/// Whether a kind has one record for each process or for each thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// One record for each process; captured and restored through its leader.
    Process,
    /// One record for each thread.
    Thread,
}

/// When a kind is restored. All processes pass a stage before any enters the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Descriptors and memory are in place, threads exist; privileges are still the restorer's.
    Setup,
    /// Timers that start to run, as late as possible.
    Timers,
    /// Privileges become the subject's; steps that need more privileges have run before.
    Credentials,
    /// State that a change of privileges resets (dumpable, parent-death signal), and state that forbids calls
    /// (seccomp).
    Sealing,
    /// Pending signals are queued again; only registers are restored after this.
    Signals,
}

/// Reusable buffer for the bytes that one kind copies from one process or thread inside the pause.
pub type RawState = Vec<u8>;

/// Context of a state kind inside the pause: one stopped thread (the leader, for process-level kinds).
#[derive(Debug)]
pub struct StateCapture<'a> {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    thread: Option<&'a mut Thread<Stopped>>,
    context: &'a RemoteContext<'a>,
    session: Option<RemoteSession<'a>>,
    files: HashMap<&'static str, Vec<u8>>,
    /// Files held open from one capture to the next.
    kept: Option<&'a RefCell<KeptFiles>>,
    /// fdinfo of all descriptors of the process, if already read in this pause.
    descriptors: Option<&'a [DescriptorText]>,
    /// The rseq registration, if already read.
    sequence: Option<RseqConfiguration>,
    /// The kinds that make remote calls.
    calling: Vec<&'static dyn StateKind>,
    thread_calls: ThreadCalls<'a>,
}

/// The text of fdinfo of one descriptor.
#[derive(Debug)]
pub struct DescriptorText {
    /// The process.
    pub pid: Pid,
    /// The descriptor.
    pub fd: Fd,
    /// The text.
    pub text: Vec<u8>,
}

impl<'a> StateCapture<'a> {
    /// A capture of one stopped thread.
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

    /// Reads files of `/proc` through these open files.
    #[must_use]
    pub fn with_files(self, kept: &'a RefCell<KeptFiles>) -> Self {
        Self { kept: Some(kept), ..self }
    }

    /// Uses cached results of earlier captures that are still valid.
    #[must_use]
    pub fn with_cache(mut self, cache: &'a RefCell<ResultCache>) -> Self {
        self.thread_calls.cache = Some(cache);
        self
    }

    /// Uses fdinfo of all descriptors of the process that was already read in this pause.
    #[must_use]
    pub fn with_descriptors(self, descriptors: &'a [DescriptorText]) -> Self {
        Self { descriptors: Some(descriptors), ..self }
    }

    /// fdinfo of all descriptors of the process, if already read.
    #[must_use]
    pub fn descriptors(&self) -> Option<&'a [DescriptorText]> {
        self.descriptors
    }

    pub(super) fn known_sequence(&self) -> Option<RseqConfiguration> {
        self.sequence
    }

    /// The process's memory.
    #[must_use]
    pub fn memory(&self) -> &'a ProcessMemory {
        self.context.memory
    }

    /// A session for remote calls in this thread, begun at first use and shared by all kinds.
    /// Registers and signal mask must have been read before: a session changes both until it ends.
    pub fn remote(&mut self) -> Result<&mut RemoteSession<'a>> {
        if self.session.is_none() {
            let thread = self.thread.take().expect("the thread is taken only when a session begins");
            self.session = Some(RemoteSession::begin(thread, self.context)?);
        }
        Ok(self.session.as_mut().expect("begun above"))
    }

    /// Collects the remote calls of all these kinds. To be called once, before any of them captures its state.
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

    /// Whether the thread needs no remote call: there is none, or all results are cached. `known` describes the
    /// stopped thread.
    pub fn recall(&mut self, known: &KnownThread) -> bool {
        self.sequence = known.sequence;
        self.thread_calls.recall(self.tid, self.tid == self.pid.leader())
    }

    /// Starts the remote calls of the thread. Returns false when no place is free until sessions of other threads
    /// have ended. `known` describes the stopped thread.
    pub fn begin(&mut self, known: &KnownThread, places: &mut Places) -> Result<bool> {
        let room = self.thread_calls.calls.room();
        let Some(top) = places.take(room.bytes(known)) else { return Ok(false) };
        let (signals, is_filtered) = procfs::call_status(self.file("status")?);
        let thread = self.thread.take().expect("the thread is taken only when a session begins");
        let session = self.session.insert(RemoteSession::begin_at(
            thread,
            self.context,
            known,
            top,
            room,
            is_filtered,
        )?);
        self.thread_calls.begin(session, signals)?;
        Ok(true)
    }

    /// Waits for the results.
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

    /// The results of the remote calls of a kind, in call order.
    pub fn results(&mut self, kind: &'static str) -> Vec<CallResult> {
        self.thread_calls.take(kind)
    }

    /// The bytes of `/proc/PID/task/TID/NAME`, or of `/proc/TID/NAME` where the first does not exist; read once for
    /// all kinds.
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

    /// Ends the session, if one was begun; fails when the thread could not be restored to its stop.
    pub fn finish(self) -> Result<()> {
        match self.session {
            Some(session) => Ok(session.end()?),
            None => Ok(()),
        }
    }
}

/// Context of a state kind during a restore: one stub thread (the leader, for process-level kinds).
#[derive(Debug)]
pub struct StateRestore<'a> {
    /// The thread under construction.
    pub stub: &'a mut Stub,
    /// The memory of its process.
    pub memory: &'a ProcessMemory,
    /// Objects that this kind shares with other kinds.
    pub shared: &'a mut Shared,
    /// Opens files for this process.
    pub opener: &'a Opener,
}

/// A kind of process or thread state.
pub trait StateKind: Sync {
    /// The name of its records: `state/` and the name of the file that implements it.
    fn name(&self) -> &'static str;

    /// The version of the payload it writes; it reads this and all earlier ones.
    fn version(&self) -> u32 {
        1
    }

    /// One line for the tables in docs and `doctor`: what is restored.
    fn summary(&self) -> &'static str;

    /// Whether there is one record per process or one per thread.
    fn level(&self) -> Level;

    /// The stage in which it is restored.
    fn stage(&self) -> Stage;

    /// Before the pause: the objects of this process that would prevent a checkpoint.
    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        let _ = pid;
        Vec::new()
    }

    /// Inside the pause, before any kind captures its state: adds the remote calls that this kind needs. The calls of
    /// all kinds run in one batch, because each stop has a cost.
    fn add_calls(&self, capture: &mut StateCapture<'_>, calls: &mut RemoteCalls) -> Result<()> {
        let _ = (capture, calls);
        Ok(())
    }

    /// The kernel fields from which the results of this kind's calls follow: equal bytes mean equal results. `None`
    /// where results change without a change of these fields.
    fn sources(&self) -> Option<&'static [Field]> {
        None
    }

    /// Whether these results can stay valid for longer than one pause.
    fn is_steady(&self, results: &[CallResult]) -> bool {
        let _ = results;
        true
    }

    /// Inside the pause: copies raw state into `raw`, which is empty but retains its capacity.
    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()>;

    /// After the pause: converts raw state into the payload of the record; `None` when there is nothing to save.
    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(raw.to_vec()))
    }

    /// Restore, before anything is opened or created: decodes a payload and refuses invalid ones. Changes nothing.
    fn check(&self, version: u32, payload: &[u8]) -> Result<()>;

    /// Restore, before anything is opened or created: creates objects that must exist by then. Receives process,
    /// version and payload of each record of this kind.
    fn prepare(&self, payloads: &[(Pid, u32, &[u8])]) -> Result<()> {
        let _ = payloads;
        Ok(())
    }

    /// Restore, when the mappings of a process exist and are empty: sets what must hold before they are filled.
    /// Called for each record.
    fn before_pages(&self, version: u32, payload: &[u8], stub: &mut Stub) -> Result<()> {
        let _ = (version, payload, stub);
        Ok(())
    }

    /// The file access rights that a record gives a thread; `None` from kinds other than credentials.
    fn file_rights(&self, version: u32, payload: &[u8]) -> Result<Option<FileRights>> {
        let _ = (version, payload);
        Ok(None)
    }

    /// Restore, when a process leads its session and has no children yet: sets state that the children inherit.
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
