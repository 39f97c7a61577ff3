//! The last steps of a restore: creates threads, sets state and registers, and resumes all threads.
//!
//! Owns: the order of the stages of state kinds, the moment from which processes run, and the choice of the process
//! group that gets the terminal.
//! Invariants: no thread runs before every thread of every process has its registers. Only the terminal of this
//! process's session is changed. Only a process group of the tree becomes the foreground group.
//! Does not: depend on a state kind, or take the terminal back. Sessions inside the tree have their own terminals.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use model::{Address, Pid, Signal};
use resource::state::{self, Stage, StateRestore};
use resource::{Opener, Shared};
use sys::clock::Deadline;
use sys::dead_man::DeadManSwitch;
use sys::ptrace::Registers;
use sys::{Error, ptrace, session, terminal};
use tracee::arch;
use tracee::arch::numbers as nr;
use tracee::procfs::Stat;
use tracee::{ProcessMemory, Stub, interruption, procfs};

use super::built::{Built, BuiltProcess};
use super::files::{self, OpenFiles};
use super::plan::{Plan, PlannedProcess, PlannedState, own_vdso};
use crate::error::{EngineError, Result};
use crate::records::ProcessMessage;

const STAGES: [Stage; 5] = [Stage::Setup, Stage::Timers, Stage::Credentials, Stage::Sealing, Stage::Signals];

/// Maximum time until the stop signal of a restored process takes effect, and the poll interval.
const STOP_LIMIT: Duration = Duration::from_millis(500);
const STOP_POLL: Duration = Duration::from_micros(50);

/// Makes the state kinds create objects that must exist before any file is opened.
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

/// Completes every process, and resumes the tree by a call of `resume` for each thread. `cut_back`, which truncates
/// grown files, is called when only steps that depend on other programs can still fail. At that time, no effect is
/// visible outside the tree. `before_run` is called directly before the first thread is resumed.
pub(super) fn finish(
    plan: &Plan,
    open: &OpenFiles,
    mut built: Built,
    shared: &mut Shared,
    cut_back: impl FnOnce() -> Result<()>,
    before_run: impl FnOnce() -> Result<()>,
    mut resume: impl FnMut(Stub, Option<Signal>) -> std::result::Result<(), Error>,
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
        let target = built.get(process.pid)?;
        await_restarts(process, target)?;
        set_registers(process, &target.memory)?;
    }
    cut_back()?;
    files::start(plan, open)?;
    before_run()?;
    shared.keep();
    // Threads are resumed one after the other. If this process dies in between, the switch kills all processes, so
    // that no incomplete tree runs.
    let switch = DeadManSwitch::arm(plan.living().map(|process| process.pid))?;
    for process in plan.living() {
        let Some(target) = built.processes.remove(&process.pid) else { continue };
        let stopped = process.message.stop_signal;
        let signal = (stopped != 0).then_some(Signal(stopped));
        let mut threads = target.threads.into_iter();
        let Some(first) = threads.next() else { continue };
        resume(first, signal)?;
        if signal.is_some() && threads.len() > 0 {
            await_stop(process.pid);
        }
        for stub in threads {
            resume(stub, None)?;
        }
    }
    switch.disarm();
    Ok(())
}

/// Waits until the stop signal has stopped the first thread of a process. The other threads then stop before they
/// execute an instruction. A SIGCONT from outside can prevent the stop, so the wait has a limit.
fn await_stop(pid: Pid) {
    let limit = Deadline::after(STOP_LIMIT);
    let stops = |stat: &Stat| matches!(stat.state, 'T' | 't') || stat.is_ending();
    while !limit.has_passed() && procfs::thread_stat(pid, pid.leader()).is_ok_and(|stat| !stops(&stat)) {
        std::thread::sleep(STOP_POLL);
    }
}

/// Unmaps the scratch pages. The `syscall` instruction for this call is in the vDSO or in the code of the program.
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
        for state in thread.states.iter().filter(|state| state.kind.facts().stage == stage) {
            restore_state(state, StateRestore { stub, memory, shared, opener })?;
        }
    }
    for state in process.states.iter().filter(|state| state.kind.facts().stage == stage) {
        restore_state(state, StateRestore { stub: &mut threads[0], memory, shared, opener })?;
    }
    Ok(())
}

fn restore_state(state: &PlannedState, mut restore: StateRestore<'_>) -> Result<()> {
    Ok(state.kind.restore(state.version, &state.payload, &mut restore)?)
}

/// Finds a `syscall` instruction in the code of a program without vDSO.
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

/// Moves each thread with an interrupted call to an event stop, where the kernel restarts the call when the thread is
/// resumed. A thread that receives the stop signal of its process stays in its syscall stop, because the kernel
/// discards a signal for an event stop. The kernel restarts calls after the delivery of a signal, too.
fn await_restarts(process: &PlannedProcess, target: &mut BuiltProcess) -> Result<()> {
    let receives_signal = |at| at == 0 && process.message.stop_signal != 0;
    for (at, (stub, thread)) in target.threads.iter_mut().zip(&process.threads).enumerate() {
        let registers = interruption::named(&thread.registers, &target.memory);
        if arch::restarted_by_kernel(&registers).is_some() && !receives_signal(at) {
            stub.reach_event_stop()?;
        }
    }
    Ok(())
}

/// Sets the registers (including the extended state) and the signal mask of each thread of a process. The kernel then
/// restarts interrupted calls, so the threads must be in event stops or receive a signal.
pub(super) fn set_registers(process: &PlannedProcess, memory: &ProcessMemory) -> Result<()> {
    for thread in &process.threads {
        ptrace::set_extended_state(thread.tid, &thread.extended_state)?;
        ptrace::set_signal_mask(thread.tid, thread.signal_mask)?;
        let registers = interruption::named(&thread.registers, memory);
        let registers =
            arch::restarted_by_kernel(&registers).unwrap_or(Registers { orig_rax: u64::MAX, ..registers });
        ptrace::set_registers(thread.tid, &registers)?;
    }
    Ok(())
}

/// Puts a process group of the tree into the foreground of `terminal`, if `terminal` is given, and returns the
/// group. The group is the foreground group of the checkpoint, or else the group of the root. Returns `None` if the
/// program had no terminal, or if its session is not the session of this process. If the change fails, the program
/// stays in the background.
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

/// Returns a living process of the recorded foreground group, or else the root. The id of the group can be
/// different now: a group whose leader is outside the tree is replaced by the group of the restoring process.
fn foreground_member(plan: &Plan) -> Option<Pid> {
    let root = &plan.processes[0];
    let foreground = root.message.foreground?;
    let is_in_it =
        |message: &ProcessMessage| message.group == foreground && message.session == root.message.session;
    let found = plan.living().find(|process| is_in_it(&process.message));
    Some(found.unwrap_or(root).pid)
}
