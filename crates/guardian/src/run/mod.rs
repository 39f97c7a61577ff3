//! `run`: a program and the one who keeps it alive.
//!
//! Owns: how a subject is started or adopted, and what the caller is told in the end.
//! Invariants: this program may be killed at any instant, and stopped where no files are watched; the subject then goes
//! on unguarded.
//! Does not: checkpoint, restore or decide; its modules do.

mod children;
mod claim;
mod departed;
mod guard;
mod leftovers;
mod reasons;
mod requests;
mod tracer;
mod watching;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use model::{ByteCount, Pid};
use store::{Store, SubjectName};
use supervise::SubjectStatus;
use sys::listener_holder::ListenerHolder;
use tracee::procfs;

use crate::ancestry;
use crate::compression::Compression;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::foreground::Foreground;
use crate::guarded;
use crate::inspection::{require_features, require_restorable};
use crate::location::StoreLocation;
use crate::record::{ProcessName, Record};
use crate::signals::Signals;
use crate::streams::Streams;
use crate::subject::Subject;
use children::Children;
use guard::{Guard, Host, Parts};
use leftovers::Household;
use requests::Requests;
use tracer::{Place, Tracking};
use watching::Watching;

pub(crate) use claim::{Claim, LOCK_FILE};
pub use engine::{MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Tuning};
pub(crate) use reasons::without_numbers;
pub use supervise::{ChangedFiles, RestartLimit, RestartPolicy};

/// The shortest time between two checkpoints.
pub const EVERY_MIN: Duration = Duration::from_millis(10);
/// The time between two checkpoints when nobody says.
pub const EVERY_DEFAULT: Duration = Duration::from_secs(30);
/// What is compressed has not changed for so long, when nobody says: what most programs write again, they write again
/// before that.
pub const COMPRESS_AFTER_DEFAULT: Duration = Duration::from_secs(60);
/// Default bound of the undo log of files, in bytes.
pub const FILES_UNDO_MAX_DEFAULT: ByteCount = ByteCount(2 << 30);
/// Default part of the time that keeping files may cost.
pub const FILES_COST_MAX_DEFAULT: f64 = 0.1;
/// Checkpoints that are kept when nobody says.
pub const KEEP_DEFAULT: usize = 8;

/// The undo log of files, below the directory of a subject.
pub(crate) const UNDO_DIRECTORY: &str = "undo";

/// The tracker when nobody says: the best that works.
pub const TRACKER_DEFAULT: &str = "auto";

/// What `run` is asked.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// What is guarded.
    pub what: Guarded,
    /// The subject's name; without one it is named after its program.
    pub name: Option<String>,
    /// Time between two checkpoints.
    pub every: Duration,
    /// Take no checkpoint by the clock before the subject has said that it is ready.
    pub await_ready: bool,
    /// Accept that connections to outside the tree come back as ended by the peer.
    pub lose_connections: bool,
    /// Where its images live.
    pub store: StoreLocation,
    /// How many of them are kept.
    pub keep: usize,
    /// How what has not changed for a while is compressed in the store, if it is.
    pub compression: Option<Compression>,
    /// How long that while is.
    pub compress_after: Duration,
    /// Compare every so many checkpoints with the subject, page by page, before it goes on.
    pub verify_every: Option<NonZeroU64>,
    /// Look for dirty pages, and take no checkpoint: what tracking alone costs.
    pub dry_run_tracking: bool,
    /// How dirty pages are found: a tracker's name, or `auto`.
    pub tracker: String,
    /// How the pause and the copies are made.
    pub tuning: Tuning,
    /// Which deaths are followed by a restart.
    pub policy: RestartPolicy,
    /// The death of a process by SIGKILL, SIGSEGV, SIGBUS or SIGABRT counts as one of the whole subject.
    pub child_signals: bool,
    /// What a restart does with files that the subject has changed; `None` for going back where that is possible, else
    /// a start from the beginning when they have changed.
    pub files: Option<ChangedFiles>,
    /// Bytes that the undo log of files may take.
    pub files_undo_max: ByteCount,
    /// Part of the time that keeping files may cost, 0.1 for a tenth.
    pub files_cost_max: f64,
    /// How often at most.
    pub limit: RestartLimit,
}

