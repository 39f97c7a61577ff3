//! The states of a subject (a protected program), the events that change the states, and the actions that follow.
//!
//! The guardian (the process of `undying run` and `undying up`) reports events and carries out actions. The root is the
//! first process of a subject. An incarnation of a subject lasts from a start or restore to the next death. A run
//! consists of incarnations, until the subject is not restarted. A checkpoint in flight was taken, and is not yet
//! durable.
//!
//! Owns: the types for states, events, actions, notices, and the ways in which a run ends.
//! Invariants: actions are carried out in the given order. Each of `Take`, `OpenLog`, `Clear`, `Survey`, `Restore` and
//! `Start` is answered by one event. While an answer is pending, only `OpenLog` of these actions may be given.
//! Does not: write texts for the operator, or change a state; `Subject` changes states.

use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use crate::fault::Fault;
use crate::restarts::RestartLimit;
use crate::status::{KILL, SubjectStatus};

/// The state of a subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The program is being started from its beginning, or adopted.
    Starting {
        /// Whether the files are first rolled back to the beginning of the program.
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
    },
    /// The program runs, and defers checkpoints on its own request.
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
        /// Whether a restore of a checkpoint has already failed.
        has_failed: bool,
    },
    /// The run has ended. This state is final.
    Ended(End),
}

/// A death that is followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// The status of the death. If the root was killed because another process had failed, the status is the failure of
    /// this process.
    pub status: SubjectStatus,
    /// The fault for which the root was killed; independent of the exit status of the root.
    pub fault: Option<Fault>,
    /// The time at which the death was detected.
    pub noticed: Instant,
}

impl Death {
    /// Reports whether the program ended successfully, so that its checkpoints are not needed.
    pub(super) fn is_clean(self) -> bool {
        self.fault.is_none() && self.status.is_clean()
    }

    /// Reports whether the root was killed by SIGKILL from another process, and not for a fault. Such a death is no
    /// evidence against the state of the program.
    pub(super) fn is_from_outside(self) -> bool {
        self.fault.is_none() && self.status == SubjectStatus::Killed(KILL)
    }

    /// Reports whether the death counts: for the limit on restarts, for the back-off, and against a checkpoint.
    pub(super) fn is_own(self) -> bool {
        self.fault.is_none_or(Fault::is_own)
    }
}

/// The current step of a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The checkpoints are being listed. The list decides how long the restore waits for checkpoints in flight.
    Weighing,
    /// The restore waits, at most until the given time, for checkpoints in flight.
    Settling(Instant),
    /// The checkpoints are being listed. The list decides which checkpoint the death is evidence against.
    Judging,
    /// The checkpoints are being listed again, after a failed restore.
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
    /// An action failed. The last error contains the reason.
    LastError,
    /// No checkpoint could be restored, and the program was adopted, so that `undying` cannot start the program. The
    /// last error belongs to the oldest checkpoint.
    NotRestorable {
        /// The number of checkpoints.
        tried: usize,
    },
    /// There is no checkpoint, and the program was adopted, so that `undying` cannot start the program.
    NoWayBack,
}

impl State {
    /// Reports whether the program runs.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Running | Self::Checkpointing { .. } | Self::Held)
    }
}

/// A report of the guardian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The program was started from its beginning, or adopted. This event begins a run, and also answers
    /// `Action::Start`.
    Started,
    /// The program has reported the end of its initialisation.
    Ready,
    /// Reports whether any process of the subject defers checkpoints.
    Holds(bool),
    /// A process of the subject has requested a checkpoint.
    Wanted,
    /// All events that have arrived were reported. The subject then handles due actions.
    Due,
    /// The guardian and the subject were stopped together, and continue.
    Continued,
    /// A checkpoint was taken and is being written. This event answers `Action::Take`.
    Taken {
        /// The duration of the pause for the checkpoint.
        pause: Duration,
        /// The duration of an earlier stop, in which dirty-page trackers were attached to new processes.
        arming: Duration,
        /// The earlier stops that each copied a part of the pages (slices); `None` without slices.
        sliced: Option<Sliced>,
        /// Whether most of the time was spent waiting for the store.
        is_store_slow: bool,
    },
    /// Dirty pages were scanned, and no checkpoint was taken. This event answers `Action::Take` in a dry run.
    Looked {
        /// The duration of the pause for the scan.
        pause: Duration,
    },
    /// No checkpoint was taken. This event answers `Action::Take`.
    NotTaken(NotTaken),
    /// The log (the file of the subject's checkpoints) accepts no further checkpoints, and its unwritten data is lost.
    /// This event answers `Action::Take`.
    LogLost,
    /// The log was opened again. This event answers `Action::OpenLog`.
    LogOpened,
    /// The log could not be opened. This event answers `Action::OpenLog`.
    LogNotOpened {
        /// Whether the subject has died in the meantime.
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
    /// The log has discarded a checkpoint on request.
    CalledOff(Sequence),
    /// The content of a checkpoint differs from the subject.
    Differs(Sequence),
    /// The guardian received a signal that requests the end of the subject.
    EndRequested(Signal),
    /// A process of the subject other than the root process has died by this signal.
    ChildFailed(Signal),
    /// A check of the guardian has found a fault of the subject.
    Faulted(Fault),
    /// The root process has ended. All earlier events were already reported.
    Died {
        /// The status with which the root ended.
        status: SubjectStatus,
        /// Whether the subject is in the foreground process group of the terminal.
        has_terminal: bool,
        /// Checkpoints that were possibly taken after the failure of another process of the subject.
        after_child: Vec<Sequence>,
    },
    /// All processes of the dead subject have ended. This event answers `Action::Clear`.
    Cleared,
    /// The checkpoints of the subject. This event answers `Action::Survey`.
    Surveyed(Survey),
    /// The subject runs again, from the requested checkpoint. This event answers `Action::Restore`.
    Restored,
    /// The restore failed, and has left no process. This event answers `Action::Restore`.
    NotRestored(RestoreError),
    /// The program was not started, because its files could not be rolled back. This event answers `Action::Start`.
    NotStarted(RestoreError),
    /// An action failed for any other reason.
    Failed,
}

