//! How a subject is started or adopted.
//!
//! Owns: the steps from a request to a subject that is guarded, and their order.
//! Invariants: a name is claimed before anything is started; a program that was started goes on if a later step fails.
//! Does not: guard it.

use std::path::Path;
use std::sync::Arc;

use model::{Pid, Sequence};
use store::{Store, SubjectName};
use supervise::{Beginning, ChangedFiles};
use sys::listener_holder::ListenerHolder;
use tracee::procfs;

use super::children::Children;
use super::claim::{Claim, UNDO_DIRECTORY};
use super::guard::{Guard, Parts};
use super::program::spawn;
use super::request::{Guarded, RunRequest, TRACKER_DEFAULT};
use super::requests::Requests;
use super::shared::Shared;
use super::tracer::{Place, Tracking};
use super::watching::{self, Watching};
use crate::ancestry;
use crate::error::Result;
use crate::foreground::Foreground;
use crate::guarded;
use crate::record::{ProcessName, Record};
use crate::subject::Subject;

/// Carries out a request until its subject runs and is guarded. Waits for the disk and for the program to be executed.
///
/// # Errors
///
/// When it cannot be started or watched. A program that runs goes on.
pub(crate) fn start(request: RunRequest, host: Arc<Shared>, foreground: Foreground) -> Result<Guard> {
    if let Guarded::Process(pid) = request.what {
        ancestry::refuse(pid)?;
        guarded::refuse(pid)?;
    }
    let (files, no_rewind) = watching::choose(&request)?;
    let tracking = tracking(&request)?;
    let store = request.store.create()?;
    let mut claim = claim(&store, &request)?;
    let holder = (files == ChangedFiles::Rewind).then(ListenerHolder::start).transpose()?;
    holder.iter().for_each(|holder| host.reaper.exempt(holder.pid()));
    let undo = claim.directory.join(UNDO_DIRECTORY);
    let watching = holder.map(|holder| Watching::start(undo, &request, holder, &host.streams)).transpose()?;
    let watching = watching.map(Arc::new);
    let tracking =
        Tracking { watch: watching.as_ref().map(|watching| Arc::clone(&watching.watch)), ..tracking };
    let children = request.child_signals.then(Children::listen).transpose()?;
    let log = Place::new(&store, &claim.name, &request).open()?;
    let (subject, requests, first) = match &request.what {
        Guarded::Command(words) => {
            let requests = Requests::open(None)?;
            let subject = spawn(words, &host, requests.name(), watching.as_deref())?;
            (subject, requests, store.next_sequence(&claim.name)?)
        }
        Guarded::Process(pid) => adopt(*pid, &store, &claim)?,
    };
    claim.use_it();
    let newest = store.newest(&claim.name)?.map(|(sequence, _)| sequence);
    let beginning = Beginning { next: store.next_sequence(&claim.name)?, first, newest };
    let parts = Parts {
        store,
        claim,
        host,
        foreground,
        requests,
        children,
        subject,
        beginning,
        log,
        tracking,
        files: (files, no_rewind),
        watching,
    };
    Guard::new(request, parts)
}

fn tracking(request: &RunRequest) -> Result<Tracking> {
    let choice = track::choose(&request.tracker).map_err(engine::EngineError::from)?;
    Ok(Tracking {
        kind: choice.kind,
        is_automatic: request.tracker == TRACKER_DEFAULT,
        verify_every: request.verify_every,
        is_dry: request.dry_run_tracking,
        tuning: request.tuning.clone(),
        watch: None,
    })
}

fn claim(store: &Store, request: &RunRequest) -> Result<Claim> {
    match (&request.name, &request.what) {
        (Some(name), _) => Claim::named(store, &SubjectName::chosen(name)?),
        (None, Guarded::Command(words)) => {
            let program = words.first().map(Path::new).and_then(Path::file_name);
            Claim::after(store, &valid(&program.unwrap_or_default().to_string_lossy()))
        }
        (None, Guarded::Process(pid)) => match name_of(store, *pid)? {
            Some(name) => Claim::named(store, &name),
            None => {
                let stat = procfs::stat(*pid).map_err(|_| engine::EngineError::NoProcess(*pid))?;
                Claim::after(store, &valid(&stat.comm))
            }
        },
    }
}

/// A program's name as one that a store takes.
fn valid(program: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_.+".contains(letter);
    let name: String = program.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "subject".to_owned() } else { name.to_owned() }
}

/// The name under which a process was guarded before.
fn name_of(store: &Store, pid: Pid) -> Result<Option<SubjectName>> {
    for name in store.names()? {
        // What cannot be read is no record of this process.
        let record = Record::read(&store.root().join(name.as_str())).ok().flatten();
        if record.is_some_and(|record| record.has_root() && record.root.pid == pid.get()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// A process that runs already, with what its last guardian has recorded of this very process: the socket for requests
/// that it knows, and the first checkpoint in the store that is one of its own.
fn adopt(pid: Pid, store: &Store, claim: &Claim) -> Result<(Subject, Requests, Sequence)> {
    let subject = Subject::stranger(pid).map_err(|_| engine::EngineError::NoProcess(pid))?;
    let before = Record::read(&claim.directory).ok().flatten();
    let same = |record: &Record| record.has_root() && record.root == ProcessName::of(subject.key());
    let before = before.filter(same);
    let requests = Requests::open(before.as_ref().map(|record| record.requests.as_str()))?;
    let first = match before {
        Some(record) => Sequence(record.first_sequence),
        None => store.next_sequence(&claim.name)?,
    };
    Ok((subject, requests, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_name_that_a_store_takes() {
        for (program, name) in
            [("redis-server", "redis-server"), ("a b@c", "a_b_c"), (".hidden", "hidden"), ("..", "subject")]
        {
            assert_eq!(valid(program), name);
            assert!(valid(program).parse::<store::SubjectName>().is_ok());
        }
    }
}
