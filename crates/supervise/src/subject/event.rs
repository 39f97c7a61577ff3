//! What a subject is doing, what can happen to it, and what is to be done.
//!
//! Owns: the states, the events that a host reports, the actions that it carries out, the ways in which a run ends.
//! Invariants: actions are carried out in their order. Each of `Take`, `OpenLog`, `Clear`, `Survey`, `Restore` and
//! `Start` is answered by one event; until then there is no second one of these, `OpenLog` apart.
//! Does not: word anything, or change a state; `Subject` does the latter.

use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use crate::fault::Fault;
use crate::restarts::RestartLimit;
use crate::status::{KILL, SubjectStatus};

/// What a subject is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The program is being started from its beginning, or adopted.
    Starting {
        /// Its files go back to the beginning first.
        is_with_files: bool,
    },
    /// It runs.
    Running,
    /// It runs, and a checkpoint of it is being taken.
    Checkpointing {
        /// Its number.
        sequence: Sequence,
        /// A process has requested it.
        is_wanted: bool,
    },
    /// It runs, and holds checkpoints back.
    Held,
    /// It has died, and its remaining processes are being ended.
    Dying(Death),
    /// Its restart waits until a time.
    BackingOff(Death, Instant),
    /// It is being restored.
    Restoring {
        /// The death that it is restored from.
        death: Death,
        /// What is being waited for.
        step: Step,
        /// A checkpoint could not be restored.
        has_failed: bool,
    },
    /// The run is over. This is final.
    Ended(End),
}

/// A death that is followed by a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// What the subject has died of: of this itself, or of the failure of one of its other processes.
    pub status: SubjectStatus,
    /// The fault that the root was killed for, whatever it has ended with.
    pub fault: Option<Fault>,
    /// When the death was noticed.
    pub noticed: Instant,
}

impl Death {
    /// Whether the program ended as it should, so that its checkpoints are of no use.
    pub(super) fn is_clean(self) -> bool {
        self.fault.is_none() && self.status.is_clean()
    }

    /// Whether SIGKILL came from another process: no evidence about the state that it ends. A kill for a fault is.
    pub(super) fn is_from_outside(self) -> bool {
        self.fault.is_none() && self.status == SubjectStatus::Killed(KILL)
    }

    /// Whether the death counts: for the limit on restarts, for the back-off and against a checkpoint.
    pub(super) fn is_own(self) -> bool {
        self.fault.is_none_or(Fault::is_own)
    }
}

/// The part of a restore that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Checkpoints are being listed, to decide how long those in flight are waited for.
    Weighing,
    /// Checkpoints in flight are waited for until a time.
    Settling(Instant),
    /// Checkpoints are being listed, to decide which of them the death speaks against.
    Judging,
    /// Checkpoints are being listed once more, after a restore that failed.
    Choosing,
    /// The processes of a checkpoint are being built.
    Building(Sequence),
}

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The subject ended, and is not restarted.
    Over(SubjectStatus),
    /// The limit on restarts does not allow another one.
    GaveUp(SubjectStatus),
    /// The subject could not be brought back.
    Failed(Failure),
    /// The subject or a remaining process of it still runs, and the guardian cannot end it.
    Left,
}

/// Why a subject could not be brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The error of the action that failed last.
    LastError,
    /// None of its checkpoints could be restored, the oldest one for the last error, and undying has not started the
    /// program.
    NotRestorable {
        /// How many there are.
        tried: usize,
    },
    /// There is no checkpoint, and undying has not started the program.
    NoWayBack,
}

impl State {
    /// Whether the program runs.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Running | Self::Checkpointing { .. } | Self::Held)
    }
}

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The program was started from its beginning, or adopted. Answers `Action::Start`, and is the first event.
    Started,
    /// The program has reported that its initialisation is done.
    Ready,
    /// Whether any of its processes holds checkpoints back.
    Holds(bool),
    /// A process has requested a checkpoint.
    Wanted,
    /// All events that have arrived were reported: due actions are to be taken.
    Due,
    /// The guardian and the subject were stopped together, and continue.
    Continued,
    /// A checkpoint has left the subject and is being written. Answers `Action::Take`.
    Taken {
        /// How long the subject was stopped for it.
        pause: Duration,
        /// How long it was stopped before that, for trackers of new processes.
        arming: Duration,
        /// It was stopped in turns before that.
        sliced: Option<Sliced>,
        /// Most of the time was spent waiting for the store.
        is_store_slow: bool,
    },
    /// Dirty pages were scanned, and no checkpoint was taken. Answers `Action::Take` in a dry run.
    Looked {
        /// How long the subject was stopped for it.
        pause: Duration,
    },
    /// No checkpoint was taken. Answers `Action::Take`.
    NotTaken(NotTaken),
    /// The log takes no further checkpoints, and its unwritten data is lost. Answers `Action::Take`.
    LogLost,
    /// The log was opened anew. Answers `Action::OpenLog`.
    LogOpened,
    /// It could not be opened. Answers `Action::OpenLog`.
    LogNotOpened {
        /// The subject has died meanwhile.
        is_dying: bool,
    },
    /// A checkpoint is durable.
    Committed {
        /// Its number.
        sequence: Sequence,
        /// The oldest one in the log.
        oldest: Option<Sequence>,
    },
    /// A checkpoint could not be written.
    WriteFailed(Sequence),
    /// The log has discarded a checkpoint on request.
    CalledOff(Sequence),
    /// A checkpoint differs from the subject.
    Differs(Sequence),
    /// The guardian got a signal that requests the end of the subject.
    EndRequested(Signal),
    /// A process of the subject other than its root has failed by this signal.
    ChildFailed(Signal),
    /// A check from outside finds the subject faulty.
    Faulted(Fault),
    /// The root has ended. Everything else that had arrived by then was reported before.
    Died {
        /// How.
        status: SubjectStatus,
        /// The subject has the terminal in the foreground.
        has_terminal: bool,
        /// Checkpoints that may have been taken after the failure of one of its other processes.
        after_child: Vec<Sequence>,
    },
    /// Nothing of the dead subject is left. Answers `Action::Clear`.
    Cleared,
    /// Which checkpoints there are. Answers `Action::Survey`.
    Surveyed(Survey),
    /// The subject runs again, from the requested checkpoint. Answers `Action::Restore`.
    Restored,
    /// The restore failed, and left nothing. Answers `Action::Restore`.
    NotRestored(RestoreError),
    /// The program was not started, since its files could not go back. Answers `Action::Start`.
    NotStarted(RestoreError),
    /// An action could not be carried out for any other reason.
    Failed,
}

