//! The states of a subject, the events that change a state, and the actions that follow an event.
//!
//! Owns: the types for states, events, actions, notices, and the ways in which a run ends.
//! Invariants: the guardian carries out actions in the order in which `Subject` returns them. One event answers each of
//! the actions `Take`, `OpenLog`, `Clear`, `Survey`, `Restore` and `Start`. Until this event, `Subject` returns none of
//! these six actions. Exception: `Clear`, `Survey`, `Restore` and `Start` can follow a death while the answer to
//! `OpenLog` is pending.
//! Does not: write texts for the operator, or change a state; `Subject` changes states.

use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use super::survey::{FreshReason, Survey};
use crate::fault::Fault;
use crate::restarts::RestartLimit;
use crate::status::{KILL, SubjectStatus};

/// The sequence number that means the beginning of the program. No checkpoint has this number.
pub(super) const BEGINNING: Sequence = Sequence(0);

/// The state of a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The program is being started from its beginning, or is being adopted.
    Starting {
        /// Whether the files are rolled back to the beginning of the program before the start.
        is_with_files: bool,
    },
    /// The program runs.
    Running,
    /// The program runs, and a checkpoint is being taken.
    Checkpointing {
        /// The sequence number of the checkpoint.
        sequence: Sequence,
        /// Whether a process of the subject has requested the checkpoint.
        is_wanted: bool,
        /// With a requested restart, the subject stays stopped after the checkpoint. The value is the time at which the
        /// request expires.
        restart_by: Option<Instant>,
    },
    /// The subject is stopped after its last checkpoint, for a requested restart or a hold.
    Stopped {
        /// The sequence number of the checkpoint.
        sequence: Sequence,
        /// The current step of the requested restart.
        step: StopStep,
    },
    /// The program runs, and has requested that checkpoints are deferred.
    Held,
    /// The root process has died, and the remaining processes are being ended.
    Dying(Death),
    /// The restart waits until the given time.
    BackingOff(Death, Instant),
    /// The subject is being restored.
    Restoring {
        /// The death that caused the restore.
        death: Death,
        /// The current step of the restore.
        step: Step,
        /// Whether a restore of a checkpoint has failed since this death.
        has_failed: bool,
    },
    /// The run has ended. This state is final.
    Ended(End),
}

/// A death for which the restart policy requires a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// The status with which the root ended. If the root was killed because another process of the subject had failed,
    /// the status is that of the failed process.
    pub status: SubjectStatus,
    /// The fault for which the guardian killed the root. The fault counts even if the root exited with code 0.
    pub fault: Option<Fault>,
    /// The time at which the death was detected.
    pub noticed: Instant,
}

impl Death {
    /// Reports whether the status is a death by SIGKILL, and the guardian had found no fault. Another process has sent
    /// this signal, so the death is no evidence that the state of the program leads to deaths.
    pub(super) fn is_from_outside(self) -> bool {
        self.fault.is_none() && self.status == SubjectStatus::Killed(KILL)
    }

    /// Reports whether the death counts for the limit on restarts and for the back-off, and can be evidence against a
    /// checkpoint. A death for the fault of another member of a group, and a requested death, do not count.
    pub(super) fn is_own(self) -> bool {
        self.fault.is_none_or(Fault::is_own)
    }
}

/// The current step of a requested restart or of a hold, while the subject is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopStep {
    /// The checkpoint is being written, at most until the given time.
    Writing(Instant),
    /// The guardian checks that a restore can use the checkpoint.
    Checking,
    /// The subject is being killed. The death follows.
    Killing,
    /// The subject is being resumed, because the restart was called off, or because its hold has ended.
    Resuming,
    /// An operator holds the subject, at most until the given time.
    Holding(Instant),
}

/// The current step of a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The checkpoints are being listed. `Subject` needs the list to decide how long the restore waits for checkpoints
    /// in flight.
    Weighing,
    /// The restore waits, at most until the given time, for checkpoints in flight.
    Settling(Instant),
    /// The checkpoints are being listed. `Subject` needs the list for two decisions: against which checkpoint the death
    /// is evidence, and which checkpoint is restored.
    Judging,
    /// A restore has failed, and the checkpoints are being listed once more, so that `Subject` can choose the next
    /// checkpoint.
    Choosing,
    /// The processes of the checkpoint with this number are being built.
    Building(Sequence),
}

