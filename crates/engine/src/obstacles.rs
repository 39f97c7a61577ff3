//! Preflight: everything that would stop a checkpoint, without touching the subject.
//!
//! Owns: the checks that no kind can make alone: namespaces, tracers, dead leaders, shared tables, sessions.
//! Invariants: changes nothing; every obstacle names the process, the reason and a way out.
//! Does not: check what kinds check; it asks them.

use model::Pid;
use resource::fd::{self, CaptureScope, Description};
use resource::{Obstacle, memory, state};
use sys::kcmp::{self, Shared};
use tracee::procfs::{self, Area};
use tracee::tree;

use crate::capture::{CheckpointOptions, look_for_preflight};
use crate::error::{EngineError, Result};

/// Namespaces that a subject must share with us, and what each is.
const NAMESPACES: &[(&str, &str)] = &[
    ("cgroup", "cgroup"),
    ("ipc", "System V IPC and message queue"),
    ("mnt", "mount"),
    ("net", "network"),
    ("pid", "pid"),
    ("pid_for_children", "pid (of its children)"),
    ("time", "time"),
    ("time_for_children", "time (of its children)"),
    ("user", "user"),
    ("uts", "host name"),
];

/// Lists everything that would stop a checkpoint of a process and its descendants.
pub fn preflight(root: Pid, options: &CheckpointOptions) -> Result<Vec<Obstacle>> {
    tree::descendants(root).map_err(|_| EngineError::NoProcess(root))?;
    match look_for_preflight(root, options) {
        Ok(()) => Ok(Vec::new()),
        Err(EngineError::Refused(obstacles)) => Ok(obstacles),
        Err(error) => Err(error),
    }
}

/// Obstacles of a whole subject but those of its descriptors.
pub(crate) fn of_tree(processes: &[(Pid, &[Area])], pids: &[Pid]) -> Vec<Obstacle> {
    let mut found = Vec::new();
    for (pid, areas) in processes {
        found.extend(of_process(*pid));
        found.extend(memory::obstacles(*pid, areas));
        for kind in state::REGISTRY {
            found.extend(kind.obstacles(*pid));
        }
    }
    found.extend(of_sharing(processes));
    found.extend(of_relations(pids));
    found
}

/// Obstacles of one descriptor.
pub(crate) fn of_descriptor(description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
    let found = fd::envelope::obstacles(description, scope);
    if !found.is_empty() {
        // Kinds look closer, and opening a file on which there is a lease would break it.
        return found;
    }
    match fd::kind_of(description) {
        Some(kind) => kind.obstacles(description, scope),
        None => {
            let what = fd::unclaimed::describe_unclaimed(description);
            vec![description.obstacle(
                &what,
                "descriptors of this kind are not saved yet",
                "let the program close it first, or stop the program the usual way",
            )]
        }
    }
}

fn obstacle(pid: Pid, what: &str, place: String, why: &str, fix: &str) -> Obstacle {
    Obstacle { pid, what: what.to_owned(), place, why: why.to_owned(), fix: fix.to_owned() }
}

fn of_process(pid: Pid) -> Vec<Obstacle> {
    let mut found = Vec::new();
    // A process that has ended meanwhile has no obstacles.
    let Ok(status) = procfs::status(pid) else { return found };
    if status.tracer != Pid(0) && !is_own_thread(status.tracer) {
        let place = format!("tracer pid {}", status.tracer);
        found.push(obstacle(
            pid,
            "tracer",
            place,
            "a process can have one tracer only",
            "end the debugger or strace first, or wait until `undying restore --lazy` has ended",
        ));
    }
    if status.state == 'Z' && status.threads > 1 {
        found.push(obstacle(
            pid,
            "ended leader",
            String::new(),
            "its first thread has ended while others live; such a process cannot be built again yet",
            "wait until the other threads end, or let the first one wait for them",
        ));
    }
    for (name, what) in NAMESPACES {
        let link = |owner: &str| procfs::link(format!("/proc/{owner}/ns/{name}"));
        if let (Ok(theirs), Ok(ours)) = (link(&pid.to_string()), link("self"))
            && theirs != ours
        {
            found.push(obstacle(
                pid,
                &format!("{what} namespace"),
                theirs.display().to_string(),
                "namespaces of the subject's own are not rebuilt yet",
                "run undying inside the same namespaces (nsenter)",
            ));
        }
    }
    found
}

/// A subject that never holds still is looked at while this program traces it.
fn is_own_thread(tracer: Pid) -> bool {
    std::path::Path::new(&format!("/proc/self/task/{tracer}")).exists()
}

/// A process whose code cannot be borrowed for remote system calls.
pub(crate) fn of_code(pid: Pid) -> Obstacle {
    obstacle(
        pid,
        "code",
        String::new(),
        "it has no `syscall; ret` or no signal restorer to make remote system calls with",
        "link the program with a C library; one that starts this moment can be checkpointed in the next",
    )
}

pub(crate) fn of_sharing(processes: &[(Pid, &[Area])]) -> Vec<Obstacle> {
    const SHARABLE: &[(Shared, &str)] = &[
        (Shared::Memory, "address space"),
        (Shared::Files, "descriptor table"),
        (Shared::FileSystem, "working directory and umask"),
    ];
    let mut found = Vec::new();
    for (pid, _) in processes {
        let Ok(stat) = procfs::stat(*pid) else { continue };
        if !processes.iter().any(|(other, _)| *other == stat.ppid) {
            continue;
        }
        for (kind, what) in SHARABLE {
            if kcmp::shared(*kind, *pid, stat.ppid).unwrap_or(false) {
                found.push(obstacle(
                    *pid,
                    &format!("shared {what}"),
                    format!("shared with pid {}", stat.ppid),
                    "processes that share it without being threads of one process cannot be built again yet",
                    "try again in a moment: a child between vfork and exec shares it for a short time",
                ));
            }
        }
    }
    found
}

/// Sessions and groups whose leader lies neither in the tree nor around its root.
fn of_relations(pids: &[Pid]) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let Some(outer) = pids.first().and_then(|root| procfs::stat(*root).ok()) else { return found };
    for pid in pids.iter().skip(1) {
        let Ok(stat) = procfs::stat(*pid) else { continue };
        if !pids.contains(&stat.session) && stat.session != outer.session {
            found.push(obstacle(
                *pid,
                "session",
                format!("session {}", stat.session),
                "the leader of its session has ended or is outside the tree",
                "checkpoint the session's leader, or start the program without a daemonising wrapper",
            ));
        }
        if !pids.contains(&stat.pgrp) && stat.pgrp != outer.pgrp {
            found.push(obstacle(
                *pid,
                "process group",
                format!("group {}", stat.pgrp),
                "the leader of its process group has ended or is outside the tree",
                "checkpoint the process that started the group",
            ));
        }
    }
    found
}
