//! System call numbers of x86-64 that remote calls use.
//!
//! Owns: the table, from `arch/x86/entry/syscalls/syscall_64.tbl` of Linux.
//! Does not: list calls that are made in our own process.

#![expect(missing_docs, reason = "the names are those of the system calls")]

pub const MMAP: i64 = 9;
pub const MPROTECT: i64 = 10;
pub const MUNMAP: i64 = 11;
pub const RT_SIGACTION: i64 = 13;
pub const MADVISE: i64 = 28;
pub const GETPID: i64 = 39;
pub const EXIT: i64 = 60;
pub const SETPGID: i64 = 109;
pub const SETSID: i64 = 112;
pub const MLOCK2: i64 = 325;
pub const PRCTL: i64 = 157;
pub const ARCH_PRCTL: i64 = 158;
pub const EXIT_GROUP: i64 = 231;
pub const OPENAT: i64 = 257;
pub const DUP3: i64 = 292;
pub const CLOSE: i64 = 3;
pub const CLOSE_RANGE: i64 = 436;
pub const CLONE3: i64 = 435;
pub const POLL: i64 = 7;
pub const NANOSLEEP: i64 = 35;
pub const FUTEX: i64 = 202;
pub const RESTART_SYSCALL: i64 = 219;
pub const CLOCK_NANOSLEEP: i64 = 230;
pub const SIGALTSTACK: i64 = 131;
pub const RSEQ: i64 = 334;
pub const SET_ROBUST_LIST: i64 = 273;
pub const SET_TID_ADDRESS: i64 = 218;
pub const UMASK: i64 = 95;
pub const CHDIR: i64 = 80;
pub const MEMBARRIER: i64 = 324;
pub const PERSONALITY: i64 = 135;
pub const SETGROUPS: i64 = 116;
pub const SETRESUID: i64 = 117;
pub const SETRESGID: i64 = 119;
pub const SETFSUID: i64 = 122;
pub const SETFSGID: i64 = 123;
pub const CAPSET: i64 = 126;
pub const SECCOMP: i64 = 317;
pub const GETITIMER: i64 = 36;
pub const SETITIMER: i64 = 38;
pub const TIMER_CREATE: i64 = 222;
pub const TIMER_SETTIME: i64 = 223;
pub const TIMER_GETTIME: i64 = 224;
pub const TIMER_DELETE: i64 = 226;
pub const RT_SIGQUEUEINFO: i64 = 129;
pub const RT_TGSIGQUEUEINFO: i64 = 297;