/// The way in which a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The subject ended with this status, and is not restarted.
    Over(SubjectStatus),
    /// The subject ended with this status, and the limit allows no further restart.
    GaveUp(SubjectStatus),
    /// The subject could not be restored or started.
    Failed(Failure),
    /// A process of the subject still runs, and the guardian cannot end the process.
    Left,
}

/// The reason why a subject could not be restored or started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// An action failed. The guardian keeps the error of the action.
    LastError,
    /// This checkpoint could not be restored, and this is not the fault of the checkpoint. No older checkpoint was
    /// tried. The guardian keeps the error of the last attempt.
    Stopped(Sequence),
    /// No checkpoint could be restored, and `undying` cannot start an adopted program. The guardian keeps the error of
    /// the last attempt.
    NotRestorable {
        /// The number of checkpoints.
        tried: usize,
    },
    /// The restart would have to start the program from its beginning, but `undying` cannot start an adopted program.
    NoWayBack,
    /// The program has changed files after this checkpoint, the newest, and the plan refuses to restart in this case.
    ChangedSince(Sequence),
}

impl State {
    /// Reports whether the program lives.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Running | Self::Checkpointing { .. } | Self::Held | Self::Stopped { .. })
    }
}

/// A report of the guardian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The program was started from its beginning, or was adopted. This event is the first event of a run. Within a
    /// run, the event answers `Action::Start`.
    Started,
    /// The program has reported the end of its initialisation.
    Ready,
    /// Reports whether any process of the subject defers checkpoints.
    Holds(bool),
    /// A process of the subject has requested a checkpoint.
    Wanted,
    /// The guardian has reported all events that had arrived. Now `Subject` handles what is due: a checkpoint, the end
    /// of a back-off, or the end of a wait for checkpoints in flight.
    Due,
    /// The guardian and the subject were stopped at the same time, and now run again.
    Continued,
    /// A checkpoint was taken and is being written. This event answers `Action::Take` and `Action::TakeAndHold`.
    Taken {
        /// The time since the begin of the pause. The report of a checkpoint can come long after its pause.
        ago: Duration,
        /// The duration of the pause for the checkpoint.
        pause: Duration,
        /// The duration of all stops before the pause that attached dirty-page trackers to new processes, or whose
        /// capture was aborted. Usually zero.
        arming: Duration,
        /// The slices: stops before the pause, each of which copied a part of the pages. `None` without slices.
        sliced: Option<Sliced>,
        /// Whether the checkpoint spent most of its time waiting for the store.
        is_store_slow: bool,
        /// The time that the subject has lost by the checkpoint besides the stops.
        besides: Duration,
    },
    /// Dirty pages were scanned, and no checkpoint was taken. This event answers `Action::Take` in a dry run.
    Scanned {
        /// The duration of the pause for the scan.
        pause: Duration,
    },
    /// No checkpoint was taken. This event answers `Action::Take`.
    NotTaken(NotTaken),
    /// The log accepts no further checkpoints. The data that was not yet written to the log is lost. This event answers
    /// `Action::Take`.
    LogLost,
    /// The log was opened again. This event answers `Action::OpenLog`.
    LogOpened,
    /// The log could not be opened. This event answers `Action::OpenLog`.
    LogNotOpened {
        /// Whether the subject died while the log was being opened.
        is_dying: bool,
    },
    /// A checkpoint is durable.
    Committed {
        /// The sequence number of the checkpoint.
        sequence: Sequence,
        /// The oldest checkpoint in the log.
        oldest: Option<Sequence>,
    },
    /// A checkpoint could not be written.
    WriteFailed(Sequence),
    /// The guardian or the log has discarded a checkpoint in flight. This is not a failure to write.
    CalledOff(Sequence),
    /// A comparison has found that the pages of a checkpoint differ from the memory of the subject.
    Differs(Sequence),
    /// The present restore has ended connections of the program. A program that does not connect again ends then.
    ConnectionsEnded,
    /// Peers have received output of the program that no usable checkpoint contains. Peers rely on such output, so files
    /// are not rolled back past this event.
    OutputSent,
    /// An operator has requested a restart of the subject from a checkpoint of this moment.
    RestartRequested,
    /// An operator has requested that the subject is stopped after a checkpoint of this moment, for at most this time.
    HoldRequested(Duration),
    /// An operator has requested the end of a hold.
    ReleaseRequested,
    /// A restore can read the checkpoint of a requested restart. The list contains the checkpoints of the subject. This
    /// event answers `Action::Check`.
    Checked(Survey),
    /// A restore cannot use the checkpoint of a requested restart. This event answers `Action::Check`.
    NotUsable,
    /// The stopped subject runs again. This event answers `Action::ResumeHeld`.
    HeldResumed,
    /// The guardian received a signal that requests the end of the subject.
    EndRequested(Signal),
    /// A process of the subject has died by this signal. The process is not the root.
    ChildFailed(Signal),
    /// A check of the guardian has found a fault of the subject.
    Faulted(Fault),
    /// The root process has ended. The guardian has already reported all events before the death.
    Died {
        /// The status with which the root ended.
        status: SubjectStatus,
        /// Whether the subject is in the foreground process group of the terminal.
        has_terminal: bool,
        /// The checkpoints that may have been taken after another process of the subject had failed. Empty if no other
        /// process has failed.
        after_child: Vec<Sequence>,
    },
    /// All processes of the dead subject have ended. This event answers `Action::Clear`.
    Cleared,
    /// The remaining processes could not be ended, or the checkpoints could not be listed. This event answers
    /// `Action::Clear` and `Action::Survey`.
    StepFailed(RestoreError),
    /// The checkpoints of the subject. This event answers `Action::Survey`.
    Surveyed(Survey),
    /// The subject runs again, from the requested checkpoint. This event answers `Action::Restore`.
    Restored,
    /// The restore failed, and has left no process. This event answers `Action::Restore`.
    NotRestored(RestoreError),
    /// The program was not started, or its files could not be rolled back. This event answers `Action::Start`.
    NotStarted(RestoreError),
    /// An action failed, and no other event describes the failure.
    Failed,
}

