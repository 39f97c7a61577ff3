//! Who outside of the subject holds a file, so that a refusal can name it.
//!
//! Owns: the search through the descriptor tables of other processes.
//! Invariants: costs a walk over all of `/proc`, so it is asked only once a refusal is certain.
//! Does not: see processes that this user may not look into; then nobody is named.

use std::fs;
use std::path::Path;

use model::Pid;
use tracee::procfs;

use crate::fd::CaptureScope;

/// A process outside of the subject, ourselves apart, that holds a descriptor whose link reads `target`.
pub(crate) fn holder(scope: &CaptureScope<'_>, target: &str) -> Option<Pid> {
    let ourselves = Pid(std::process::id() as i32);
    let entries = fs::read_dir("/proc").ok()?;
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid))
        .find(|pid| *pid != ourselves && !scope.pids.contains(pid) && holds(*pid, target))
}

/// How a refusal names such a process.
pub(crate) fn describe(holder: Option<Pid>) -> String {
    match holder {
        Some(pid) => {
            let name = procfs::stat(pid).map_or_else(|_| String::new(), |stat| format!(" ({})", stat.comm));
            format!("pid {pid}{name}")
        }
        None => "a process that cannot be seen from here".to_owned(),
    }
}

fn holds(pid: Pid, target: &str) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|link| link == Path::new(target))
}
