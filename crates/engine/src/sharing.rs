//! Finds tables that the tasks of a tree share, or do not share, in a way that a restore cannot rebuild.
//!
//! Owns: the tables that a process shares with its parent (clone(2) with CLONE_FILES or CLONE_FS), and two groups of
//! obstacles (reasons to refuse a checkpoint). Processes must not share an address space (CLONE_VM), or a table with a
//! process other than their parent. Threads must share the tables of their process, without a table of their own
//! (unshare(2) or setns(2) of one thread).
//! Invariants: the code changes nothing. A task that is ending is no obstacle, because the kernel has already
//! released the tables of the task.
//! Does not: compare tables that make no difference after a restore (CLONE_IO, CLONE_SYSVSEM); docs/limits.md lists
//! these tables.
//!
//! A restored thread shares all tables of its process. A restored process is created by its parent, with the flags of the
//! tables that both share.

use std::cmp::Ordering;

use model::{Pid, Tid};
use resource::Obstacle;
use sys::kcmp::{self, Shared};
use tracee::procfs::{self, Mapping};

use crate::relations::{Birth, Births};

/// The tables that threads share with their process, each with its name in messages.
const OF_THREADS: &[(Shared, &str)] = &[
    (Shared::Memory, "address space"),
    (Shared::Files, "descriptor table"),
    (Shared::FileSystem, "working directory and umask"),
];
/// Each namespace: its name in `/proc/PID/ns`, its name in messages, and whether a single thread can leave the
/// namespace.
pub(crate) const NAMESPACES: &[(&str, &str, bool)] = &[
    ("cgroup", "cgroup", true),
    ("ipc", "System V IPC and message queue", true),
    ("mnt", "mount", true),
    ("net", "network", true),
    ("pid", "pid", false),
    ("pid_for_children", "pid (of its children)", true),
    ("time", "time", false),
    ("time_for_children", "time (of its children)", true),
    ("user", "user", false),
    ("uts", "host name", true),
];

const BORROWED: &str = "a restore cannot yet create separate processes that share this";
const WAIT: &str = "try again in a moment: a child between vfork and exec shares it for a short time";

/// The tables that a process can share with its parent after a restore, each with its flag of clone(2).
const WITH_PARENT: &[(Shared, u64)] = &[(Shared::Files, 0x400), (Shared::FileSystem, 0x200)];

/// The flags of clone(2) that [`with_parent`] can return.
pub(crate) const WITH_PARENT_FLAGS: u64 = 0x600;

/// Returns the tables that a process shares with its parent, as flags of clone(2).
pub(crate) fn with_parent(pid: Pid, parent: Pid) -> u64 {
    let is_shared = |(kind, _): &&(Shared, u64)| kcmp::shared(*kind, pid, parent).unwrap_or(false);
    WITH_PARENT.iter().filter(is_shared).map(|(_, flag)| flag).sum()
}

/// Returns the obstacles of processes that share the address space of their parent, of processes whose parent cannot
/// create them with a shared table, and of threads that left a table of their process. `births` says which process
/// creates each process.
pub(crate) fn obstacles(
    processes: &[(Pid, &[Mapping])],
    stats: &[procfs::Stat],
    births: &Births,
) -> Vec<Obstacle> {
    let mut found = Vec::new();
    for (pid, _) in processes {
        let Some(stat) = stats.iter().find(|stat| stat.pid == *pid) else { continue };
        if processes.iter().any(|(other, _)| *other == stat.ppid) {
            let is_created_by_parent = matches!(births.birth(*pid), Birth::EarlyChild | Birth::Child);
            for (kind, what) in OF_THREADS {
                let is_kept = is_created_by_parent && WITH_PARENT.iter().any(|(table, _)| table == kind);
                if !is_kept && kcmp::shared(*kind, *pid, stat.ppid).unwrap_or(false) {
                    found.push(borrowed(*pid, stat.ppid, what));
                }
            }
        }
        for tid in other_threads(*pid) {
            found.extend(of_thread(*pid, tid));
        }
    }
    found
}

/// Returns the obstacles of processes that share a table without being parent and child, and of threads in other
/// namespaces than their process. The search takes long, so only the first scan of a tree makes this search.
pub(crate) fn rare_obstacles(processes: &[(Pid, &[Mapping])]) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let is_with_parent =
        |kind, pid| procfs::stat(pid).is_ok_and(|stat| kcmp::shared(kind, pid, stat.ppid).unwrap_or(false));
    for (kind, what) in OF_THREADS {
        let mut known: Vec<Pid> = Vec::new();
        for (pid, _) in processes {
            match place(*kind, *pid, &known) {
                Some(Ok(at)) if !is_with_parent(*kind, *pid) => found.push(borrowed(*pid, known[at], what)),
                Some(Err(at)) => known.insert(at, *pid),
                Some(Ok(_)) | None => {}
            }
        }
    }
    found.extend(processes.iter().flat_map(|(pid, _)| of_namespaces(*pid)));
    found
}

