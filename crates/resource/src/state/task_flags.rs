//! Tests that each prctl(2) option and each clone(2) flag in the kernel's headers has a verdict.
//!
//! A verdict says what a checkpoint does with the state behind a name.
//!
//! Owns: the verdict for each name, and the tests.
//! Does not: save state; the kinds do.

use crate::support::kernel_headers::Verdict::{Action, Derived, Ignored, Kept, Lost, Refused, Same, Value};
use crate::support::kernel_headers::{Verdict, definitions, judge};

const PRCTL: &str = "crates/resource/src/state/prctl.rs";
const CREDENTIALS: &str = "crates/resource/src/state/credentials.rs";
const LAYOUT: &str = "crates/engine/src/restore/layout.rs";
const SHARING: &str = "crates/engine/src/sharing.rs";
const NAMESPACE: Verdict = Refused("refuse_namespace");

/// Options of prctl(2), up to Linux 6.18. Options of other architectures are ignored.
const OPTIONS: &[(&str, Verdict)] = &[
    ("PR_SET_PDEATHSIG", Kept(PRCTL)),
    ("PR_GET_PDEATHSIG", Kept(PRCTL)),
    ("PR_GET_DUMPABLE", Kept(PRCTL)),
    ("PR_SET_DUMPABLE", Kept(PRCTL)),
    ("PR_GET_UNALIGN", Ignored),
    ("PR_SET_UNALIGN", Ignored),
    ("PR_GET_KEEPCAPS", Same("PR_SET_SECUREBITS")),
    ("PR_SET_KEEPCAPS", Same("PR_SET_SECUREBITS")),
    ("PR_GET_FP*", Ignored),
    ("PR_SET_FP*", Ignored),
    ("PR_GET_TIMING", Ignored),
    ("PR_SET_TIMING", Ignored),
    ("PR_SET_NAME", Kept("crates/resource/src/state/thread_name.rs")),
    ("PR_GET_NAME", Same("PR_SET_NAME")),
    ("PR_GET_ENDIAN", Ignored),
    ("PR_SET_ENDIAN", Ignored),
    ("PR_GET_SECCOMP", Same("PR_SET_SECCOMP")),
    ("PR_SET_SECCOMP", Kept("crates/resource/src/state/seccomp.rs")),
    ("PR_CAPBSET_READ", Same("PR_CAPBSET_DROP")),
    ("PR_CAPBSET_DROP", Kept(CREDENTIALS)),
    ("PR_GET_TSC", Kept(PRCTL)),
    ("PR_SET_TSC", Kept(PRCTL)),
    ("PR_GET_SECUREBITS", Same("PR_SET_SECUREBITS")),
    ("PR_SET_SECUREBITS", Kept(CREDENTIALS)),
    ("PR_SET_TIMERSLACK", Kept("crates/resource/src/state/scheduling.rs")),
    ("PR_GET_TIMERSLACK", Same("PR_SET_TIMERSLACK")),
    ("PR_TASK_PERF_EVENTS_*", Refused("refuse_perf_event")),
    ("PR_MCE_KILL", Kept(PRCTL)),
    ("PR_MCE_KILL_GET", Kept(PRCTL)),
    ("PR_SET_MM", Kept(LAYOUT)),
    ("PR_SET_PTRACER", Lost("PR_SET_PTRACER")),
    ("PR_SET_CHILD_SUBREAPER", Kept(PRCTL)),
    ("PR_GET_CHILD_SUBREAPER", Kept(PRCTL)),
    ("PR_SET_NO_NEW_PRIVS", Kept(PRCTL)),
    ("PR_GET_NO_NEW_PRIVS", Same("PR_SET_NO_NEW_PRIVS")),
    ("PR_GET_TID_ADDRESS", Kept("crates/resource/src/state/tid_address.rs")),
    ("PR_SET_THP_DISABLE", Kept(PRCTL)),
    ("PR_GET_THP_DISABLE", Same("PR_SET_THP_DISABLE")),
    ("PR_THP_DISABLE_EXCEPT_ADVISED", Lost("PR_THP_DISABLE_EXCEPT_ADVISED")),
    ("PR_MPX_*", Ignored),
    ("PR_CAP_AMBIENT", Kept(CREDENTIALS)),
    ("PR_SVE_*", Ignored),
    ("PR_SME_*", Ignored),
    ("PR_GET_SPECULATION_CTRL", Same("PR_SET_SPECULATION_CTRL")),
    ("PR_SET_SPECULATION_CTRL", Kept(PRCTL)),
    ("PR_SPEC_L1D_FLUSH", Lost("PR_SPEC_L1D_FLUSH")),
    ("PR_PAC_*", Ignored),
    ("PR_SET_TAGGED_ADDR_CTRL", Ignored),
    ("PR_GET_TAGGED_ADDR_CTRL", Ignored),
    ("PR_SET_IO_FLUSHER", Lost("PR_SET_IO_FLUSHER")),
    ("PR_GET_IO_FLUSHER", Same("PR_SET_IO_FLUSHER")),
    ("PR_SET_SYSCALL_USER_DISPATCH", Lost("syscall user dispatch")),
    ("PR_SCHED_CORE", Lost("a core scheduling cookie")),
    ("PR_SET_MDWE", Kept(PRCTL)),
    ("PR_GET_MDWE", Kept(PRCTL)),
    ("PR_SET_VMA", Kept(LAYOUT)),
    ("PR_GET_AUXV", Derived),
    ("PR_SET_MEMORY_MERGE", Kept(PRCTL)),
    ("PR_GET_MEMORY_MERGE", Kept(PRCTL)),
    ("PR_RISCV_*", Ignored),
    ("PR_PPC_*", Ignored),
    // On x86, arch_prctl(2) controls shadow stacks.
    ("PR_GET_SHADOW_STACK_STATUS", Ignored),
    ("PR_SET_SHADOW_STACK_STATUS", Ignored),
    ("PR_LOCK_SHADOW_STACK_STATUS", Ignored),
    ("PR_SHADOW_STACK_*", Value),
    ("PR_TIMER_CREATE_RESTORE_IDS", Kept("crates/resource/src/state/posix_timers/create.rs")),
    ("PR_FUTEX_HASH", Lost("PR_FUTEX_HASH")),
    ("PR_FUTEX_HASH_*", Value),
    ("PR_RSEQ_SLICE_EXTENSION", Lost("PR_RSEQ_SLICE_EXTENSION")),
];

