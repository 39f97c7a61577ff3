//! The list of a subject's checkpoints, and what a restart does with them.
//!
//! The guardian lists the checkpoints.
//!
//! Owns: the types of the list and of the decision.
//! Does not: decide; `prospect` does.

use model::Sequence;

/// The list of a subject's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The committed checkpoints, in rising order.
    pub committed: Vec<Sequence>,
    /// The checkpoints to which files can be rolled back. Each of these checkpoints is committed or in flight. If the
    /// plan does not roll files back, this list is not used.
    pub exact: Vec<Sequence>,
    /// Whether files can be rolled back to the beginning of the program.
    pub reaches_beginning: bool,
    /// The oldest checkpoint after which no file has changed until now; it may be removed already. `None`: files have
    /// changed. The number 0 means the beginning of the program.
    pub unchanged_from: Option<Sequence>,
    /// The checkpoints after which the program has made data durable, and has then sent data to a peer. The peer may
    /// rely on the durable data. The number 0 means the beginning of the program.
    pub told: Vec<Sequence>,
    /// What is known about changes of files by the program.
    pub changes: FileChanges,
}

/// What is known about changes of files by the program, with a plan that never restores memory beside changed files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileChanges {
    /// Nothing: changes are not noticed. The restore compares the files that were open at the checkpoint.
    #[default]
    Unknown,
    /// After this checkpoint, the program has changed no file except files that were open at the checkpoint. The restore
    /// compares these files.
    NoneSince(Sequence),
    /// The program has changed files after its newest checkpoint.
    AfterNewest,
}

impl FileChanges {
    /// Reports whether a restore of a checkpoint is possible, as far as is known.
    pub(super) fn permit(self, sequence: Sequence) -> bool {
        match self {
            Self::Unknown => true,
            Self::NoneSince(oldest) => sequence >= oldest,
            Self::AfterNewest => false,
        }
    }
}

/// What a restart does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prospect {
    /// The checkpoint is restored. If the plan rolls files back, the files are rolled back to the checkpoint.
    Restored(Sequence),
    /// The program starts from its beginning, and the files are rolled back to the beginning. The reason is the reason
    /// why no checkpoint is used; `None` if there is no checkpoint.
    BegunAgain(Option<FreshReason>),
    /// The program starts from its beginning with its present files.
    BegunAnew(Option<FreshReason>),
    /// The program is not restarted: each checkpoint has led to another death, files cannot be rolled back to the
    /// beginning of the program, and no restore has ended connections of the program, which could be the reason for the
    /// deaths.
    GivenUp,
    /// The program is not restarted: it has changed files after this checkpoint, the newest, and the plan refuses to
    /// restart in this case.
    Refused(Sequence),
}

/// The reason why a program starts from its beginning although there were checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreshReason {
    /// Restored incarnations have died, too, and the limit on restarts allows no restart after this start.
    LastRestart,
    /// No checkpoint could be restored.
    NotRestorable {
        /// The number of checkpoints.
        tried: usize,
    },
    /// Files have changed since the checkpoint whose restore was tried.
    FilesChanged,
    /// The program has changed files after this checkpoint, the newest.
    ChangedSince(Sequence),
    /// Files cannot be rolled back to any checkpoint.
    NoneExact,
    /// Each checkpoint has led to another death.
    EachDied,
    /// The newest checkpoint to which files can be rolled back is older than `Plan::files_back_max`, and files have
    /// changed since. The number 0 means the beginning of the program.
    TooOld(Sequence),
    /// This checkpoint is the newest checkpoint to which files can be rolled back. Peers have received later output of
    /// the program, and files have changed since. The number 0 means the beginning of the program.
    OutputSent(Sequence),
    /// This checkpoint is the newest checkpoint to which files can be rolled back. The program has made later data
    /// durable, and has then sent data to a peer. The number 0 means the beginning of the program.
    Told(Sequence),
    /// Files could not be rolled back to this checkpoint. The number 0 means the beginning of the program.
    FilesStay(Sequence),
}
