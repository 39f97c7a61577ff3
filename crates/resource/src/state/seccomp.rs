//! Saves and restores the seccomp mode and the seccomp filters of a thread.
//!
//! The program `undying` may itself install a filter in a thread of the subject, to watch file operations. This *watch
//! filter* is then the oldest filter of the thread. The watch filter is not part of the saved state. If a restore
//! watches files, the watch filter is installed before this module restores the other filters.
//!
//! While a stub is stopped, its filters are suspended.
//!
//! Owns: strict mode, and the filters of a thread in installation order.
//! Invariants: if a mode or a filter cannot be saved or restored, the checkpoint or the restore fails. Filters that
//! all threads of a process share are installed once for all threads (TSYNC). Without TSYNC, the threads would have
//! different copies, and a TSYNC of the restored program would fail. A filter that only some threads have is
//! installed in each of these threads. Filters are restored before credentials, because the change of credentials may
//! remove the privilege to install filters.
//! Does not: restore filters with SECCOMP_RET_USER_NOTIF, or SECCOMP_FILTER_FLAG_SPEC_ALLOW.

use model::{Address, Pid, Tid};
use prost::Message;
use rustix::thread::{CapabilitySet, SecureComputingMode, secure_computing_mode};
use sys::seccomp;
use tracee::arch::numbers as nr;
use tracee::procfs;

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "state/seccomp";

const STRICT: u32 = 1;
const FILTERS: u32 = 2;
const PR_SET_SECCOMP: u64 = 22;
/// SECCOMP_SET_MODE_FILTER.
const SET_FILTER: u64 = 1;
/// SECCOMP_FILTER_FLAG_TSYNC.
const FLAG_ALL_THREADS: u64 = 1;
/// BPF_RET | BPF_K.
const RETURN_CONSTANT: u16 = 6;
/// SECCOMP_RET_USER_NOTIF.
const RETURN_NOTIFY: u32 = 0x7fc0_0000;
/// SECCOMP_RET_ACTION_FULL, the bits of the action in the return value of a filter.
const RETURN_ACTION: u32 = 0xffff_0000;
/// The number of bytes of `struct sock_fprog`, which contains the number of instructions and their address.
const PROGRAM_BYTES: usize = 16;
const PROT_READ_WRITE: u64 = 3;
const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;

/// The name of the line with the number of filters in a status file (Linux 5.9 and later).
const FILTER_COUNT: &str = "Seccomp_filters";

const WHAT: &str = "seccomp sandbox";

/// The state kind of seccomp.
pub(super) struct Seccomp;

#[derive(Clone, PartialEq, Message)]
struct SeccompMessage {
    /// The mode: 1 for strict mode, 2 for filters.
    #[prost(uint32, tag = "1")]
    mode: u32,
    /// The filters without the watch filter, oldest first.
    #[prost(message, repeated, tag = "2")]
    filters: Vec<FilterMessage>,
    /// The number of filters that every thread of the process has. These are the first elements of `filters`. Set
    /// only in the record of the thread group leader.
    #[prost(uint32, tag = "3")]
    common: u32,
}

#[derive(Clone, PartialEq, Message)]
struct FilterMessage {
    /// The SECCOMP_FILTER_FLAG_* bits.
    #[prost(uint64, tag = "1")]
    flags: u64,
    /// Classic BPF instructions in the kernel's layout.
    #[prost(bytes = "vec", tag = "2")]
    code: Vec<u8>,
}

