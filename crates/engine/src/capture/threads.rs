//! Registers and state of every thread and process.
//!
//! Owns: the order in which a thread is read (registers first: a remote call changes them until it is over).
//! Invariants: inside the pause only raw bytes are taken.
//! Does not: parse what a state kind took.

use image::{Owner, Record, RecordSet};
use model::Tid;
use resource::state::{self, DescriptorText, Level, RawState, StateCapture, StateKind};
use sys::ptrace::{self, Registers, XSTATE_BYTES_MAX};
use tracee::procfs::KeptFiles;
use tracee::remote::RemoteContext;
use tracee::{Stopped, StoppedTree, Thread};

use super::before::{Before, ProcessBefore};
use crate::error::Result;
use crate::records::{EngineRecord, ThreadMessage, of_process};

/// What is taken of one thread.
pub(super) struct ThreadState {
    pub(super) tid: Tid,
    registers: Registers,
    extended_state: Vec<u8>,
    signal_mask: u64,
    /// Raw bytes by position in the registry of state kinds.
    raw: Vec<Option<RawState>>,
}

/// Reads every thread of a stopped tree.
pub(super) fn inside(before: &mut Before, tree: &mut StoppedTree) -> Result<()> {
    let Before { processes, descriptors, files, .. } = before;
    for stopped in &mut tree.processes {
        let Some(process) = processes.get_mut(&stopped.pid) else { continue };
        let texts = descriptors.texts_of(stopped.pid);
        let mut states = Vec::with_capacity(stopped.threads.len());
        for (index, thread) in stopped.threads.iter_mut().enumerate() {
            states.push(read_thread(thread, process, index == 0, files, texts)?);
        }
        process.threads = states;
        // A stop signal that was pending takes effect during the first remote call at the latest.
        process.stop_signal = stopped.threads.first().and_then(Thread::group_stop);
    }
    Ok(())
}

fn read_thread(
    thread: &mut Thread<Stopped>,
    process: &ProcessBefore,
    leader: bool,
    files: &mut KeptFiles,
    descriptors: &[DescriptorText],
) -> Result<ThreadState> {
    let tid = thread.tid();
    let registers = ptrace::registers(tid)?;
    let mut buffer = [0_u8; XSTATE_BYTES_MAX];
    let length = ptrace::extended_state(tid, &mut buffer)?;
    let mut state = ThreadState {
        tid,
        registers,
        extended_state: buffer[..length].to_vec(),
        signal_mask: ptrace::signal_mask(tid)?,
        raw: Vec::with_capacity(state::REGISTRY.len()),
    };
    let sequence = ptrace::rseq_configuration(tid)?;
    state::rseq::abort_if_inside(&mut state.registers, &process.memory, &sequence)?;
    let context = RemoteContext { memory: &process.memory, areas: &process.areas, gadgets: process.gadgets };
    let capture = StateCapture::new(thread, &context);
    let mut capture = capture.with_files(files).with_descriptors(descriptors);
    let wanted = |kind: &&dyn StateKind| kind.level() == Level::Thread || leader;
    capture.ask(state::REGISTRY.iter().copied().filter(|kind| wanted(kind)))?;
    for kind in state::REGISTRY {
        let wanted = wanted(kind);
        let mut raw = RawState::new();
        if wanted {
            kind.inside(&mut capture, &mut raw)?;
        }
        state.raw.push(wanted.then_some(raw));
    }
    capture.finish()?;
    Ok(state)
}

/// Adds the records of threads and of all state kinds.
pub(super) fn after(before: &Before, records: &mut RecordSet) -> Result<()> {
    for (pid, process) in &before.processes {
        for thread in &process.threads {
            let message = ThreadMessage {
                registers: words(&thread.registers).to_vec(),
                extended_state: thread.extended_state.clone(),
                signal_mask: thread.signal_mask,
            };
            message.put(records, Owner::Thread(thread.tid));
            for (kind, raw) in state::REGISTRY.iter().zip(&thread.raw) {
                let Some(raw) = raw else { continue };
                let owner = match kind.level() {
                    Level::Process => of_process(*pid),
                    Level::Thread => Owner::Thread(thread.tid),
                };
                if let Some(payload) = kind.after(raw)? {
                    records.push(Record::new(kind.name(), kind.version(), owner, payload));
                }
            }
        }
    }
    Ok(())
}

fn words(registers: &Registers) -> [u64; 27] {
    registers.to_words()
}