fn borrowed(pid: Pid, other: Pid, what: &str) -> Obstacle {
    Obstacle {
        pid,
        what: format!("shared {what}"),
        place: format!("shared with pid {other}"),
        why: BORROWED.to_owned(),
        fix: WAIT.to_owned(),
    }
}

fn other_threads(pid: Pid) -> impl Iterator<Item = Tid> {
    procfs::threads(pid).unwrap_or_default().into_iter().filter(move |tid| *tid != pid.leader())
}

fn of_thread(pid: Pid, tid: Tid) -> Vec<Obstacle> {
    // With unshare(2), a thread can leave each of these tables except the address space.
    let left = OF_THREADS[1..].iter().filter(|(kind, _)| {
        kcmp::shared(*kind, pid, Pid(tid.get())).is_ok_and(|is_shared| !is_shared) && !is_ending(pid, tid)
    });
    let obstacle = |(_, what): &(Shared, &str)| Obstacle {
        pid,
        what: format!("thread {tid} with a {what} of its own"),
        place: String::new(),
        why: "after a restore, the thread would share that of its process".to_owned(),
        fix: "configure the program without threads that call unshare(2), or without threads".to_owned(),
    };
    left.map(obstacle).collect()
}

fn of_namespaces(pid: Pid) -> Vec<Obstacle> {
    let threads: Vec<Tid> = other_threads(pid).collect();
    let mut found = Vec::new();
    for (name, what, _) in NAMESPACES.iter().filter(|(.., of_thread)| *of_thread && !threads.is_empty()) {
        let Ok(process) = procfs::link(format!("/proc/{pid}/ns/{name}")) else { continue };
        for tid in &threads {
            let Ok(theirs) = procfs::link(format!("/proc/{pid}/task/{tid}/ns/{name}")) else { continue };
            if theirs != process && !is_ending(pid, *tid) {
                found.push(Obstacle {
                    pid,
                    what: format!("thread {tid} in another {what} namespace"),
                    place: theirs.display().to_string(),
                    why: "after a restore, the thread would be in the namespace of its process".to_owned(),
                    fix: "try again when the thread has left it, or start the program without such threads"
                        .to_owned(),
                });
            }
        }
    }
    found
}

/// Reports whether a thread or its process is ending or has ended. The thread then has no tables any more.
fn is_ending(pid: Pid, tid: Tid) -> bool {
    [tid, pid.leader()]
        .iter()
        .any(|task| procfs::thread_stat(pid, *task).map_or(true, |stat| stat.is_ending()))
}

/// Searches `known`, which is sorted in the order of kcmp(2), for a process that shares its table with `pid`.
/// Returns `Ok` with the index of this process, or `Err` with the index at which to insert `pid`. Returns `None` if
/// a compared process has ended.
fn place(kind: Shared, pid: Pid, known: &[Pid]) -> Option<Result<usize, usize>> {
    let mut has_ended = false;
    let found = known.binary_search_by(|other| {
        kcmp::order(kind, *other, pid).unwrap_or_else(|_| {
            has_ended = true;
            Ordering::Equal
        })
    });
    (!has_ended).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_with_itself_and_with_no_other() {
        let us = Pid(std::process::id() as i32);
        for (kind, what) in OF_THREADS {
            assert_eq!(place(*kind, us, &[]), Some(Err(0)), "{what}");
            assert_eq!(place(*kind, us, &[us]), Some(Ok(0)), "{what}");
        }
    }

    #[test]
    fn a_thread_of_its_own_tables_is_named() {
        let us = Pid(std::process::id() as i32);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let unshared = sys::working_directory::within(std::path::Path::new("/"), move || {
                let link = procfs::link("/proc/thread-self").unwrap();
                let tid = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
                sender.send(Tid(tid)).unwrap();
                ended.recv().unwrap_err();
            });
            assert!(unshared.is_ok());
        });
        let tid = receiver.recv().unwrap();
        let found = of_thread(us, tid);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains("working directory"), "{found:?}");
        drop(end);
        thread.join().unwrap();
        assert!(of_thread(us, tid).is_empty(), "it has ended");
    }
}
