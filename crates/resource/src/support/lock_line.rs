//! What `/proc` says of a lock on a file.
//!
//! Owns: the parser of one line of fdinfo or of `/proc/locks`.
//! Invariants: a line that is not understood is none.
//! Does not: know what becomes of a lock.

use model::Pid;

/// POSIX record locks, by the word of the kernel.
pub(crate) const POSIX: &str = "POSIX";

/// A line such as `1: POSIX  ADVISORY  WRITE 812 fe:00:1234 0 EOF`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockLine<'a> {
    /// `POSIX`, `FLOCK`, `OFDLCK`, `LEASE`, `DELEG`.
    pub(crate) kind: &'a str,
    /// `ADVISORY`; of a lease `ACTIVE`, or that it is being broken.
    pub(crate) state: &'a str,
    /// `READ` or `WRITE`.
    pub(crate) access: &'a str,
    /// Who took it; -1 for a lock of an open file description, 0 when it is not to be seen from here.
    pub(crate) pid: Pid,
    /// The first byte.
    pub(crate) start: i64,
    /// 0 means to the end of the file, however far it grows.
    pub(crate) length: i64,
}

impl<'a> LockLine<'a> {
    /// Reads what follows `lock:` in fdinfo, or a line of `/proc/locks`.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, kind, state, access, pid, _, start, end] = words.as_slice() else { return None };
        let start: i64 = start.parse().ok()?;
        let length =
            if end == "EOF" { 0 } else { end.parse::<i64>().ok()?.checked_sub(start)?.checked_add(1)? };
        Some(Self { kind, state, access, pid: Pid(pid.parse().ok()?), start, length })
    }

    /// Whether it is held for writing; `None` for what is neither held for reading nor for writing.
    pub(crate) fn writes(&self) -> Option<bool> {
        match self.access {
            "READ" => Some(false),
            "WRITE" => Some(true),
            _ => None,
        }
    }
}
