//! The values of a guard, by topic.
//!
//! Owns: the values; the modules beside this one change them.
//! Does not: act.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use model::ProcessKey;
use store::Completion;
use supervise::{Action, Event, SubjectStatus};

use super::super::children::{ChildDeath, Children};
use super::super::claim::Claim;
use super::super::connections::IdleConnections;
use super::super::departed::Departed;
use super::super::output::HeldOutput;
use super::super::reasons::Reasons;
use super::super::rebuild::Rebuild;
use super::super::request::RunRequest;
use super::super::requests::Requests;
use super::super::tracer::Tracer;
use crate::error::{GuardianError, Result};
use crate::event::{CheckpointEvent, RunEvent};
use crate::files::WrittenFiles;
use crate::journal::Journal;
use crate::record::Record;
use crate::signals::Request;

/// A subject being guarded.
pub(crate) struct Guard {
    pub(super) request: RunRequest,
    pub(super) claim: Claim,
    pub(super) requests: Requests,
    pub(super) driver: Driver,
    pub(super) tree: Tree,
    pub(super) taking: Taking,
    pub(super) refusals: Refusals,
    pub(super) rebuild: Rebuild,
    pub(super) files: WatchedFiles,
    pub(super) connections: IdleConnections,
    pub(super) output: Option<HeldOutput>,
    pub(super) voice: Voice,
}

/// Work of a subject that may block.
pub(crate) type Work = Box<dyn FnOnce() -> After + Send>;

/// What the guard makes of the work when it is done.
pub(crate) type After = Box<dyn FnOnce(&mut Guard) -> Result<Event> + Send>;

/// The state machine, and its pending decisions.
pub(super) struct Driver {
    pub(super) machine: supervise::Subject,
    /// What is decided, and not done yet.
    pub(super) actions: VecDeque<Action>,
    /// The incarnation that the rest of the guard refers to.
    pub(super) incarnation: u64,
    /// The error of the action that failed last.
    pub(super) last_error: Option<GuardianError>,
    /// Signals to the host that were not handed on yet.
    pub(super) signals: VecDeque<Request>,
    pub(super) progress: Progress,
}

/// Who is at work for the subject.
pub(super) enum Progress {
    /// The guard itself.
    Own,
    /// A worker, as soon as it gets this.
    Ordered(Work),
    /// A worker.
    Away,
    /// None: an action has failed, and the tracer has to detach from the subject.
    Failing,
}

/// The processes of the subject besides its root.
pub(super) struct Tree {
    /// Reports failures among them, if these count.
    pub(super) children: Option<Children>,
    /// The failure for which the root is being ended.
    pub(super) child_death: Option<ChildDeath>,
    /// Those at the last checkpoint, for a root that is not a child of this process.
    pub(super) known: Vec<ProcessKey>,
    /// Those that have left the tree.
    pub(super) departed: Departed,
    /// None of this incarnation ran before, on CLOCK_MONOTONIC.
    pub(super) resumed_after: Duration,
    /// The root has ended, and this was not reported yet.
    pub(super) death: Option<SubjectStatus>,
}

/// How checkpoints are taken and written.
pub(super) struct Taking {
    pub(super) tracer: Tracer,
    /// Those that were taken and are not durable yet, rising, as far as they are known.
    pub(super) pending: VecDeque<CheckpointEvent>,
    /// Reports of the log about a checkpoint that the tracer has not reported yet.
    pub(super) early: Option<Completion>,
    /// A failure that may be the death of the subject, and how long that is waited for.
    pub(super) recheck: Option<(GuardianError, Instant)>,
}

/// Why checkpoints were not taken, or late.
#[derive(Default)]
pub(super) struct Refusals {
    pub(super) reasons: Reasons,
    pub(super) late: Reasons,
    /// A failure was reported, and no checkpoint after it.
    pub(super) is_told: bool,
}

/// The files that the subject changes.
#[derive(Default)]
pub(super) struct WatchedFiles {
    /// Those that checkpoints have recorded.
    pub(super) written: WrittenFiles,
    /// Why checkpoints were taken that files cannot go back to.
    pub(super) deferred: Reasons,
    /// Why the way back was lost so far.
    pub(super) breaks: Reasons,
}

/// Reports to the operator, and records for later commands.
pub(super) struct Voice {
    pub(super) journal: Journal,
    pub(super) record: Record,
    pub(super) told: Told,
    /// Reports that the operator has not received yet.
    pub(super) outbox: Vec<RunEvent>,
    /// Messages wait until files have gone back, as they may go to one of them.
    pub(super) is_holding: bool,
}

/// Reports that are made once in a run, and were made.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Told {
    /// That the status cannot be written.
    pub(super) status: bool,
    /// Files that can prevent a restart.
    pub(super) files: bool,
    /// Files that prevent every restart.
    pub(super) unknown_files: bool,
    /// What can be done about a program that kills its own children.
    pub(super) child: bool,
    /// That the way back of files is lost, and not yet that there is one again.
    pub(super) is_broken: bool,
}
