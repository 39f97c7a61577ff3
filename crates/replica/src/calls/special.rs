//! System calls whose rule depends on their arguments, and calls that are refused with a reason of their own.
//!
//! Owns: one function for each such call.
//! Does not: read the memory of a program: rules depend only on numbers.

use super::Class::{Local, Nobody, Output, Query};
use super::Length::Fixed;
use super::Part::Bytes;
use super::Verdict::{Decided, Refused};
use super::{Arguments, Rule, SHARED, SpecialRow, Verdict};

const PROCESSES: &str =
    "replicated execution of programs with several processes or threads is not supported yet";
const TIMERS: &str = "replicated execution does not support interval timers yet";
const FILTERS: &str = "a filter of the program would also apply to calls of undying";
const TRACING: &str = "a replica is traced already";

const fn special(number: i64, name: &'static str, decide: fn(&Arguments) -> Verdict) -> SpecialRow {
    SpecialRow { number, name, decide }
}

pub(super) const SPECIAL: &[SpecialRow] = &[
    special(9, "mmap", mmap),
    special(10, "mprotect", mprotect),
    special(16, "ioctl", ioctl),
    special(28, "madvise", madvise),
    special(37, "alarm", |_| Refused(TIMERS)),
    special(38, "setitimer", |_| Refused(TIMERS)),
    special(56, "clone", |_| Refused(PROCESSES)),
    special(57, "fork", |_| Refused(PROCESSES)),
    special(58, "vfork", |_| Refused(PROCESSES)),
    special(59, "execve", |_| Refused(PROCESSES)),
    special(72, "fcntl", fcntl),
    special(101, "ptrace", |_| Refused(TRACING)),
    special(157, "prctl", prctl),
    special(158, "arch_prctl", arch_prctl),
    special(202, "futex", futex),
    special(222, "timer_create", |_| Refused(TIMERS)),
    special(302, "prlimit64", prlimit),
    special(317, "seccomp", |_| Refused(FILTERS)),
    special(322, "execveat", |_| Refused(PROCESSES)),
    special(435, "clone3", |_| Refused(PROCESSES)),
    special(436, "close_range", close_range),
];

const MAP_SHARED: u64 = 0x01;
const MAP_SHARED_VALIDATE: u64 = 0x03;
const MAP_TYPE: u64 = 0x0f;
const PROT_WRITE: u64 = 0x2;

fn mmap(arguments: &Arguments) -> Verdict {
    let (protection, flags) = (arguments[2], arguments[3]);
    let is_shared = [MAP_SHARED, MAP_SHARED_VALIDATE].contains(&(flags & MAP_TYPE));
    if is_shared && protection & PROT_WRITE != 0 {
        return Refused(SHARED);
    }
    Decided(Rule::plain(Local))
}

/// A shared mapping that was created without the right to write can get it later.
fn mprotect(arguments: &Arguments) -> Verdict {
    let makes_writable = arguments[2] & PROT_WRITE != 0;
    Decided(Rule { makes_writable, ..Rule::plain(Local) })
}

/// Advice whose effect comes at a time that the kernel chooses, or that damages pages.
const MADV_FREE: u64 = 8;
const EINVAL: i64 = 22;
const MADV_HWPOISON: u64 = 100;
const MADV_SOFT_OFFLINE: u64 = 101;

fn madvise(arguments: &Arguments) -> Verdict {
    match arguments[2] {
        // Allocators do without it.
        MADV_FREE => Decided(Rule::plain(Nobody(-EINVAL))),
        MADV_HWPOISON | MADV_SOFT_OFFLINE => Refused("the advice damages memory of the machine"),
        _ => Decided(Rule::plain(Local)),
    }
}