/// What `run` guards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Guarded {
    /// A program, started for the purpose: its name and arguments.
    Command(Vec<OsString>),
    /// A process that runs already.
    Process(Pid),
}

/// Runs or adopts a program, and keeps it alive until it has ended for good.
///
/// # Errors
///
/// When it cannot be started, watched or, once dead, restored. A program that runs goes on.
pub fn run(request: &RunRequest, tell: &mut dyn FnMut(&RunEvent)) -> Result<SubjectStatus> {
    let streams = Streams::inherited()?;
    require_features()?;
    require_restorable()?;
    if let Guarded::Process(pid) = request.what {
        ancestry::refuse(pid)?;
        guarded::refuse(pid)?;
    }
    let (files, no_rewind) = watching::choose(request)?;
    let tracking = tracking(request)?;
    let store = request.store.create()?;
    let mut claim = claim(&store, request)?;
    // A copy of as little memory as possible.
    let holder = (files == ChangedFiles::Rewind).then(ListenerHolder::start).transpose()?;
    // Before there is any thread, which would take signals with their usual actions.
    let signals = Signals::take()?;
    let foreground = Foreground::new();
    // Before the children of this program are counted that are none of the subject's.
    let undo = claim.directory.join(UNDO_DIRECTORY);
    let watching = holder.map(|holder| Watching::start(undo, request, holder, &streams)).transpose()?;
    let tracking = Tracking { watch: watching.as_ref().map(Watching::shared), ..tracking };
    let household = Household::found()?;
    let children = request.child_signals.then(Children::listen).transpose()?;
    let log = Place::new(&store, &claim.name, request).open()?;
    let (subject, requests, first) = match &request.what {
        Guarded::Command(words) => {
            let requests = Requests::open(None)?;
            let subject = spawn(words, &signals, &requests, watching.as_ref())?;
            (subject, requests, store.next_sequence(&claim.name)?)
        }
        Guarded::Process(pid) => adopt(*pid, &store, &claim)?,
    };
    claim.use_it();
    let parts = Parts {
        store,
        claim,
        host: Host { household, signals, streams, foreground, has_orphans: false },
        requests,
        children,
        subject,
        first,
        log,
        tracking,
        files,
        no_rewind,
        watching,
    };
    let mut guard = Guard::new(request, parts, tell)?;
    let outcome = guard.watch();
    guard.leave(outcome.as_ref().ok().copied());
    outcome
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

/// Starts the program as a child that knows where to ask for checkpoints and inherits streams, environment, directory,
/// process group, signal mask and actions.
fn spawn(
    words: &[OsString],
    signals: &Signals,
    requests: &Requests,
    watching: Option<&Watching>,
) -> Result<Subject> {
    let (program, arguments) = words.split_first().ok_or_else(|| no_command(OsString::new()))?;
    let mut command = Command::new(program);
    command.env(requests::VARIABLE, requests.name());
    sys::signal::start_with(command.args(arguments), signals.blocked_before(), signals.defaults());
    let failed = |error: std::io::Error| {
        let source = sys::Error::path("execute", Path::new(program), error);
        GuardianError::Command { command: program.clone(), source }
    };
    match watching {
        Some(watching) => Subject::child(watching.spawn(&mut command, failed)?),
        None => Subject::child(Pid(command.spawn().map_err(failed)?.id() as i32)),
    }
}

fn no_command(command: OsString) -> GuardianError {
    GuardianError::Command { command, source: sys::Error::new("execute nothing", sys::Errno::ENOENT) }
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
fn adopt(pid: Pid, store: &Store, claim: &Claim) -> Result<(Subject, Requests, model::Sequence)> {
    let subject = Subject::stranger(pid).map_err(|_| engine::EngineError::NoProcess(pid))?;
    let before = Record::read(&claim.directory).ok().flatten();
    let same = |record: &Record| record.has_root() && record.root == ProcessName::of(subject.key());
    let before = before.filter(same);
    let requests = Requests::open(before.as_ref().map(|record| record.requests.as_str()))?;
    let first = match before {
        Some(record) => model::Sequence(record.first_sequence),
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
