//! The last steps: threads, state, registers, and resuming all threads.
//!
//! Owns: the order of the stages of state kinds, the moment from which processes run, and the process group of the tree
//! that gets the terminal.
//! Invariants: no thread runs before every thread of every process has its registers. Only a terminal of our own
//! session is touched, and no group outside the tree is named.
//! Does not: know state kinds, or take the terminal back. Sessions inside the tree have terminals of their own.

use std::os::fd::{AsFd, OwnedFd};

use model::{Address, Pid, Signal};
use resource::state::{self, Stage, StateRestore};
use resource::{Opener, Shared};
use sys::dead_man::DeadManSwitch;
use sys::{Error, ptrace, session, terminal};
use tracee::arch;
use tracee::arch::numbers as nr;
use tracee::{ProcessMemory, Stub, interruption};

use super::built::{Built, BuiltProcess};
use super::files::{self, OpenFiles};
use super::plan::{Plan, PlannedProcess, PlannedState, own_vdso};
use crate::error::{EngineError, Result};
use crate::records::ProcessMessage;

const STAGES: [Stage; 5] = [Stage::Setup, Stage::Timers, Stage::Credentials, Stage::Sealing, Stage::Signals];

/// Lets state kinds make what must be there before anything is opened.
pub(super) fn prepare(plan: &Plan) -> Result<()> {
    for kind in state::REGISTRY {
        let mut payloads = Vec::new();
        for process in plan.living() {
            let of_threads = process.threads.iter().flat_map(|thread| &thread.states);
            let states = process.states.iter().chain(of_threads);
            let wanted = states.filter(|one| one.kind.name() == kind.name());
            payloads.extend(wanted.map(|one| (process.pid, one.version, one.payload.as_slice())));
        }
        if !payloads.is_empty() {
            kind.prepare(&payloads)?;
        }
    }
    Ok(())
}

/// Completes every process and lets the tree run, thread by thread, as `let_go` does it. `cut_back` is called once
/// nothing else can fail that does not depend on others, and before anything is visible outside.
pub(super) fn finish(
    plan: &Plan,
    open: &OpenFiles,
    mut built: Built,
    shared: &mut Shared,
    cut_back: impl FnOnce() -> Result<()>,
    mut let_go: impl FnMut(Stub, Option<Signal>) -> std::result::Result<(), Error>,
) -> Result<()> {
    for process in plan.living() {
        let target = built.get(process.pid)?;
        target.create_threads(process)?;
        for stub in &mut target.threads {
            stub.use_syscall_stops();
        }
    }
    for stage in STAGES {
        for process in plan.living() {
            let target = built.get(process.pid)?;
            restore_stage(process, target, stage, shared, open.holders.process(process.pid))?;
        }
        if stage == Stage::Credentials {
            files::own(plan, open, &mut built)?;
        }
    }
    drop_scratch(plan, &mut built)?;
    for process in plan.living() {
        set_registers(process, &built.get(process.pid)?.memory)?;
    }
    cut_back()?;
    files::start(plan, open)?;
    shared.keep();
    // They are resumed one after the other: a death of this process in between must not leave half a tree.
    let switch = DeadManSwitch::arm(plan.living().map(|process| process.pid))?;
    for process in plan.living() {
        let Some(target) = built.processes.remove(&process.pid) else { continue };
        let stopped = process.message.stop_signal;
        let signal = (stopped != 0).then_some(Signal(stopped));
        let mut signals = signal.into_iter();
        for stub in target.threads {
            let_go(stub, signals.next())?;
        }
    }
    switch.disarm();
    Ok(())
}

/// Unmaps the last pages of ours, by a call from an instruction of the program's own.
fn drop_scratch(plan: &Plan, built: &mut Built) -> Result<()> {
    let vdso = own_vdso()?;
    let syscall_offset = vdso.syscall - vdso.range.start;
    for process in plan.living() {
        let scratch = built.scratch;
        let target = built.get(process.pid)?;
        let instruction = if process.layout.vdso_code == 0 {
            find_instruction(process, target)?
        } else {
            Address(process.layout.vdso_code) + syscall_offset
        };
        let (stub, _) = target.leader();
        stub.use_instruction(instruction);
        stub.call(nr::MUNMAP, [scratch.start.get(), scratch.len().get(), 0, 0, 0, 0])?;
    }
    Ok(())
}

fn restore_stage(
    process: &PlannedProcess,
    target: &mut BuiltProcess,
    stage: Stage,
    shared: &mut Shared,
    opener: &Opener,
) -> Result<()> {
    let BuiltProcess { memory, threads } = target;
    for (stub, thread) in threads.iter_mut().zip(&process.threads) {
        for state in thread.states.iter().filter(|state| state.kind.stage() == stage) {
            restore_state(state, StateRestore { stub, memory, shared, opener })?;
        }
    }
    for state in process.states.iter().filter(|state| state.kind.stage() == stage) {
        restore_state(state, StateRestore { stub: &mut threads[0], memory, shared, opener })?;
    }
    Ok(())
}

fn restore_state(state: &PlannedState, mut restore: StateRestore<'_>) -> Result<()> {
    Ok(state.kind.restore(state.version, &state.payload, &mut restore)?)
}

/// A program without vDSO has its own `syscall` instruction somewhere.
fn find_instruction(process: &PlannedProcess, target: &BuiltProcess) -> Result<Address> {
    const PROT_EXEC: u32 = 4;
    for area in process.areas.iter().filter(|area| area.protection & PROT_EXEC != 0) {
        let code = target.memory.read_vec(area.range().start, area.range().len())?;
        if let Some(at) = code.windows(arch::SYSCALL.len()).position(|window| window == arch::SYSCALL) {
            return Ok(area.range().start + model::ByteCount(at as u64));
        }
    }
    Err(EngineError::NotBuildable(format!("pid {} has no instruction for a system call", process.pid)))
}

/// Sets the registers of all threads of a process.
pub(super) fn set_registers(process: &PlannedProcess, memory: &ProcessMemory) -> Result<()> {
    for thread in &process.threads {
        ptrace::set_extended_state(thread.tid, &thread.extended_state)?;
        ptrace::set_signal_mask(thread.tid, thread.signal_mask)?;
        let registers = interruption::named(&thread.registers, memory);
        ptrace::set_registers(thread.tid, &arch::restarted(&registers))?;
    }
    Ok(())
}

/// Makes the group that was in the foreground at the checkpoint, else that of the root, the foreground group, and gives
/// it; without a terminal of ours, gives it only. `None` for a program that had no terminal, or has another session than
/// ours. A failure leaves the program in the background.
pub(super) fn hand_over_terminal(plan: &Plan, terminal: Option<&OwnedFd>) -> Option<Pid> {
    let member = foreground_member(plan)?;
    let own = Pid(std::process::id() as i32);
    if session::of(member).ok()? != session::of(own).ok()? {
        return None;
    }
    let group = session::group_of(member).ok()?;
    if let Some(terminal) = terminal {
        let _ = terminal::set_foreground(terminal.as_fd(), group);
    }
    Some(group)
}

/// A living process of the group. The group itself may have another number now: for one around the tree, the group of
/// the restorer stands.
fn foreground_member(plan: &Plan) -> Option<Pid> {
    let root = &plan.processes[0];
    let foreground = root.message.foreground?;
    let is_in_it =
        |message: &ProcessMessage| message.group == foreground && message.session == root.message.session;
    let found = plan.living().find(|process| is_in_it(&process.message));
    Some(found.unwrap_or(root).pid)
}