/// Requests that return a structure of this length.
const READS: [(u64, &[super::Part]); 7] = [
    (0x5401, &[Bytes(2, Fixed(36))]),      // TCGETS
    (0x802c_542a, &[Bytes(2, Fixed(44))]), // TCGETS2
    (0x540f, &[Bytes(2, Fixed(4))]),       // TIOCGPGRP
    (0x5413, &[Bytes(2, Fixed(8))]),       // TIOCGWINSZ
    (0x541b, &[Bytes(2, Fixed(4))]),       // FIONREAD
    (0x8008_6601, &[Bytes(2, Fixed(4))]),  // FS_IOC_GETFLAGS
    (0x8008_7601, &[Bytes(2, Fixed(4))]),  // FS_IOC_GETVERSION
];
/// FICLONE, FIONCLEX and FIOCLEX take no pointer. FIONBIO reads four bytes.
const WRITES: [(u64, &[super::Part]); 4] =
    [(0x4004_9409, &[]), (0x5450, &[]), (0x5451, &[]), (0x5421, &[Bytes(2, Fixed(4))])];

fn ioctl(arguments: &Arguments) -> Verdict {
    if let Some((_, outputs)) = READS.iter().find(|(request, _)| *request == arguments[1]) {
        return Decided(Rule { outputs, ..Rule::plain(Query) });
    }
    match WRITES.iter().find(|(request, _)| *request == arguments[1]) {
        Some((_, inputs)) => Decided(Rule { inputs, ..Rule::plain(Output) }),
        None => Refused("replicated execution does not support this request yet"),
    }
}

fn fcntl(arguments: &Arguments) -> Verdict {
    const GETS: [u64; 6] = [1, 3, 9, 11, 1032, 1034]; // F_GETFD, F_GETFL, F_GETOWN, F_GETSIG, F_GETPIPE_SZ, F_GET_SEALS
    const SETS: [u64; 6] = [0, 2, 4, 1030, 1031, 1033]; // F_DUPFD, F_SETFD, F_SETFL, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_ADD_SEALS
    const LOCKS: [u64; 6] = [5, 6, 7, 36, 37, 38]; // F_GETLK, F_SETLK, F_SETLKW, and those of descriptions
    match arguments[1] {
        command if GETS.contains(&command) => Decided(Rule::plain(Query)),
        command if SETS.contains(&command) => Decided(Rule::plain(Output)),
        command if LOCKS.contains(&command) => {
            const LOCK: &[super::Part] = &[Bytes(2, Fixed(32))];
            Decided(Rule { inputs: LOCK, outputs: LOCK, ..Rule::plain(Output) })
        }
        _ => Refused("replicated execution does not support this command yet"),
    }
}

fn prctl(arguments: &Arguments) -> Verdict {
    /// PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_TIMERSLACK,
    /// PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, PR_SET_THP_DISABLE, PR_CAPBSET_READ, PR_SET_VMA.
    const LOCAL: [u64; 11] = [1, 3, 4, 15, 16, 29, 38, 39, 41, 23, 0x5356_4d41];
    if LOCAL.contains(&arguments[0]) {
        return Decided(Rule::plain(Local));
    }
    Refused("replicated execution does not support this operation yet")
}

fn arch_prctl(arguments: &Arguments) -> Verdict {
    /// ARCH_SET_CPUID: CPUID is not controlled yet.
    const SET_CPUID: u64 = 0x1012;
    if arguments[0] == SET_CPUID {
        return Refused("replicated execution does not support this operation yet");
    }
    Decided(Rule::plain(Local))
}

/// A program with one thread wakes no thread, and waits only by mistake or with a time limit.
fn futex(arguments: &Arguments) -> Verdict {
    const COMMAND: u64 = 0x7f;
    const WAKES: [u64; 3] = [1, 5, 10]; // FUTEX_WAKE, FUTEX_WAKE_OP, FUTEX_WAKE_BITSET
    if WAKES.contains(&(arguments[1] & COMMAND)) {
        return Decided(Rule::plain(Local));
    }
    Refused(PROCESSES)
}

fn close_range(arguments: &Arguments) -> Verdict {
    const UNSHARE: u64 = 2;
    if arguments[2] & UNSHARE != 0 {
        return Refused("the leader would get a descriptor table of its own");
    }
    Decided(Rule::plain(Output))
}

fn prlimit(arguments: &Arguments) -> Verdict {
    if arguments[2] != 0 {
        return Refused("replicated execution does not support changed limits yet");
    }
    Decided(Rule { outputs: &[Bytes(3, Fixed(16))], ..Rule::plain(Query) })
}
