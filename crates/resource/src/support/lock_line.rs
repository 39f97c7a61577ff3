//! A file lock, as `/proc` shows file locks.
//!
//! Owns: the parser of one line of fdinfo or of `/proc/locks`.
//! Invariants: parsing an invalid line returns `None`.
//! Does not: save or restore locks.

use model::Pid;

/// The kernel's name for POSIX record locks.
pub(crate) const POSIX: &str = "POSIX";

/// The parsed line of a lock, such as `1: POSIX  ADVISORY  WRITE 812 fe:00:1234 0 EOF`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockLine<'a> {
    /// The type of the lock: `POSIX`, `FLOCK`, `OFDLCK`, `LEASE`, `DELEG`.
    pub(crate) kind: &'a str,
    /// `ADVISORY`; for a lease `ACTIVE`, or the state of a lease break.
    pub(crate) state: &'a str,
    /// `READ` or `WRITE`.
    pub(crate) access: &'a str,
    /// The process that took the lock; -1 for a lock of an open file description, 0 for a process outside this pid
    /// namespace.
    pub(crate) pid: Pid,
    /// The first byte of the locked range.
    pub(crate) start: i64,
    /// The length of the range in bytes. 0 means up to the end of the file, also when the file grows.
    pub(crate) length: i64,
}

impl<'a> LockLine<'a> {
    /// Parses the part behind `lock:` in fdinfo, or a line of `/proc/locks`.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, kind, state, access, pid, _, start, end] = words.as_slice() else { return None };
        let start: i64 = start.parse().ok()?;
        let length =
            if end == "EOF" { 0 } else { end.parse::<i64>().ok()?.checked_sub(start)?.checked_add(1)? };
        Some(Self { kind, state, access, pid: Pid(pid.parse().ok()?), start, length })
    }

    /// Reports whether the lock is a write lock. Returns `None` for other access types than `READ` and `WRITE`.
    pub(crate) fn writes(&self) -> Option<bool> {
        match self.access {
            "READ" => Some(false),
            "WRITE" => Some(true),
            _ => None,
        }
    }
}