/// The stops of a checkpoint in slices. Each slice stops the subject and copies a part of the pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sliced {
    /// The duration of the longest stop.
    pub longest: Duration,
    /// The total duration of all stops.
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

/// The reason why a checkpoint could not be restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoreError {
    /// This checkpoint is unusable. An older checkpoint may be restorable.
    Unusable,
    /// Files have changed since the checkpoint. Older checkpoints match the files even less.
    FilesChanged,
    /// The files could not be rolled back. No file was changed.
    FilesStay,
    /// Only some files were rolled back. The files match no checkpoint.
    FilesHalfWay,
}

/// The list of a subject's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The committed checkpoints, in rising order.
    pub committed: Vec<Sequence>,
    /// The checkpoints to which files can be rolled back, committed or in flight. Unused if files are not rolled back.
    pub exact: Vec<Sequence>,
    /// Whether files can be rolled back to the beginning of the program.
    pub reaches_beginning: bool,
}

/// An instruction to the guardian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Take a checkpoint with this number. The checkpoint answers all earlier requests of processes.
    Take(Sequence),
    /// Open the log again. Its checkpoints in flight are lost.
    OpenLog,
    /// Kill the root process.
    KillRoot,
    /// Send this signal to the program. The signal arrived while the program did not run.
    Signal(Signal),
    /// Count checkpoints that were due and were not taken: the reason, and the number of checkpoints.
    Late(LateReason, u32),
    /// Report a notice to the operator.
    Tell(Notice),
    /// End all remaining processes of the dead subject.
    Clear,
    /// List the checkpoints.
    Survey,
    /// Invalidate the checkpoints that are still being written.
    LeaveBehind {
        /// The numbers of these checkpoints, in rising order.
        dropped: Vec<Sequence>,
        /// The newest checkpoint that remains valid; 0 if there is none.
        newest: Sequence,
    },
    /// Build the processes of this checkpoint. If files are rolled back, roll the files back first.
    Restore(Sequence),
    /// Start the program from its beginning.
    Start {
        /// Whether the files are first rolled back to the beginning of the program. Otherwise the files stay as they
        /// are.
        is_with_files: bool,
        /// The reason why no checkpoint is used; `None` if there is no checkpoint.
        why: Option<FreshReason>,
    },
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

/// The reason why a program starts from its beginning although there were checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreshReason {
    /// Earlier restores were followed by further deaths, and the limit allows no restart after this start.
    LastRestart,
    /// No checkpoint could be restored.
    NotRestorable {
        /// The number of checkpoints.
        tried: usize,
    },
    /// Files have changed since the newest checkpoint.
    FilesChanged,
    /// Files cannot be rolled back to any checkpoint.
    NoneExact,
    /// Files could not be rolled back to this checkpoint. 0 stands for the beginning of the program.
    FilesStay(Sequence),
}

/// A report to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The subject died, and a restart may follow.
    Died(SubjectStatus),
    /// A process other than the root process has failed, and the root process is killed for this reason.
    ChildFailed,
    /// The subject is faulty, and the root process is killed for this reason.
    Faulted(Fault),
    /// The limit on restarts was exceeded.
    GaveUp(RestartLimit),
    /// The restart waits for this time.
    BacksOff(Duration),
    /// A checkpoint has again led to a death, and is no longer used.
    Poisoned(Sequence),
    /// A checkpoint could not be restored. The reason is the last error.
    NotRestored {
        /// The sequence number of the checkpoint.
        sequence: Sequence,
        /// Whether the next notice reports the same reason.
        is_explained_next: bool,
    },
    /// The subject runs again from this checkpoint. The duration is the time since the death.
    Restored(Sequence, Duration),
}
