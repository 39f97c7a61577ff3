//! The registry of state kinds, which save and restore state of processes and threads other than memory and
//! descriptors.
//!
//! Owns: the order of the kinds, and the list of files that the kinds read for a thread.
//! Does not: create processes or threads; the engine does.

mod caller;
mod capability;
mod cgroup;
mod control_terminal;
mod credentials;
mod cwd;
mod hold;
mod in_place;
mod itimers;
mod kind;
mod limits;
mod membarrier;
mod posix_timers;
mod prctl;
mod proc_value;
mod record_locks;
pub mod remote_calls;
mod result_cache;
mod robust_list;
mod root;
mod rseq;
mod scheduling;
mod seccomp;
mod sigactions;
mod sigaltstack;
mod sigpending;
#[cfg(test)]
mod task_flags;
mod thread_name;
mod tid_address;

use model::{Pid, Tid};
use sys::task_reader::Field;
use tracee::procfs::KeptFiles;

pub use self::in_place::{InPlace, LivingThread, Renumber};
pub use self::kind::{
    DescriptorText, Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore,
};
pub use self::result_cache::ResultCache;
use crate::error::Result;

/// All state kinds. Within one stage, a restore follows this order.
pub const REGISTRY: &[&dyn StateKind] = &[
    // Seccomp comes before the first remote call, because a filter may forbid a remote call.
    &seccomp::Seccomp,
    &sigactions::Sigactions,
    &sigaltstack::Sigaltstack,
    &tid_address::TidAddress,
    &robust_list::RobustList,
    &rseq::Rseq,
    &thread_name::ThreadName,
    &proc_value::UMASK,
    &cwd::Cwd,
    // Inside another root directory, a process finds no path of this program.
    &root::Root,
    &record_locks::RecordLocks,
    &membarrier::Membarrier,
    &prctl::Prctl,
    // Timers come as late as possible, and pending signals come after timers: a signal of a timer that expires in
    // between must not be lost.
    &posix_timers::PosixTimers,
    &itimers::Itimers,
    &sigpending::Sigpending,
    &cgroup::Cgroup,
    &limits::Limits,
    &proc_value::COREDUMP_FILTER,
    &control_terminal::ControlTerminal,
    &proc_value::PERSONALITY,
    &proc_value::OOM_SCORE,
    &credentials::Credentials,
    &scheduling::Scheduling,
];

/// `FILES` are the files of `/proc` that kinds read for every thread. `LEADER_FILES` are the files that kinds read
/// only for leaders. Other files are opened inside the pause, in which the threads are stopped.
const FILES: [&str; 4] = ["status", "comm", "cgroup", "personality"];
const LEADER_FILES: [&str; 4] = ["limits", "oom_score_adj", "timers", "coredump_filter"];

/// Opens the files that kinds read for a thread. Called before the pause.
pub fn open_files(kept: &mut KeptFiles, pid: Pid, tid: Tid) -> Result<()> {
    let more = if tid == pid.leader() { &LEADER_FILES[..] } else { &[] };
    for name in FILES.iter().chain(more) {
        kept.open(pid, tid, name)?;
    }
    let _ = kept.open(pid, tid, scheduling::SLACK_FILE);
    Ok(())
}

/// Creates the readers that validate cached results. Must not be called in a pause.
pub fn prepare_cache(cache: &mut ResultCache) {
    cache.prepare(&sources(true), &sources(false));
}

fn sources(is_leader: bool) -> Vec<Field> {
    let is_called = |kind: &&&dyn StateKind| is_leader || kind.facts().level == Level::Thread;
    REGISTRY.iter().filter(is_called).filter_map(|kind| kind.sources()).flatten().copied().collect()
}

/// Returns the kind with the given name in records.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static dyn StateKind> {
    REGISTRY.iter().copied().find(|kind| kind.name() == name)
}

#[cfg(test)]
mod tests {
    use super::remote_calls::CallResult;
    use super::*;

    #[test]
    fn posix_timers_and_running_itimers_are_never_cached() {
        let names = |is_some: bool| {
            let kinds = REGISTRY.iter().filter(move |kind| kind.sources().is_some() == is_some);
            kinds.map(|kind| kind.name()).collect::<Vec<_>>()
        };
        let kinds =
            ["credentials", "itimers", "membarrier", "prctl", "sigactions", "sigaltstack", "tid_address"];
        assert!(kinds.iter().all(|kind| names(true).contains(&format!("state/{kind}").as_str())));
        assert!(names(false).contains(&"state/posix_timers"));
        let itimers = kind_named("state/itimers").unwrap();
        assert!(itimers.is_steady(&[CallResult::test(vec![0; 32])]));
        assert!(!itimers.is_steady(&[CallResult::test(vec![0; 32]), CallResult::test(vec![0, 1])]));
    }
}
