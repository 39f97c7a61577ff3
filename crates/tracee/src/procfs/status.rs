//! `/proc/PID/status`: credentials, signal sets, tracer.
//!
//! Owns: its parser.
//! Does not: read capabilities of other user namespaces.

use std::collections::HashMap;

use model::{Pid, Tid};
use sys::Result;

use super::files::{malformed, read_text};

/// The lines of `/proc/PID/status` that matter here, under the names of proc_pid_status(5).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of proc_pid_status(5)")]
pub struct Status {
    pub name: String,
    pub umask: u32,
    pub state: char,
    pub tgid: Pid,
    pub tracer: Pid,
    /// Real, effective, saved and file-system user.
    pub uid: [u32; 4],
    /// Real, effective, saved and file-system group.
    pub gid: [u32; 4],
    pub groups: Vec<u32>,
    /// The pid in every namespace the process is in, outermost first.
    pub nspid: Vec<i32>,
    pub threads: u32,
    pub signals_pending: u64,
    pub shared_pending: u64,
    pub signals_blocked: u64,
    pub signals_ignored: u64,
    pub signals_caught: u64,
    pub cap_inheritable: u64,
    pub cap_permitted: u64,
    pub cap_effective: u64,
    pub cap_bounding: u64,
    pub cap_ambient: u64,
    pub no_new_privs: bool,
    pub seccomp: u32,
    pub thp_enabled: bool,
}

/// Reads and parses `/proc/PID/status`.
pub fn status(pid: Pid) -> Result<Status> {
    let path = format!("/proc/{pid}/status");
    parse(&read_text(&path)?).ok_or_else(|| malformed(&path))
}

/// Reads and parses the same of one thread.
pub fn thread_status(pid: Pid, tid: Tid) -> Result<Status> {
    let path = format!("/proc/{pid}/task/{tid}/status");
    parse(&read_text(&path)?).ok_or_else(|| malformed(&path))
}

/// The value of one line of the raw bytes of a status file.
#[must_use]
pub fn status_line<'a>(bytes: &'a [u8], name: &str) -> Option<&'a str> {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .find(|line| line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b':')))?;
    std::str::from_utf8(&line[name.len() + 1..]).ok().map(str::trim)
}

/// One of the signal sets in the raw bytes of a status file; empty when the line is missing.
#[must_use]
pub fn signal_set(bytes: &[u8], name: &str) -> u64 {
    status_line(bytes, name).and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0)
}

/// What a remote call has to know of a thread, by its status file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStatus {
    /// Signals with a handler, bit 0 for signal 1.
    pub caught: u64,
    /// Signals that wait for the thread or the process.
    pub pending: u64,
    /// Calls may be filtered; also if the file does not tell.
    pub is_filtered: bool,
}

/// Looks for it in one pass over the raw bytes: this is done inside pauses, for each thread.
#[must_use]
pub fn call_status(bytes: &[u8]) -> CallStatus {
    let mut found = CallStatus { caught: 0, pending: 0, is_filtered: true };
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| line.first() == Some(&b'S')) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let set = || std::str::from_utf8(value).ok().and_then(|set| u64::from_str_radix(set, 16).ok());
        match name {
            b"SigCgt" => found.caught = set().unwrap_or(0),
            b"SigPnd" | b"ShdPnd" => found.pending |= set().unwrap_or(0),
            b"Seccomp" => found.is_filtered = value != b"0",
            _ => {}
        }
    }
    found
}

fn parse(text: &str) -> Option<Status> {
    let lines: HashMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    let hexadecimal = |name: &str| u64::from_str_radix(lines.get(name)?, 16).ok();
    let decimal = |name: &str| lines.get(name)?.parse::<u32>().ok();
    let four = |name: &str| -> Option<[u32; 4]> {
        let words: Vec<u32> =
            lines.get(name)?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        words.try_into().ok()
    };
    Some(Status {
        name: (*lines.get("Name")?).to_owned(),
        // A zombie has no umask.
        umask: lines.get("Umask").and_then(|mask| u32::from_str_radix(mask, 8).ok()).unwrap_or(0),
        state: lines.get("State")?.chars().next()?,
        tgid: Pid(lines.get("Tgid")?.parse().ok()?),
        tracer: Pid(lines.get("TracerPid")?.parse().ok()?),
        uid: four("Uid")?,
        gid: four("Gid")?,
        groups: lines.get("Groups")?.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
        nspid: lines.get("NSpid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
        threads: decimal("Threads")?,
        signals_pending: hexadecimal("SigPnd")?,
        shared_pending: hexadecimal("ShdPnd")?,
        signals_blocked: hexadecimal("SigBlk")?,
        signals_ignored: hexadecimal("SigIgn")?,
        signals_caught: hexadecimal("SigCgt")?,
        cap_inheritable: hexadecimal("CapInh")?,
        cap_permitted: hexadecimal("CapPrm")?,
        cap_effective: hexadecimal("CapEff")?,
        cap_bounding: hexadecimal("CapBnd")?,
        cap_ambient: hexadecimal("CapAmb").unwrap_or(0),
        no_new_privs: decimal("NoNewPrivs").unwrap_or(0) != 0,
        seccomp: decimal("Seccomp").unwrap_or(0),
        thp_enabled: decimal("THP_enabled").unwrap_or(1) != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_has_to_know_is_found_in_one_pass() {
        let text = b"Name:\tSeccomp:\t0\nState:\tR (running)\nSigQ:\t1/95\nSigPnd:\t0000000000000400\n\
            ShdPnd:\t0000000000000001\nSigBlk:\t00000000000000ff\nSigCgt:\t0000000000004002\nSeccomp:\t2\n\
            Seccomp_filters:\t0\n";
        let found = CallStatus { caught: 0x4002, pending: 0x401, is_filtered: true };
        assert_eq!(call_status(text), found);
        let free = call_status(b"SigCgt:\t0000000000000000\nSeccomp:\t0\nSpeculation_Store_Bypass:\tx\n");
        assert_eq!(free, CallStatus { caught: 0, pending: 0, is_filtered: false });
        assert!(call_status(b"").is_filtered, "what is not told may be");
    }

    #[test]
    fn our_own_entry_is_understood() {
        let pid = Pid(std::process::id() as i32);
        let status = status(pid).unwrap();
        assert_eq!(status.tgid, pid);
        assert_eq!(status.uid[0], rustix::process::getuid().as_raw());
        assert_eq!(status.nspid.last(), Some(&pid.get()));
    }
}