/// Flags of clone(2), up to Linux 6.18.
const CLONE_FLAGS: &[(&str, Verdict)] = &[
    // Threads of one process share these objects. A checkpoint is refused if two processes share such an object, or if
    // two threads of a process do not share such an object.
    ("CLONE_VM", Refused(SHARING)),
    ("CLONE_FS", Refused(SHARING)),
    ("CLONE_FILES", Refused(SHARING)),
    // The kernel requires CLONE_VM with CLONE_SIGHAND, and CLONE_SIGHAND with CLONE_THREAD.
    ("CLONE_SIGHAND", Same("CLONE_VM")),
    ("CLONE_THREAD", Kept("crates/engine/src/restore/tree.rs")),
    ("CLONE_PTRACE", Refused("refuse_ptraced_child")),
    ("CLONE_UNTRACED", Action),
    ("CLONE_VFORK", Refused("refuse_vfork_child")),
    ("CLONE_PARENT", Kept("crates/engine/src/restore/tree.rs")),
    ("CLONE_PIDFD", Action),
    ("CLONE_DETACHED", Ignored),
    ("CLONE_SYSVSEM", Lost("`CLONE_SYSVSEM`")),
    ("CLONE_IO", Lost("`CLONE_IO`")),
    ("CLONE_SETTLS", Derived),
    ("CLONE_PARENT_SETTID", Action),
    ("CLONE_CHILD_SETTID", Action),
    ("CLONE_CHILD_CLEARTID", Same("CLONE_THREAD")),
    ("CLONE_NEW*", NAMESPACE),
    ("CLONE_CLEAR_SIGHAND", Action),
    ("CLONE_INTO_CGROUP", Action),
    ("CLONE_ARGS_*", Value),
];

#[test]
fn every_option_of_prctl_has_a_verdict() {
    let Some(found) = definitions("linux/prctl.h", &["PR_"]) else {
        return println!("unsupported: kernel headers");
    };
    let names = found.iter().filter(|one| !one.is_nested).map(|one| one.name.as_str());
    judge(names, |_| false, OPTIONS);
}

#[test]
fn every_flag_of_clone_has_a_verdict() {
    let Some(found) = definitions("linux/sched.h", &["CLONE_"]) else {
        return println!("unsupported: kernel headers");
    };
    judge(found.iter().map(|one| one.name.as_str()), |_| false, CLONE_FLAGS);
}
