//! What the tasks of a tree share with one another: a restore gives it to the threads of a process, and to no others.
//!
//! Owns: the obstacles of processes that share what only threads may, and of threads that do not share what they must
//! (clone(2) with CLONE_VM, CLONE_FILES or CLONE_FS; unshare(2) and setns(2) of one thread).
//! Invariants: changes nothing; a task that ends has given its tables back already, and is no obstacle.
//! Does not: compare what makes no difference after a restore (CLONE_IO, CLONE_SYSVSEM); docs/limits.md states it.

use std::cmp::Ordering;

use model::{Pid, Tid};
use resource::Obstacle;
use sys::kcmp::{self, Shared};
use tracee::procfs::{self, Area};

/// What two processes may not share.
const OF_THREADS: &[(Shared, &str)] = &[
    (Shared::Memory, "address space"),
    (Shared::Files, "descriptor table"),
    (Shared::FileSystem, "working directory and umask"),
];
/// Namespaces, what each is, and whether a thread may change it alone.
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

const BORROWED: &str =
    "processes that share it without being threads of one process cannot be built again yet";
const WAIT: &str = "try again in a moment: a child between vfork and exec shares it for a short time";

/// Obstacles of processes that share with their parents, and of threads that left what their process has.
pub(crate) fn obstacles(processes: &[(Pid, &[Area])]) -> Vec<Obstacle> {
    let mut found = Vec::new();
    for (pid, _) in processes {
        let Ok(stat) = procfs::stat(*pid) else { continue };
        if processes.iter().any(|(other, _)| *other == stat.ppid) {
            for (kind, what) in OF_THREADS {
                if kcmp::shared(*kind, *pid, stat.ppid).unwrap_or(false) {
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

/// Obstacles that only the first look at a tree finds, as the search takes long: processes that share and are not
/// parent and child, and threads in other namespaces than their process.
pub(crate) fn rare_obstacles(processes: &[(Pid, &[Area])]) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let is_child = |pid: Pid, parent: Pid| procfs::stat(pid).is_ok_and(|stat| stat.ppid == parent);
    for (kind, what) in OF_THREADS {
        let mut known: Vec<Pid> = Vec::new();
        for (pid, _) in processes {
            match place(*kind, *pid, &known) {
                Some(Ok(at)) if !is_child(*pid, known[at]) => found.push(borrowed(*pid, known[at], what)),
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
    // A thread may leave all but the memory with unshare(2).
    let left = OF_THREADS[1..].iter().filter(|(kind, _)| {
        kcmp::shared(*kind, pid, Pid(tid.get())).is_ok_and(|is_shared| !is_shared) && !is_ending(pid, tid)
    });
    let obstacle = |(_, what): &(Shared, &str)| Obstacle {
        pid,
        what: format!("thread {tid} with a {what} of its own"),
        place: String::new(),
        why: "it would come back with that of its process".to_owned(),
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
                    why: "it would come back in that of its process".to_owned(),
                    fix: "try again when the thread has left it, or start the program without such threads"
                        .to_owned(),
                });
            }
        }
    }
    found
}

/// Whether a thread or its process has begun to end, or has ended: its tables are not there any more.
fn is_ending(pid: Pid, tid: Tid) -> bool {
    [tid, pid.leader()]
        .iter()
        .any(|task| procfs::thread_stat(pid, *task).map_or(true, |stat| stat.is_ending()))
}

/// Where a process stands among others in the kernel's order of their tables: `Ok` beside one that has the same, `Err`
/// where it belongs. `None` if one of them has ended.
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
    fn a_process_stands_beside_itself_and_beside_no_other() {
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
