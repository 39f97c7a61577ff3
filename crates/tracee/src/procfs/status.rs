//! Reads `/proc/PID/status`: state, tracer, pending signals, credentials and seccomp mode.
//!
//! Owns: the parser of this file.
//! Does not: read capabilities in other user namespaces.

use std::collections::HashMap;

use model::{Pid, Tid};
use sys::Result;

use super::files::parsed;

/// The required lines of `/proc/PID/status`, with the names of proc_pid_status(5).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of proc_pid_status(5)")]
pub struct Status {
    pub state: char,
    pub tgid: Pid,
    pub tracer: Pid,
    /// Real, effective, saved and file-system user id.
    pub uid: [u32; 4],
    /// Pid in every pid namespace of the process, outermost first.
    pub nspid: Vec<i32>,
    pub threads: u32,
    pub signals_pending: u64,
    pub shared_pending: u64,
    pub cap_effective: u64,
    pub seccomp: u32,
}

/// Reads and parses `/proc/PID/status`.
pub fn status(pid: Pid) -> Result<Status> {
    parsed(&format!("/proc/{pid}/status"), parse)
}

/// Reads and parses `/proc/PID/task/TID/status`.
pub fn thread_status(pid: Pid, tid: Tid) -> Result<Status> {
    parsed(&format!("/proc/{pid}/task/{tid}/status"), parse)
}

/// Returns the value of one line in the raw bytes of a status file.
#[must_use]
pub fn status_line<'a>(bytes: &'a [u8], name: &str) -> Option<&'a str> {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .find(|line| line.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b':')))?;
    std::str::from_utf8(&line[name.len() + 1..]).ok().map(str::trim)
}

/// Returns a signal set from the raw bytes of a status file. The set is empty if the line is missing.
#[must_use]
pub fn signal_set(bytes: &[u8], name: &str) -> u64 {
    status_line(bytes, name).and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0)
}

/// Signals of a process and one of its threads, from the status file. Bit 0 is signal 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSets {
    /// Signals with a handler.
    pub caught: u64,
    /// Signals that are pending for the thread or the process.
    pub pending: u64,
}

/// Returns the signals of a thread, and whether seccomp filters may apply to its calls. The second value is
/// also true if the file does not report it. Parses the raw bytes in one pass, because this happens in the
/// pause for each thread.
#[must_use]
pub fn call_status(bytes: &[u8]) -> (SignalSets, bool) {
    let (mut signals, mut is_filtered) = (SignalSets::default(), true);
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| line.first() == Some(&b'S')) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let set = || std::str::from_utf8(value).ok().and_then(|set| u64::from_str_radix(set, 16).ok());
        match name {
            b"SigCgt" => signals.caught = set().unwrap_or(0),
            b"SigPnd" | b"ShdPnd" => signals.pending |= set().unwrap_or(0),
            b"Seccomp" => is_filtered = value != b"0",
            _ => {}
        }
    }
    (signals, is_filtered)
}

fn parse(text: &str) -> Option<Status> {
    let lines: HashMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    let hexadecimal = |name: &str| u64::from_str_radix(lines.get(name)?, 16).ok();
    let decimal = |name: &str| lines.get(name)?.parse::<u32>().ok();
    let uid: Vec<u32> = lines.get("Uid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some(Status {
        state: lines.get("State")?.chars().next()?,
        tgid: Pid(lines.get("Tgid")?.parse().ok()?),
        tracer: Pid(lines.get("TracerPid")?.parse().ok()?),
        uid: uid.try_into().ok()?,
        nspid: lines.get("NSpid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
        threads: decimal("Threads")?,
        signals_pending: hexadecimal("SigPnd")?,
        shared_pending: hexadecimal("ShdPnd")?,
        cap_effective: hexadecimal("CapEff")?,
        seccomp: decimal("Seccomp").unwrap_or(0),
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
        assert_eq!(call_status(text), (SignalSets { caught: 0x4002, pending: 0x401 }, true));
        let free = call_status(b"SigCgt:\t0000000000000000\nSeccomp:\t0\nSpeculation_Store_Bypass:\tx\n");
        assert_eq!(free, (SignalSets::default(), false));
        assert!(call_status(b"").1, "what is not told may be");
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
