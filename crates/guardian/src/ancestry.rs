//! Refusal of processes that must not be stopped: kernel threads, trees that contain this process, and guarded
//! subjects.
//!
//! Owns: these refusals, the ancestors of a process, and the search for a guardian by the lock file that the guardian
//! holds open.
//! Invariants: only reads. A lock file counts only if the status file beside it names the holding process as a living
//! guardian.
//! Does not: decide whether a guarded process can be checkpointed; `engine` does.

use std::path::{Path, PathBuf};

use engine::{EngineError, Obstacle};
use model::{Pid, Word};
use tracee::procfs;

use crate::error::{GuardianError, Result};
use crate::location::StoreLocation;
use crate::record::Record;
use crate::run::claim::LOCK_FILE;

/// Maximum number of ancestors that are followed. A longer list can only result from a race.
const ANCESTORS_MAX: usize = 10_000;

/// Refuses a root process that is a kernel thread, or whose tree contains this process.
pub(crate) fn refuse(root: Pid) -> Result<()> {
    refuse_kernel_thread(root)?;
    if contains_us(root) { Err(GuardianError::OwnTree { pid: root }) } else { Ok(()) }
}

/// Refuses a kernel thread. Accepts a pid that does not exist.
pub(crate) fn refuse_kernel_thread(pid: Pid) -> Result<()> {
    match procfs::stat(pid) {
        Ok(stat) if stat.is_kernel_thread() => Err(GuardianError::KernelThread { pid, name: stat.comm }),
        _ => Ok(()),
    }
}

/// Reports whether `root` is this process or an ancestor of this process.
pub(crate) fn contains_us(root: Pid) -> bool {
    line(Pid(std::process::id() as i32)).any(|pid| pid == root)
}

/// Returns a process and its ancestors. Each process is followed by its parent.
pub(crate) fn line(pid: Pid) -> impl Iterator<Item = Pid> {
    let parent = |pid: &Pid| procfs::stat(*pid).ok().map(|stat| stat.ppid).filter(|parent| parent.get() > 0);
    std::iter::successors(Some(pid), parent).take(ANCESTORS_MAX)
}

/// Text by which an obstacle names memory that another process has registered with userfaultfd(2).
const WATCHED: &str = "userfaultfd registration";

struct GuardedBy {
    guardian: Pid,
    name: String,
    store: PathBuf,
}

/// Replaces the obstacles that a guardian causes by its userfaultfd registrations. The new obstacle names the guardian.
pub(crate) fn name_guardian(obstacles: Vec<Obstacle>) -> Vec<Obstacle> {
    let is_watched = |obstacle: &Obstacle| obstacle.what.contains(WATCHED);
    let Some(pid) = obstacles.iter().find(|obstacle| is_watched(obstacle)).map(|found| found.pid) else {
        return obstacles;
    };
    let Some(guarded) = guardian_of(pid) else { return obstacles };
    let rest = obstacles.into_iter().filter(|obstacle| !is_watched(obstacle));
    std::iter::once(guarded.obstacle(pid)).chain(rest).collect()
}

/// Applies [`name_guardian`] to the obstacles in an error of the engine.
pub(crate) fn name_guardian_in(error: EngineError) -> EngineError {
    match error {
        EngineError::Refused(obstacles) => EngineError::Refused(name_guardian(obstacles)),
        other => other,
    }
}

/// Refuses a process that already has a guardian, because two guardians would restore the process at its death.
pub(crate) fn refuse_guarded(pid: Pid) -> Result<()> {
    match guardian_of(pid) {
        Some(guarded) => Err(EngineError::Refused(vec![guarded.obstacle(pid)]).into()),
        None => Ok(()),
    }
}

/// Returns the guardian of the subject whose root is this process or an ancestor of this process.
fn guardian_of(pid: Pid) -> Option<GuardedBy> {
    let line: Vec<Pid> = line(pid).collect();
    procfs::processes().ok()?.into_iter().find_map(|holder| {
        locked_by(holder).into_iter().find_map(|directory| {
            let record = Record::read(&directory).ok().flatten()?;
            let guards = record.is_guarded()
                && record.guardian.pid == holder.get()
                && line.contains(&Pid(record.root.pid));
            guards.then(|| GuardedBy {
                guardian: holder,
                name: record.facts.name,
                store: directory.parent().map_or_else(PathBuf::new, Path::to_path_buf),
            })
        })
    })
}

/// Returns the directories of the subjects whose lock files a process holds open. Returns an empty list if the
/// descriptors of the process may not be read.
fn locked_by(holder: Pid) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{holder}/fd")).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    files
        .filter(|file| file.ends_with(LOCK_FILE))
        .filter_map(|file| file.parent().map(Path::to_path_buf))
        .collect()
}

impl GuardedBy {
    fn obstacle(&self, pid: Pid) -> Obstacle {
        let is_default = StoreLocation::new(None).is_ok_and(|location| location.path() == self.store);
        let store = self.store.to_string_lossy();
        let store = if is_default { String::new() } else { format!(" --store {}", Word(&store)) };
        Obstacle {
            pid,
            what: format!("guardian, pid {}", self.guardian),
            place: String::new(),
            why: format!(
                "the process is guarded by `undying run` as {}, and only one undying process can watch writes to its memory",
                self.name
            ),
            fix: format!("`undying{store} store {} COPY` keeps its newest checkpoint", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_in_our_own_tree_and_in_that_of_our_parent() {
        let own = Pid(std::process::id() as i32);
        assert!(contains_us(own));
        assert!(contains_us(procfs::stat(own).unwrap().ppid));
        assert!(!contains_us(Pid(i32::MAX)));
    }
}