impl StateKind for Seccomp {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Thread, stage: Stage::Credentials }
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        // The rights are checked first, because a process can have thousands of threads.
        let Err((why, fix)) = may_lift() else { return Vec::new() };
        let threads = procfs::threads(pid).unwrap_or_default();
        let confined = threads
            .into_iter()
            .find(|tid| procfs::thread_status(pid, *tid).is_ok_and(|status| status.seccomp != 0));
        let Some(tid) = confined else { return Vec::new() };
        let place = format!("thread {tid}");
        vec![Obstacle { pid, what: WHAT.to_owned(), place, why: why.to_owned(), fix: fix.to_owned() }]
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let (pid, tid) = (capture.pid, capture.tid);
        let mode = mode_of(capture.file("status")?);
        if mode == 0 {
            return Ok(());
        }
        let mut message = SeccompMessage { mode, ..SeccompMessage::default() };
        match mode {
            // A remote call is a system call that the stopped thread executes for this program. In strict mode, a
            // remote call kills the thread, unless seccomp can be suspended. This check comes before all remote
            // calls.
            STRICT => require_lift(pid)?,
            FILTERS => {
                // Reading a filter needs the same privilege as suspending a filter.
                let own = own_filters(tid).or_else(|error| require_lift(pid).and(Err(error)))?;
                let count = number(capture.file("status")?, FILTER_COUNT);
                // If files are watched, most threads have only the watch filter. No filter is then read.
                message.filters = if count == Some(own) { Vec::new() } else { filters_of(pid, tid, own)? };
                if message.filters.is_empty() {
                    return Ok(());
                }
                if tid == pid.leader() {
                    message.common = common_to_all(pid, &message.filters)? as u32;
                }
            }
            _ => {
                return Err(unsupported(
                    pid,
                    "its seccomp mode is unknown",
                    "wait until its thread has ended",
                ));
            }
        }
        raw.extend(message.encode_to_vec());
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((!raw.is_empty()).then(|| raw.to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let message: SeccompMessage = crate::error::decode(NAME, payload)?;
        if ![STRICT, FILTERS].contains(&message.mode) {
            return Err(malformed("its seccomp mode is unknown"));
        }
        message.filters.iter().try_for_each(|filter| instructions(filter).map(drop))
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: SeccompMessage = crate::error::decode(NAME, payload)?;
        let (pid, tid) = (restore.stub.pid(), restore.stub.tid());
        require_lift(pid)?;
        restore.stub.suspend_seccomp()?;
        if message.mode == STRICT {
            if own_filters(tid)? != 0 {
                let fix = "restore it with --files keep, which does not watch files";
                return Err(unsupported(
                    pid,
                    "file operations of a program in strict mode cannot be watched",
                    fix,
                ));
            }
            restore.stub.call(nr::PRCTL, [PR_SET_SECCOMP, u64::from(STRICT), 0, 0, 0, 0])?;
            return Ok(());
        }
        if message.mode != FILTERS {
            return Err(malformed("its seccomp mode is unknown"));
        }
        let installed = installed_on(pid, tid)?;
        for (index, filter) in message.filters.iter().enumerate().skip(installed) {
            let all = if index < message.common as usize { FLAG_ALL_THREADS } else { 0 };
            install(restore, filter, all)?;
        }
        Ok(())
    }
}

/// Checks that this process may read and suspend filters. If not, returns the reason and the fix.
fn may_lift() -> std::result::Result<(), (&'static str, &'static str)> {
    const FIX: &str = "run undying as root with CAP_SYS_ADMIN, outside of any sandbox";
    let sets = rustix::thread::capabilities(None);
    if !sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
        Err(("reading and suspending filters needs CAP_SYS_ADMIN", FIX))
    } else if secure_computing_mode() != Ok(SecureComputingMode::Disabled) {
        Err(("a program that runs under seccomp itself cannot read filters", FIX))
    } else {
        Ok(())
    }
}

fn require_lift(pid: Pid) -> Result<()> {
    may_lift().map_err(|(why, fix)| unsupported(pid, why, fix))
}

fn unsupported(pid: Pid, why: &str, fix: &str) -> ResourceError {
    let (what, why, fix) = (WHAT.to_owned(), why.to_owned(), fix.to_owned());
    ResourceError::Unsupported { pid, what, why, fix }
}

fn malformed(why: &str) -> ResourceError {
    ResourceError::Malformed { kind: NAME, why: why.to_owned() }
}

/// Returns the seccomp mode in a status file. Returns 0 if the thread does not use seccomp, or if the kernel is built
/// without seccomp.
fn mode_of(status: &[u8]) -> u32 {
    number(status, "Seccomp").unwrap_or(0)
}

fn number(status: &[u8], name: &str) -> Option<u32> {
    procfs::status_line(status, name)?.parse().ok()
}

/// Returns the number of watch filters of a stopped thread: 0 or 1.
fn own_filters(tid: Tid) -> Result<u32> {
    Ok(u32::from(seccomp::is_watched(tid)?))
}

/// Returns all filters of a stopped thread without the watch filter, oldest first. `own` is the number of watch
/// filters of the thread.
fn filters_of(pid: Pid, tid: Tid, own: u32) -> Result<Vec<FilterMessage>> {
    let mut filters = Vec::new();
    while let Some(code) = seccomp::filter(tid, own as usize + filters.len())? {
        if notifies(&code) {
            let fix = "run the program without the supervisor that answers its system calls";
            return Err(unsupported(
                pid,
                "a filter notifies a supervisor (SECCOMP_RET_USER_NOTIF), which cannot be restored",
                fix,
            ));
        }
        let flags = seccomp::filter_flags(tid, own as usize + filters.len())?;
        filters.push(FilterMessage { flags, code });
    }
    Ok(filters)
}

