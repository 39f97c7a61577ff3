//! Registers and state of every thread and process.
//!
//! Owns: the order of reading. Registers are read first, because a remote call changes them until it ends. Then all
//! threads start their calls, and this module waits for each thread.
//! Invariants: inside the pause, only raw bytes are read.
//! Does not: parse the bytes of a state kind.

use std::cell::RefCell;

use image::{Owner, Record, RecordSet};
use resource::state::{self, DescriptorText, Level, RawState, ResultCache, StateCapture, StateKind};
use tracee::procfs::{self, KeptFiles};
use tracee::remote::{KnownThread, Places};
use tracee::{RemoteError, StoppedProcess, StoppedTree, Thread};

use super::descriptors::Descriptors;
use super::process::{Process, ThreadState};
use super::processes::Processes;
use crate::error::Result;
use crate::records::{EngineRecord, ThreadMessage};

/// A thread whose state is being read.
struct Reading<'a> {
    known: KnownThread,
    is_leader: bool,
    capture: StateCapture<'a>,
}

/// State of the threads of a subject that is kept between checkpoints.
#[derive(Default)]
pub(super) struct Threads {
    pub(super) files: KeptFiles,
    cache: RefCell<ResultCache>,
    /// `true` if no thread had to make a remote call in the last pause. The next pause is then likely to need
    /// no remote call either.
    pub(super) are_silent: bool,
}

impl Threads {
    /// Opens the files of `/proc` of each thread. An error is ignored, because a thread may have ended.
    pub(super) fn survey(&mut self, processes: &Processes) {
        for pid in processes.living.keys() {
            for tid in procfs::threads(*pid).unwrap_or_default() {
                let _ = state::open_files(&mut self.files, *pid, tid);
            }
        }
    }

    pub(super) fn take(
        &mut self,
        processes: &mut Processes,
        descriptors: &Descriptors,
        tree: &mut StoppedTree,
    ) -> Result<()> {
        let files = RefCell::new(std::mem::take(&mut self.files));
        let outcome = tree.processes.iter_mut().try_for_each(|stopped| {
            let Some(process) = processes.living.get_mut(&stopped.pid) else { return Ok(()) };
            read_process(stopped, process, &files, &self.cache, descriptors.info.texts_of(stopped.pid))
        });
        self.files = files.into_inner();
        let cache = self.cache.get_mut();
        self.are_silent = cache.is_usable() && cache.take_misses() == 0;
        outcome
    }

    /// Removes the state of threads that have ended, and prepares the next capture of the subject.
    pub(super) fn sweep(&mut self, processes: &Processes) {
        self.files.sweep();
        let threads = processes.living.values().flat_map(|process| &process.threads);
        let cache = self.cache.get_mut();
        cache.keep(&threads.map(|thread| thread.tid).collect());
        state::prepare_cache(cache);
    }
}

/// Reads the threads of one process. The threads execute their remote calls at the same time, as far as there
/// is free memory for the calls. Waiting for one thread is then waiting for all of them.
fn read_process(
    stopped: &mut StoppedProcess,
    process: &mut Process,
    files: &RefCell<KeptFiles>,
    cache: &RefCell<ResultCache>,
    texts: &[DescriptorText],
) -> Result<()> {
    let context = process.space.context();
    let mut places = None;
    let mut states = Vec::with_capacity(stopped.threads.len());
    let mut together: Vec<Reading<'_>> = Vec::new();
    for (index, thread) in stopped.threads.iter_mut().enumerate() {
        let known = KnownThread::read(thread.tid(), &process.space.memory)?;
        let capture = StateCapture::new(thread, &context).with_files(files).with_cache(cache);
        let capture = capture.with_descriptors(texts);
        let mut reading = Reading { known, is_leader: index == 0, capture };
        let kinds = reading.kinds();
        reading.capture.prepare(kinds)?;
        if !reading.capture.recall(&reading.known) {
            let places = match &mut places {
                Some(places) => places,
                none => none.insert(Places::find(stopped.pid, &context)?),
            };
            if !reading.capture.begin(&reading.known, places)? {
                states.extend(finish_all(&mut together)?);
                places.reset();
                if !reading.capture.begin(&reading.known, places)? {
                    return Err(RemoteError::NoStack(reading.capture.tid).into());
                }
            }
        }
        together.push(reading);
    }
    states.extend(finish_all(&mut together)?);
    drop(together);
    // A stop signal that was pending takes effect in the first remote call at the latest.
    process.stop_signal = stopped.threads.iter().find_map(Thread::group_stop);
    process.threads = states;
    Ok(())
}

/// Waits for the remote calls of all threads, and then captures their state. A state kind may inspect other
/// threads of the process, which must be stopped for this.
fn finish_all(together: &mut Vec<Reading<'_>>) -> Result<Vec<ThreadState>> {
    together.iter_mut().try_for_each(|reading| reading.capture.collect())?;
    together.drain(..).map(Reading::finish).collect()
}

impl Reading<'_> {
    fn kinds(&self) -> impl Iterator<Item = &'static dyn StateKind> + use<> {
        let is_leader = self.is_leader;
        state::REGISTRY.iter().copied().filter(move |kind| kind.facts().level == Level::Thread || is_leader)
    }

    fn finish(self) -> Result<ThreadState> {
        let Self { known, is_leader, mut capture } = self;
        let mut raw = Vec::with_capacity(state::REGISTRY.len());
        for kind in state::REGISTRY {
            let wanted = kind.facts().level == Level::Thread || is_leader;
            let mut of_kind = RawState::new();
            if wanted {
                kind.inside(&mut capture, &mut of_kind)?;
            }
            raw.push(wanted.then_some(of_kind));
        }
        let tid = capture.tid;
        capture.finish()?;
        let KnownThread { resumed: registers, extended_state, signal_mask, .. } = known;
        Ok(ThreadState { tid, registers, extended_state, signal_mask, raw })
    }
}

/// Raw state of a kind, and the payload of its record.
type Converted<'a> = (&'a RawState, Option<Vec<u8>>);

pub(super) fn write(processes: &Processes, records: &mut RecordSet) -> Result<()> {
    // Most threads of a subject have equal state of most kinds, and the conversion can take longer than the comparison.
    let mut last: Vec<Option<Converted<'_>>> = vec![None; state::REGISTRY.len()];
    for (pid, process) in &processes.living {
        for thread in &process.threads {
            let message = ThreadMessage {
                registers: thread.registers.to_words().to_vec(),
                extended_state: thread.extended_state.clone(),
                signal_mask: thread.signal_mask,
            };
            message.put(records, Owner::Thread(thread.tid));
            for ((kind, raw), last) in state::REGISTRY.iter().zip(&thread.raw).zip(&mut last) {
                let Some(raw) = raw else { continue };
                let owner = match kind.facts().level {
                    Level::Process => Owner::Process(*pid),
                    Level::Thread => Owner::Thread(thread.tid),
                };
                let payload = match last {
                    Some((same, payload)) if *same == raw => payload.clone(),
                    _ => last.insert((raw, kind.after(raw)?)).1.clone(),
                };
                if let Some(payload) = payload {
                    records.push(Record::new(kind.name(), kind.version(), owner, payload));
                }
            }
        }
    }
    Ok(())
}
