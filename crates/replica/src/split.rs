//! Starts a program, and splits it into replicas before its first instruction.
//!
//! The program is executed once. At its entry point, clone(2) without CLONE_VM copies the process. So all replicas have
//! the same layout, stack and random bytes, also with address space randomization. With CLONE_FILES and CLONE_FS, they
//! have one descriptor table and one working directory: a call that one of them executes affects all.
//!
//! Owns: the start, the traps for system calls and RDTSC, and the removal of the vDSO.
//! Invariants: the replicas are equal when this module returns them. If this process ends, the kernel kills them.
//! Does not: choose processors for the replicas.

use std::process::Command;

use model::{Address, ByteCount, Pid, Signal};
use sys::call_trap;
use sys::held_start::hold_before_exec;
use sys::ptrace::{self, CallPhase, Options, Registers, Stop, WaitStatus};
use tracee::arch::numbers as nr;
use tracee::procfs::{self, Backing};

use crate::error::{ReplicaError, Result};
use crate::remote::EntryCalls;
use crate::replicas::Replica;

const OPTIONS: Options = Options::SYSCALL_GOOD
    .with(Options::SECCOMP)
    .with(Options::EXEC)
    .with(Options::FORK)
    .with(Options::CLONE)
    .with(Options::VFORK)
    .with(Options::EXIT_KILL);

/// ECANCELED: the child was not told to execute the program.
const PREVENTED: i32 = 125;
/// clone(2).
const CLONE: i64 = 56;
/// CLONE_FS, CLONE_FILES, CLONE_PARENT, and SIGCHLD as the signal at the end.
const SPLIT_FLAGS: u64 = 0x200 | 0x400 | 0x8000 | 17;
/// Entries of the auxiliary vector: the address of the vDSO, and an entry without a meaning.
const AT_SYSINFO_EHDR: u64 = 33;
const AT_IGNORE: u64 = 1;
/// Bytes below the stack pointer that no function uses, not even a leaf function (the red zone has 128).
const BELOW_STACK: u64 = 1024;
/// Largest number of words above the stack pointer: arguments, environment and auxiliary vector.
const WORDS_MAX: u64 = 1 << 20;

/// Kills processes that are not handed over as replicas.
struct Unfinished(Vec<Pid>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        for pid in &self.0 {
            // An error means that the process has ended.
            let _ = sys::signal::send(*pid, Signal(9));
            while let Ok(WaitStatus::Stopped(_)) = ptrace::wait(pid.leader()) {
                let _ = ptrace::resume(pid.leader(), None);
            }
        }
    }
}

/// Starts the program of a command as `count` replicas. All are stopped at the entry point, and traced by this thread.
pub(crate) fn start(mut command: Command, count: usize) -> Result<Vec<Replica>> {
    let mut held = hold_before_exec(&mut command)?;
    let starter = std::thread::spawn(move || command.spawn());
    let executed = held.pid().map_err(ReplicaError::from).and_then(|pid| {
        ptrace::seize(pid.leader(), OPTIONS)?;
        held.start()?;
        Ok((pid, at_entry(pid)?))
    });
    // The result of `spawn` has the reason why the program could not be executed, unless this process has prevented it.
    let (pid, registers) = match (starter.join(), executed) {
        (Ok(Err(error)), _) if error.raw_os_error() != Some(PREVENTED) => {
            return Err(ReplicaError::Start(error));
        }
        (_, executed) => executed?,
    };
    let mut unfinished = Unfinished(vec![pid]);
    let replicas = split(pid, &registers, count, &mut unfinished)?;
    unfinished.0.clear();
    Ok(replicas)
}

