//! Which guardian a process has.
//!
//! Owns: finding the guardian by the lock file that it holds open; the obstacle that names it.
//! Invariants: reads only. A lock file counts if the status beside it names its holder as a living guardian.
//! Does not: decide whether a guarded process can be checkpointed; the engine does.

use std::path::{Path, PathBuf};

use engine::{EngineError, Obstacle};
use model::Pid;
use tracee::procfs;

use crate::ancestry;
use crate::error::Result;
use crate::location::StoreLocation;
use crate::record::Record;
use crate::run::claim::LOCK_FILE;

/// What obstacles call memory of which another process watches the writes.
const WATCHED: &str = "userfaultfd registration";

/// The guardian of a process.
struct GuardedBy {
    guardian: Pid,
    name: String,
    store: PathBuf,
}

/// Replaces what a guardian has registered in the memory of a subject by an obstacle that names the guardian.
pub(crate) fn name_guardian(obstacles: Vec<Obstacle>) -> Vec<Obstacle> {
    let is_watched = |obstacle: &Obstacle| obstacle.what.contains(WATCHED);
    let Some(pid) = obstacles.iter().find(|obstacle| is_watched(obstacle)).map(|found| found.pid) else {
        return obstacles;
    };
    let Some(guarded) = guardian_of(pid) else { return obstacles };
    let rest = obstacles.into_iter().filter(|obstacle| !is_watched(obstacle));
    std::iter::once(guarded.obstacle(pid)).chain(rest).collect()
}

/// The same in an error of the engine.
pub(crate) fn name_guardian_in(error: EngineError) -> EngineError {
    match error {
        EngineError::Refused(obstacles) => EngineError::Refused(name_guardian(obstacles)),
        other => other,
    }
}

/// Refuses a process that has a guardian: two would restore it at its death.
pub(crate) fn refuse(pid: Pid) -> Result<()> {
    match guardian_of(pid) {
        Some(guarded) => Err(EngineError::Refused(vec![guarded.obstacle(pid)]).into()),
        None => Ok(()),
    }
}

/// The guardian whose subject is this process or an ancestor of it.
fn guardian_of(pid: Pid) -> Option<GuardedBy> {
    let line: Vec<Pid> = ancestry::line(pid).collect();
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

/// The directories of subjects whose lock file a process holds open; none if its descriptors may not be read.
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
        let store = if is_default { String::new() } else { format!(" --store {}", self.store.display()) };
        Obstacle {
            pid,
            what: format!("guardian, pid {}", self.guardian),
            place: String::new(),
            why: format!(
                "it is guarded by `undying run` as {}, and one undying alone can watch writes to its memory",
                self.name
            ),
            fix: format!("`undying{store} store {} COPY` keeps its newest checkpoint", self.name),
        }
    }
}