/// The slices of a checkpoint. In a slice, the subject is stopped before the pause, and a part of the pages is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sliced {
    /// The duration of the longest slice.
    pub longest: Duration,
    /// The total duration of all slices.
    pub total: Duration,
}

/// The reason why no checkpoint was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The log cannot accept more data: too many checkpoints are still being written.
    Behind,
    /// The dirty-page tracker could not be attached. Another tracker is used from now on.
    TrackerReplaced,
    /// The checkpoint was refused, or has failed.
    Refused,
    /// The subject was dying.
    Dying,
}

/// Whose fault it is that a step of a restart has failed, and what the failure means for the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoreError {
    /// The fault of the checkpoint: a record or a page of the checkpoint cannot be used. The restore of an older
    /// checkpoint may succeed.
    Unusable,
    /// No fault of the checkpoint: a resource is missing now, or a process of `undying` was killed. The same step is
    /// repeated after a wait.
    NotNow,
    /// The kernel has refused a call, and the error does not tell whose fault this is. The same step is repeated. If
    /// the step fails each time, the failure is the fault of the checkpoint.
    Unclear,
    /// The fault of the configuration: for example, a privilege or a kernel feature is missing. Neither a wait nor an
    /// older checkpoint helps.
    Configuration,
    /// Files have changed since the checkpoint. The files differ even more from older checkpoints.
    FilesChanged,
    /// The files could not be rolled back. No file was changed.
    FilesStay,
    /// Only some of the files were rolled back, so that the files match no checkpoint.
    FilesHalfWay,
}

