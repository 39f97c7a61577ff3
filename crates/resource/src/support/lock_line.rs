//! A file lock as `/proc` shows it.
//!
//! Owns: the parser of one line of fdinfo or of `/proc/locks`.
//! Invariants: a line that does not parse is `None`.
//! Does not: save or restore locks.

use model::Pid;

/// The kernel's name for POSIX record locks.
pub(crate) const POSIX: &str = "POSIX";

/// A line such as `1: POSIX  ADVISORY  WRITE 812 fe:00:1234 0 EOF`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockLine<'a> {
    /// `POSIX`, `FLOCK`, `OFDLCK`, `LEASE`, `DELEG`.
    pub(crate) kind: &'a str,
    /// `ADVISORY`; for a lease `ACTIVE`, or the state of a lease break.
    pub(crate) state: &'a str,
    /// `READ` or `WRITE`.
    pub(crate) access: &'a str,
    /// The process that took it; -1 for a lock of an open file description, 0 outside this pid namespace.
    pub(crate) pid: Pid,
    /// The first byte.
    pub(crate) start: i64,
    /// 0 means to the end of the file, also when it grows.
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

    /// Whether it is a write lock; `None` for other access types.
    pub(crate) fn writes(&self) -> Option<bool> {
        match self.access {
            "READ" => Some(false),
            "WRITE" => Some(true),
            _ => None,
        }
    }
}
