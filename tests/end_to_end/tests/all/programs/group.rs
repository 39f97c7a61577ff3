//! The processes of one process group, as /proc shows them.
//!
//! Owns: finding a program's processes when their parents are dead, telling what a hanging one does.

use std::fs;

use model::Pid;
use testkit::{ProcessId, descendants};

/// The processes of a group, zombies too.
pub(crate) fn members(group: Pid) -> Vec<ProcessId> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid));
    pids.filter(|pid| group_of(*pid) == Some(group)).filter_map(|pid| ProcessId::of(pid).ok()).collect()
}

fn group_of(pid: Pid) -> Option<Pid> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    // State, parent, group: the fields begin behind the name, which may hold anything.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(2)?.parse().ok().map(Pid)
}

/// What every thread of a tree does, one line each.
pub(crate) fn describe(root: ProcessId) -> String {
    let mut lines = Vec::new();
    for process in std::iter::once(root).chain(descendants(root)) {
        let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).into_iter().flatten().flatten();
        for task in tasks {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let status = read("status");
            let state =
                status.lines().find(|line| line.starts_with("State")).unwrap_or("State: ?").to_owned();
            let tid = task.file_name().to_string_lossy().into_owned();
            lines.push(format!(
                "tid {tid} {} {state} in {}, syscall {}",
                read("comm").trim(),
                read("wchan").trim(),
                read("syscall").trim()
            ));
        }
    }
    lines.join("\n")
}