/// An instruction to the guardian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Take a checkpoint with this number. The checkpoint fulfils all requests (`Event::Wanted`) that arrived before
    /// this action.
    Take(Sequence),
    /// Like `Take`, but leave the subject stopped, for a requested restart.
    TakeAndHold(Sequence),
    /// Check that a restore can use this durable checkpoint of the stopped subject, and list the checkpoints.
    Check(Sequence),
    /// Kill all processes of the stopped subject. None of them runs before its end.
    KillHeld,
    /// Resume the stopped subject.
    ResumeHeld,
    /// Open the log again, after `Event::LogLost`. All checkpoints that were in flight are lost.
    OpenLog,
    /// Kill the root process.
    KillRoot,
    /// Send this signal to the program. The guardian received the signal while the program did not run.
    Signal(Signal),
    /// Count checkpoints that were due but were not taken. The fields are the reason and the number of checkpoints.
    Late(LateReason, u32),
    /// Report a notice to the operator.
    Report(Notice),
    /// End all remaining processes of the dead subject.
    Clear,
    /// List the checkpoints.
    Survey,
    /// Invalidate all checkpoints in flight.
    LeaveBehind {
        /// The numbers of these checkpoints, in rising order.
        dropped: Vec<Sequence>,
        /// The newest checkpoint that remains valid; 0 if there is none.
        newest: Sequence,
    },
    /// Restore this checkpoint. With `ChangedFiles::Rewind`, roll the files back before the processes are built.
    Restore(Sequence),
    /// Start the program from its beginning.
    Start {
        /// Whether the files are rolled back to the beginning of the program before the start. If `false`, the files
        /// stay as they are.
        is_with_files: bool,
        /// The reason why no checkpoint is used, for a report to the operator. `None` if no report is needed, for
        /// example if there is no checkpoint.
        why: Option<FreshReason>,
    },
}

impl Action {
    /// Reports whether the action is a step of a restart. A step that has failed can be repeated.
    pub(super) fn is_step(&self) -> bool {
        matches!(self, Self::Clear | Self::Survey | Self::Restore(_) | Self::Start { .. })
    }
}

/// The reason why due checkpoints were not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateReason {
    /// The previous checkpoint was still being copied.
    Copying,
    /// The store was still writing earlier checkpoints.
    Writing,
    /// The program defers checkpoints.
    Held,
}

/// The reason why a requested restart is called off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotRestarted {
    /// No checkpoints are taken of the program.
    NoCheckpoints,
    /// The checkpoints of the program contain only its state after the start.
    OnlyInitial,
    /// The program is not ready yet.
    NotReady,
    /// The program is being ended or killed.
    Ending,
    /// The checkpoint was refused, or has failed. The guardian keeps the reason.
    NotTaken,
    /// The checkpoint could not be written. The guardian keeps the reason.
    NotWritten,
    /// A restart would not use the checkpoint. The guardian keeps the reason, if a restore was refused.
    NotUsable,
    /// No checkpoint was durable in time.
    Late,
}

/// A report to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The subject died, and a restart may follow.
    Died(SubjectStatus),
    /// The root is killed, because another process of the subject has failed.
    ChildFailed,
    /// The root is killed, because the subject has this fault.
    Faulted(Fault),
    /// The requested restart or hold is called off, and the program continues.
    NotRestarted(NotRestarted),
    /// The hold has ended, and the program continues.
    Released {
        /// Whether the time limit has ended the hold.
        is_late: bool,
    },
    /// The limit on restarts was exceeded.
    GaveUp(RestartLimit),
    /// The restart waits for this time.
    BacksOff(Duration),
    /// A step of the restart has failed for the first time, and is repeated after this time. The guardian keeps the
    /// error of the attempt.
    Repeats(Duration),
    /// Repeated deaths are evidence against this checkpoint, and the checkpoint is no longer used.
    Poisoned(Sequence),
    /// A checkpoint could not be restored. The guardian keeps the error of the attempt.
    NotRestored {
        /// The sequence number of the checkpoint.
        sequence: Sequence,
        /// Whether the next report to the operator names the same reason. If `true`, this notice is written only to the
        /// journal.
        is_explained_next: bool,
    },
    /// The subject runs again from this checkpoint.
    Restored {
        /// The sequence number of the checkpoint.
        sequence: Sequence,
        /// The time from the death to the restore.
        took: Duration,
        /// The running time of the program between the checkpoint and the death. The restart has discarded the work of
        /// this time. `None` if an earlier guardian has taken the checkpoint.
        age: Option<Duration>,
    },
    /// The subject has exited by itself with the same code as before the restart, and is not restarted again.
    EndedAgain(SubjectStatus),
    /// Every usable checkpoint has led to another death, and files cannot be rolled back to the beginning of the
    /// program. Therefore, the program is not restarted.
    NotBegunAnew,
}