/// Reports whether a filter contains SECCOMP_RET_USER_NOTIF.
fn notifies(code: &[u8]) -> bool {
    code.chunks_exact(seccomp::INSTRUCTION_BYTES).any(|instruction| {
        let operation = u16::from_ne_bytes([instruction[0], instruction[1]]);
        let constant = u32::from_ne_bytes([instruction[4], instruction[5], instruction[6], instruction[7]]);
        operation == RETURN_CONSTANT && constant & RETURN_ACTION == RETURN_NOTIFY
    })
}

/// Returns the number of filters that all threads of the process have. These are the first elements of `leader`, the
/// filters of the thread group leader.
fn common_to_all(pid: Pid, leader: &[FilterMessage]) -> Result<usize> {
    let mut common = leader.len();
    for tid in procfs::threads(pid)?.into_iter().filter(|tid| *tid != pid.leader()) {
        let status = procfs::read(format!("/proc/{pid}/task/{tid}/status"))?;
        let filters = match mode_of(&status) {
            FILTERS => filters_of(pid, tid, own_filters(tid)?)?,
            _ => Vec::new(),
        };
        common = leader[..common].iter().zip(&filters).take_while(|(one, other)| one == other).count();
    }
    Ok(common)
}

/// Returns the number of filters that a stub already has, without the watch filter. The stub has these filters
/// because its leader has installed them for all threads. Before Linux 5.9, the kernel does not report the number of
/// filters. A thread without seccomp is recognized by its mode 0, and a thread with filters is an error.
fn installed_on(pid: Pid, tid: Tid) -> Result<usize> {
    let status = procfs::read(format!("/proc/{pid}/task/{tid}/status"))?;
    match (mode_of(&status), number(&status, FILTER_COUNT)) {
        (0, _) => Ok(0),
        (_, Some(count)) => Ok((count.saturating_sub(own_filters(tid)?)) as usize),
        (_, None) => {
            let fix = "use Linux 5.9 or later";
            Err(unsupported(pid, "this kernel does not show how many filters a thread has", fix))
        }
    }
}

/// Returns the number of instructions of a filter.
fn instructions(filter: &FilterMessage) -> Result<u16> {
    u16::try_from(filter.code.len() / seccomp::INSTRUCTION_BYTES)
        .map_err(|_| malformed("a filter is too long"))
}

fn install(restore: &mut StateRestore<'_>, filter: &FilterMessage, flags: u64) -> Result<()> {
    let count = instructions(filter)?;
    let mut bytes = vec![0_u8; PROGRAM_BYTES];
    bytes.extend_from_slice(&filter.code);
    let length = bytes.len() as u64;
    let data = restore.stub.data();
    // A filter that is longer than the data buffer of the stub needs a separate mapping.
    let extra = length > data.len().get();
    let at = if extra {
        let call = [0, length, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, u64::MAX, 0];
        Address(restore.stub.call(nr::MMAP, call)?)
    } else {
        data.start
    };
    bytes[..2].copy_from_slice(&count.to_ne_bytes());
    bytes[8..PROGRAM_BYTES].copy_from_slice(&(at.get() + PROGRAM_BYTES as u64).to_ne_bytes());
    restore.memory.write(at, &bytes)?;
    let conflicting =
        restore.stub.call(nr::SECCOMP, [SET_FILTER, filter.flags | flags, at.get(), 0, 0, 0])?;
    if conflicting != 0 {
        return Err(malformed("a filter of all threads conflicts with the filters of one thread"));
    }
    if extra {
        restore.stub.call(nr::MUNMAP, [at.get(), length, 0, 0, 0, 0])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(operation: u16, constant: u32) -> Vec<u8> {
        let mut bytes = operation.to_ne_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(constant.to_ne_bytes());
        bytes
    }

    #[test]
    fn filters_that_notify_a_supervisor_are_found() {
        let mut code = instruction(0x20, RETURN_NOTIFY);
        code.extend(instruction(RETURN_CONSTANT, 0x7fff_0000));
        assert!(!notifies(&code));
        code.extend(instruction(RETURN_CONSTANT, RETURN_NOTIFY | 3));
        assert!(notifies(&code));
    }
}
