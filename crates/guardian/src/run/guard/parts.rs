//! This module defines the values of a guard, grouped by topic.
//!
//! Owns: the definition of the values. The other modules of this folder change the values.
//! Does not: act on the values.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use model::{Pid, ProcessKey};
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
use super::super::requested_restart::RequestedRestart;
use super::super::requests::Requests;
use super::super::tracer::Tracer;
use super::super::waits::Waits;
use super::members::Members;
use super::outbox::Outbox;
use crate::error::{GuardianError, Result};
use crate::event::CheckpointEvent;
use crate::files::WrittenFiles;
use crate::journal::Journal;
use crate::record::Record;
use crate::signals::Request;

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

/// A task for a subject. The task may block, so a worker thread executes the task.
pub(crate) type Work = Box<dyn FnOnce() -> After + Send>;

/// What remains to be done after a task of a worker. The guard executes this function.
pub(crate) type After = Box<dyn FnOnce(&mut Guard) -> Result<Event> + Send>;

/// The state machine and its pending decisions.
pub(super) struct Driver {
    pub(super) machine: supervise::Subject,
    /// Actions that are decided and not executed yet.
    pub(super) actions: VecDeque<Action>,
    /// The number of the incarnation to which the other values of the guard belong.
    pub(super) incarnation: u64,
    /// The error of the last action that failed.
    pub(super) last_error: Option<GuardianError>,
    /// Signals to the host that were not passed on to the subject yet.
    pub(super) signals: VecDeque<Request>,
    pub(super) progress: Progress,
    pub(super) restart: RequestedRestart,
}

/// Which thread works for the subject.
pub(super) enum Progress {
    /// The guard itself works.
    Own,
    /// Work is ordered, and no worker has taken it yet.
    Ordered(Work),
    /// A worker works.
    Away,
    /// No thread works: an action has failed, and the tracer has to detach from the subject.
    Failing,
}

/// The process tree of the subject.
pub(super) struct Tree {
    /// Reports failures of processes other than the root, if these failures count.
    pub(super) children: Option<Children>,
    /// The failure of another process, if the root is being ended because of this failure.
    pub(super) child_death: Option<ChildDeath>,
    /// The processes in the last checkpoint, if the root is not a child of this process.
    pub(super) known: Vec<ProcessKey>,
    /// Processes that have left the tree.
    pub(super) departed: Departed,
    /// Time on CLOCK_MONOTONIC before which no process of this incarnation ran.
    pub(super) resumed_after: Duration,
    /// The end of a root, if it was detected and not reported yet.
    pub(super) death: Option<(Pid, SubjectStatus)>,
    /// The root whose end was the last death.
    pub(super) dead: Pid,
    /// The members of a group that is one subject.
    pub(super) members: Members,
}

/// How checkpoints are taken and written.
pub(super) struct Taking {
    pub(super) tracer: Tracer,
    /// Checkpoints that were taken and are not durable yet, in rising order. The list contains only checkpoints that
    /// the tracer has reported to the guard.
    pub(super) pending: VecDeque<CheckpointEvent>,
    /// A report of the log about a checkpoint that the tracer has not reported yet.
    pub(super) early: Option<Completion>,
    /// The largest raised pause budget that was reported.
    pub(super) raised: Duration,
    /// The longest interval that was reported.
    pub(super) longest: Duration,
    /// How long the threads of the subject waited for a processor.
    pub(super) waits: Waits,
    /// A failure that the death of the subject may have caused, and the time until which the guard waits for this
    /// death.
    pub(super) recheck: Option<(GuardianError, Instant)>,
}

/// Why checkpoints were not taken, or were taken late.
pub(super) struct Refusals {
    pub(super) reasons: Reasons,
    pub(super) late: Reasons,
    /// Whether a failure was reported, and no checkpoint has succeeded since the report.
    pub(super) is_reported: bool,
    /// The time of the last commit, or of the begin of the incarnation.
    pub(super) on_time: Instant,
    /// The longest time without a commit that was reported.
    pub(super) late_reported: Duration,
}

impl Refusals {
    pub(super) fn new(now: Instant) -> Self {
        let (reasons, late) = (Reasons::default(), Reasons::default());
        Self { reasons, late, is_reported: false, on_time: now, late_reported: Duration::ZERO }
    }
}

/// The files that the subject changes.
#[derive(Default)]
pub(super) struct WatchedFiles {
    /// Files that checkpoints have recorded.
    pub(super) written: WrittenFiles,
    /// Why files cannot be rolled back to some of the taken checkpoints.
    pub(super) deferred: Reasons,
    /// Why files could no longer be rolled back to earlier checkpoints.
    pub(super) breaks: Reasons,
    /// Why files cannot be rolled back to the newest checkpoint. `None` if they can.
    pub(super) deferred_now: Option<String>,
    /// Whether it was reported that the newest checkpoint to which files can be rolled back is too old.
    pub(super) is_too_old: bool,
    /// When the effect of a death can change, even without another event.
    pub(super) outlook_due: Option<Instant>,
}

/// The output of the guard: the reports for the operator, and the status and journal for later commands.
pub(super) struct Voice {
    pub(super) journal: Journal,
    pub(super) record: Record,
    pub(super) reported: ReportedOnce,
    pub(super) outbox: Outbox,
    /// Whether the restored program redraws its window after the reports were written.
    pub(super) redraws: bool,
}

/// Flags of reports that are made once in a run. A flag is true after its report.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ReportedOnce {
    /// The status cannot be written.
    pub(super) status: bool,
    /// Files that can prevent a restart.
    pub(super) files: bool,
    /// Files that prevent every restart.
    pub(super) unknown_files: bool,
    /// Advice about a program that kills its own children.
    pub(super) child: bool,
    /// Files can no longer be rolled back. The report that files can be rolled back again resets this flag.
    pub(super) is_broken: bool,
}
