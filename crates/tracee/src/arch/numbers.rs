//! System call numbers of x86-64 for remote calls.
//!
//! Owns: the table, from `arch/x86/entry/syscalls/syscall_64.tbl` of Linux, and the names of these calls for
//! messages.
//! Does not: list system calls that only this program makes.

#![expect(missing_docs, reason = "the names are those of the system calls")]

use std::fmt;

macro_rules! numbers {
    ($($name:ident = $number:literal;)*) => {
        $(pub const $name: i64 = $number;)*

        /// Numbers of the table with their names in capitals.
        const NAMES: &[(i64, &str)] = &[$(($number, stringify!($name))),*];
    };
}

numbers! {
    READ = 0;
    WRITE = 1;
    CLOSE = 3;
    POLL = 7;
    LSEEK = 8;
    MMAP = 9;
    MPROTECT = 10;
    MUNMAP = 11;
    RT_SIGACTION = 13;
    RT_SIGPROCMASK = 14;
    IOCTL = 16;
    READV = 19;
    WRITEV = 20;
    MREMAP = 25;
    MADVISE = 28;
    SHMAT = 30;
    NANOSLEEP = 35;
    GETITIMER = 36;
    SETITIMER = 38;
    GETPID = 39;
    SOCKET = 41;
    CONNECT = 42;
    ACCEPT = 43;
    SENDTO = 44;
    RECVFROM = 45;
    SENDMSG = 46;
    RECVMSG = 47;
    EXIT = 60;
    WAIT4 = 61;
    SEMOP = 65;
    FCNTL = 72;
    FLOCK = 73;
    CHDIR = 80;
    UMASK = 95;
    SETPGID = 109;
    SETSID = 112;
    SETGROUPS = 116;
    SETRESUID = 117;
    SETRESGID = 119;
    SETFSUID = 122;
    SETFSGID = 123;
    CAPSET = 126;
    RT_SIGTIMEDWAIT = 128;
    RT_SIGQUEUEINFO = 129;
    SIGALTSTACK = 131;
    PERSONALITY = 135;
    PRCTL = 157;
    ARCH_PRCTL = 158;
    CHROOT = 161;
    TKILL = 200;
    FUTEX = 202;
    IO_SETUP = 206;
    IO_GETEVENTS = 208;
    IO_SUBMIT = 209;
    SET_TID_ADDRESS = 218;
    RESTART_SYSCALL = 219;
    SEMTIMEDOP = 220;
    TIMER_CREATE = 222;
    TIMER_SETTIME = 223;
    TIMER_GETTIME = 224;
    TIMER_DELETE = 226;
    CLOCK_NANOSLEEP = 230;
    EXIT_GROUP = 231;
    EPOLL_WAIT = 232;
    EPOLL_CTL = 233;
    TGKILL = 234;
    OPENAT = 257;
    SET_ROBUST_LIST = 273;
    EPOLL_PWAIT = 281;
    ACCEPT4 = 288;
    DUP3 = 292;
    RT_TGSIGQUEUEINFO = 297;
    RECVMMSG = 299;
    SENDMMSG = 307;
    SECCOMP = 317;
    MEMFD_CREATE = 319;
    USERFAULTFD = 323;
    MEMBARRIER = 324;
    MLOCK2 = 325;
    IO_PGETEVENTS = 333;
    RSEQ = 334;
    IO_URING_ENTER = 426;
    PIDFD_OPEN = 434;
    CLONE3 = 435;
    CLOSE_RANGE = 436;
    OPENAT2 = 437;
    PIDFD_GETFD = 438;
    EPOLL_PWAIT2 = 441;
    MSEAL = 462;
}

/// Displays a system call by its name, or by its number if the table does not contain it.
#[derive(Clone, Copy, Debug)]
pub struct Named(pub i64);

impl fmt::Display for Named {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => write!(formatter, "{}", name.to_lowercase()),
            None => write!(formatter, "system call {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_shown_by_name_and_unknown_ones_by_number() {
        assert_eq!(Named(USERFAULTFD).to_string(), "userfaultfd");
        assert_eq!(Named(-1).to_string(), "system call -1");
    }

    #[test]
    fn numbers_ascend_and_are_named_once() {
        assert!(NAMES.is_sorted_by(|(one, _), (next, _)| one < next));
    }
}
