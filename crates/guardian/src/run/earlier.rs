//! Finds the program of an earlier `undying run` whose guardian was killed. The same command then guards this program
//! again: a second instance beside it would write to the same files.
//!
//! Owns: the search for the living program.
//! Does not: find the programs of a system file; the module `system` does.

use std::path::Path;

use model::{ProcessKey, Word};
use store::{Store, SubjectName};
use tracee::procfs;

use super::request::{Guarded, RunRequest};
use crate::error::{GuardianError, Result};
use crate::record::Record;
use crate::started_as::StartedAs;

/// Returns how this request starts a program. `None` if it adopts a process.
fn started_as(request: &RunRequest) -> Option<StartedAs> {
    let Guarded::Command(words) = &request.what else { return None };
    let inherited = || std::env::current_dir().unwrap_or_default();
    let directory = request.launch.directory.clone().unwrap_or_else(inherited);
    Some(StartedAs::new(words, directory, request.name.is_some()))
}

/// Returns the root in this record if it still runs although its guardian has died.
pub(super) fn unguarded_root(record: &Record) -> Option<ProcessKey> {
    (!record.is_guarded() && record.has_root()).then(|| record.root.key())
}

/// Prepares a request: finds a living program that it guards instead of starting a second one. Returns how the request
/// starts its program.
///
/// # Errors
///
/// `StillStarted` if the requested name belongs to a living program that was started in another way.
pub(super) fn recognise(request: &mut RunRequest) -> Result<Option<StartedAs>> {
    // The process may have ended since it was found.
    request.runs_already =
        request.runs_already.filter(|key| procfs::key(key.pid).is_ok_and(|now| now == *key));
    let started_as = started_as(request);
    if let Some((name, root)) = living(request, started_as.as_ref())? {
        (request.name, request.runs_already) = (Some(name.to_string()), Some(root));
    }
    Ok(started_as)
}

/// Returns the living program that an earlier `undying run` has started with the same command in the same directory, and
/// its name.
fn living(request: &RunRequest, wanted: Option<&StartedAs>) -> Result<Option<(SubjectName, ProcessKey)>> {
    if request.launch.is_service {
        return Ok(None);
    }
    let Some(store) = request.store.open()? else { return Ok(None) };
    let is_same = |record: &Record| {
        record
            .started_as
            .as_ref()
            .zip(wanted)
            .is_some_and(|(earlier, wanted)| earlier.is_same_command(wanted))
    };
    if let Some(name) = &request.name {
        let name = SubjectName::chosen(name)?;
        return match unguarded(&store, &name) {
            Some((record, root)) if is_same(&record) => Ok(Some((name, root))),
            Some((_, root)) if request.adopted() == Some(root.pid) => Ok(None),
            Some((record, root)) => Err(GuardianError::StillStarted {
                name: name.to_string(),
                pid: root.pid,
                adopt: adopt(&store, &name, &record),
            }),
            None => Ok(None),
        };
    }
    let found = store.names()?.into_iter().find_map(|name| {
        let (record, root) = unguarded(&store, &name)?;
        let is_named = record.started_as.as_ref().is_some_and(|earlier| earlier.is_named);
        (!is_named && is_same(&record)).then_some((name, root))
    });
    Ok(found)
}

/// Returns how the root of a new record was started, if the earlier record of this name tells it.
pub(super) fn recorded(directory: &Path, new: &Record) -> Option<StartedAs> {
    let earlier = Record::read(directory).ok().flatten()?;
    earlier.started_as.filter(|_| earlier.root == new.root)
}

/// Returns the command that adopts the root of a subject, with the interval of its checkpoints.
pub(crate) fn adopt(store: &Store, name: &SubjectName, record: &Record) -> String {
    let hz = record.facts.requested_hz;
    let every = if hz > 0.0 { format!(" --every {:.0}ms", 1000.0 / hz) } else { String::new() };
    let (store, pid) = (store.root().to_string_lossy(), record.root.pid);
    format!("undying run --store {} --name {name}{every} --adopt {pid}", Word(&store))
}

fn unguarded(store: &Store, name: &SubjectName) -> Option<(Record, ProcessKey)> {
    // A record that cannot be read names no program.
    let record = Record::read(&store.root().join(name.as_str())).ok()??;
    let root = unguarded_root(&record)?;
    Some((record, root))
}