/// Copies a process that is stopped at its entry point.
fn split(pid: Pid, registers: &Registers, count: usize, unfinished: &mut Unfinished) -> Result<Vec<Replica>> {
    let first = Replica::new(pid)?;
    hide_vdso(&first, registers)?;
    let calls = EntryCalls::begin(&first, *registers)?;
    remove_vdso(&calls, pid)?;
    set_traps(&calls, &first, registers)?;
    let mut others = Vec::new();
    for _ in 1..count {
        let (_, created) = calls.call("clone", CLONE, &[SPLIT_FLAGS])?;
        let created = created.ok_or_else(|| ReplicaError::Unexpected("clone without a report".to_owned()))?;
        unfinished.0.push(Pid(created));
        match ptrace::wait(Pid(created).leader())? {
            WaitStatus::Stopped(_) => others.push(Replica::new(Pid(created))?),
            ended => return Err(ReplicaError::Unexpected(format!("{ended:?} of a new replica"))),
        }
    }
    others.iter().try_for_each(|replica| calls.restore(replica))?;
    calls.restore(&first)?;
    Ok(std::iter::once(first).chain(others).collect())
}

/// Lets a process run to the first instruction of its program. Returns the registers there.
fn at_entry(pid: Pid) -> Result<Registers> {
    let tid = pid.leader();
    let mut has_executed = false;
    loop {
        let Some(status) = ptrace::await_change(tid)? else { continue };
        if let WaitStatus::Stopped(_) = status {
            ptrace::wait(tid)?;
        }
        match status {
            WaitStatus::Stopped(Stop::Exec) => {
                has_executed = true;
                ptrace::resume_to_syscall(tid, None)?;
            }
            WaitStatus::Stopped(Stop::Syscall) if has_executed => {
                if matches!(ptrace::call_phase(tid)?, CallPhase::Exit(_)) {
                    return Ok(Registers { orig_rax: u64::MAX, ..ptrace::registers(tid)? });
                }
                ptrace::resume_to_syscall(tid, None)?;
            }
            WaitStatus::Stopped(stop) if has_executed => ptrace::resume_to_syscall(tid, stop.carried())?,
            WaitStatus::Stopped(stop) => ptrace::resume(tid, stop.carried())?,
            // The thread that has started the child reaps it.
            ended => return Err(ReplicaError::Unexpected(format!("{ended:?} before the program"))),
        }
    }
}

/// Changes the entry of the auxiliary vector that leads to the vDSO. Its functions read clocks without a system call.
fn hide_vdso(replica: &Replica, registers: &Registers) -> Result<()> {
    let word = |place: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        replica.memory.read(Address(registers.rsp + 8 * place), &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    // The number of arguments, the arguments and a zero, the environment and a zero.
    let mut place = word(0)? + 2;
    while place < WORDS_MAX && word(place)? != 0 {
        place += 1;
    }
    place += 1;
    while place < WORDS_MAX && word(place)? != 0 {
        if word(place)? == AT_SYSINFO_EHDR {
            replica.memory.write(Address(registers.rsp + 8 * place), &AT_IGNORE.to_ne_bytes())?;
        }
        place += 2;
    }
    Ok(())
}

/// Unmaps the vDSO and its data.
fn remove_vdso(calls: &EntryCalls<'_>, pid: Pid) -> Result<()> {
    for mapping in procfs::mappings(pid)? {
        // vsyscall is no mapping, and cannot be unmapped.
        if matches!(mapping.backing, Backing::Kernel(_)) && mapping.name != "[vsyscall]" {
            let (start, length) = (mapping.range.start.get(), mapping.range.len().get());
            calls.call("munmap", nr::MUNMAP, &[start, length])?;
        }
    }
    Ok(())
}

/// Makes each system call and each RDTSC stop at the tracer.
fn set_traps(calls: &EntryCalls<'_>, replica: &Replica, registers: &Registers) -> Result<()> {
    calls.call("prctl", nr::PRCTL, &call_trap::TRAP_TIME_STAMP)?;
    calls.call("prctl", nr::PRCTL, &call_trap::NO_NEW_RIGHTS)?;
    let program = call_trap::program();
    let at = Address(registers.rsp - BELOW_STACK);
    let bytes = [call_trap::program_at(at + ByteCount(16)), program].concat();
    let before = replica.memory.read_vec(at, ByteCount(bytes.len() as u64))?;
    replica.memory.write(at, &bytes)?;
    calls.call("seccomp", nr::SECCOMP, &[call_trap::SET_FILTER, 0, at.get()])?;
    Ok(replica.memory.write(at, &before)?)
}