/// How long a subject was stopped in turns that copied a part each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sliced {
    /// The longest turn.
    pub longest: Duration,
    /// All of them.
    pub total: Duration,
}

/// Why no checkpoint was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The log has as much to write as it takes.
    Behind,
    /// The tracker could not be attached; another one is used from now on.
    TrackerReplaced,
    /// It was refused, or has failed.
    Refused,
    /// The subject was dying.
    Dying,
}

/// Why a checkpoint could not be restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoreError {
    /// An older one may be restored.
    Unusable,
    /// Files have changed since the checkpoint; older checkpoints fit them even less.
    FilesChanged,
    /// Files could not go back, and none has.
    FilesStay,
    /// Some files have gone back and others have not: they fit nothing.
    FilesHalfWay,
}

/// The checkpoints of a subject.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Those that are committed, rising.
    pub committed: Vec<Sequence>,
    /// Those that files can go back to, committed or in flight. Unused where files do not go back.
    pub exact: Vec<Sequence>,
    /// Files can go back to the beginning of the program.
    pub reaches_beginning: bool,
}

/// Something to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Take a checkpoint with this number. It answers all requests of processes until now.
    Take(Sequence),
    /// Open the log anew, whose checkpoints in flight are lost.
    OpenLog,
    /// Kill the root.
    KillRoot,
    /// Send the program a signal that came while there was none to take it.
    Signal(Signal),
    /// Count checkpoints that were due and are not taken.
    Late(LateReason, u32),
    /// Tell the operator.
    Tell(Notice),
    /// End everything that the dead root has left.
    Clear,
    /// List the checkpoints.
    Survey,
    /// Give up the checkpoints that are still being written.
    LeaveBehind {
        /// Their numbers, rising.
        dropped: Vec<Sequence>,
        /// The newest checkpoint that stays; 0 for none.
        newest: Sequence,
    },
    /// Take files back if they go back, and build the processes of this checkpoint.
    Restore(Sequence),
    /// Start the program from its beginning.
    Start {
        /// Files go back to the beginning first; else the program finds them as they are.
        is_with_files: bool,
        /// Why no checkpoint is used; `None` if there is none.
        why: Option<FreshReason>,
    },
}

/// Why checkpoints that were due are not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateReason {
    /// The one before was still being copied.
    Copying,
    /// The store was still writing earlier ones.
    Writing,
    /// The program holds them back.
    Held,
}

/// Why a program starts from its beginning although it had checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreshReason {
    /// Those that it was restored from led to death, and no later restart is allowed.
    LastRestart,
    /// None of them could be restored.
    NotRestorable {
        /// How many there are.
        tried: usize,
    },
    /// Files have changed since the newest one.
    FilesChanged,
    /// Files can go back to none of them.
    NoneExact,
    /// Files could not go back to this checkpoint; 0 stands for the beginning of the program.
    FilesStay(Sequence),
}

/// A report to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The subject died, and a restart may follow.
    Died(SubjectStatus),
    /// A process other than its root has failed, and the root is ended for it.
    ChildFailed,
    /// The subject is faulty, and its root is killed for it.
    Faulted(Fault),
    /// There were more restarts than allowed.
    GaveUp(RestartLimit),
    /// The restart waits for this time.
    BacksOff(Duration),
    /// A checkpoint leads to death again, and is no longer used.
    Poisoned(Sequence),
    /// A checkpoint could not be restored, for the reason of the last error.
    NotRestored {
        /// Its number.
        sequence: Sequence,
        /// The next message has the same reason.
        is_explained_next: bool,
    },
    /// The subject runs again.
    Restored(Sequence, Duration),
}
