//! Exit codes, and the exit code of each error.
//!
//! Owns: the exit code of every error variant, and advice for errors whose message contains no advice.
//! Invariants: the meaning of a code never changes. An error without a code of its own has the code 125.
//! Does not: end the process.

use channel::ChannelError;
use engine::EngineError;
use replica::ReplicaError;
use resource::ResourceError;
use sys::Errno;
use tracee::{FreezeError, RemoteError};
use track::TrackError;
use undo::UndoError;

use crate::error::GuardianError;

/// The exit codes of `undying` itself. [`ExitCode::ALL`] lists their meanings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "`ALL` has the meanings")]
pub enum ExitCode {
    Done = 0,
    Usage = 2,
    Refused = 3,
    Missing = 4,
    Damaged = 5,
    Deadline = 6,
    Diverged = 120,
    NotExecutable = 126,
    NoProgram = 127,
    Failure = 125,
}

impl ExitCode {
    /// All codes with their meanings, for the documentation.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::Done, "done"),
        (Self::Usage, "usage"),
        (Self::Refused, "refused: not supported or not possible now; nothing was changed"),
        (Self::Missing, "missing permission or kernel feature, or a part that is not built yet"),
        (Self::Damaged, "image damaged or not committed"),
        (Self::Deadline, "deadline not met; the durable checkpoints are listed"),
        (Self::Diverged, "replication stopped: divergence that cannot be repaired"),
        (Self::Failure, "any other failure of undying itself"),
        (Self::NotExecutable, "`run`: the program cannot be executed"),
        (Self::NoProgram, "`run`: there is no such program"),
    ];

    /// Returns the code with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.iter().map(|(code, _)| *code).find(|code| code.number() == number)
    }

    /// Returns the exit status of the process for this code.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The advice after EMFILE.
pub(crate) const MORE_DESCRIPTORS: &str =
    "run `undying` with a higher limit on open files (`ulimit -Hn`) than the program has open";

impl GuardianError {
    /// Returns the exit code of a command that failed with this error.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Engine(error) => of_engine(error),
            Self::Store(error) => of_store(error),
            Self::Kernel(error) => of_kernel(error),
            Self::Undo(error) => of_undo(error),
            Self::Channel(ChannelError::Kernel(error)) | Self::Replica(ReplicaError::Kernel(error)) => {
                of_kernel(error)
            }
            Self::Replica(_) => ExitCode::Failure,
            Self::Channel(_) => ExitCode::Failure,
            Self::FeatureMissing { .. }
            | Self::NoRightToRestore
            | Self::NoRewind { .. }
            | Self::OutputNeedsRewind { .. } => ExitCode::Missing,
            Self::NotReached { .. }
            | Self::EndNotRecorded { .. }
            | Self::StillRuns { .. }
            | Self::StillStarted { .. }
            | Self::Guarded { .. }
            | Self::PidFileRefused { .. }
            | Self::FilesChangedSince { .. }
            | Self::OwnTree { .. }
            | Self::KernelThread { .. }
            | Self::NameTaken { .. }
            | Self::NotGuarded { .. }
            | Self::NoParent { .. }
            | Self::NotAside { .. }
            | Self::SystemTaken { .. }
            | Self::NoSystem { .. } => ExitCode::Refused,
            Self::NoStore
            | Self::OutputWaits
            | Self::OutputForgotten { .. }
            | Self::System { .. }
            | Self::BadProbe { .. }
            | Self::NoUser { .. } => ExitCode::Usage,
            Self::NotDone { code, .. } => code.and_then(ExitCode::of).unwrap_or(ExitCode::Refused),
            // A missing image has the same code.
            Self::NoSubject { .. } | Self::SystemUntrusted { .. } => ExitCode::Damaged,
            Self::NotRestorable { last, .. } => last.exit_code(),
            // A shell and env(1) use the same codes.
            Self::Command { source, .. } if source.errno == Errno::ENOENT => ExitCode::NoProgram,
            Self::Command { source, .. } if source.errno.may_pass() => ExitCode::Failure,
            Self::Command { .. } => ExitCode::NotExecutable,
            // The exit status of the program must stay readable, so no other code is used.
            Self::RestoreStopped { .. } => ExitCode::Failure,
            Self::AfterRollback { .. }
            | Self::PidFileLost { .. }
            | Self::NoWayBack { .. }
            | Self::Leftover { .. }
            | Self::BadManager { .. }
            | Self::LogDenied { .. }
            | Self::SystemFailed { .. }
            | Self::Status { .. } => ExitCode::Failure,
        }
    }

    /// Returns advice for the operator. Returns `None` if the message already contains a help text.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        const MISSING: &str = "`undying doctor` tells which permission or kernel feature is missing";
        const REPORT: &str =
            "try again; if the error remains, report it with this message and `undying doctor --json`";
        let message = self.to_string();
        let is_refused = matches!(self, Self::NotDone { .. }) && self.exit_code() == ExitCode::Refused;
        if message.contains("help:") || is_refused {
            return None;
        }
        if message.contains(&Errno::EMFILE.to_string()) {
            return Some(MORE_DESCRIPTORS);
        }
        Some(if self.exit_code() == ExitCode::Missing { MISSING } else { REPORT })
    }
}

fn of_engine(error: &EngineError) -> ExitCode {
    match error {
        EngineError::Refused(_)
        | EngineError::NotInPlace(_)
        | EngineError::FilesChanged(_)
        | EngineError::ClockBehind { .. }
        | EngineError::NotRestorable(_)
        | EngineError::PidTaken(_)
        | EngineError::PidUnreaped { .. }
        | EngineError::PidOfGroup { .. }
        | EngineError::FilesNotRecorded
        | EngineError::NoProcess(_)
        | EngineError::Changed(_)
        | EngineError::Unsteady => ExitCode::Refused,
        EngineError::Permission { .. } | EngineError::KernelDiffers(_) | EngineError::LazyMissing(_) => {
            ExitCode::Missing
        }
        EngineError::LazyLost(cause) | EngineError::InPart(cause) => of_engine(cause),
        EngineError::UnknownRecord { .. } | EngineError::Incomplete(_) | EngineError::AsideRefused { .. } => {
            ExitCode::Damaged
        }
        EngineError::NotBuildable(_) => ExitCode::Failure,
        EngineError::Freeze(error) => of_freeze(error),
        EngineError::Resource(error) => of_resource(error),
        EngineError::Track(error) => of_track(error),
        EngineError::Store(error) => of_store(error),
        EngineError::Undo(error) => of_undo(error),
        EngineError::Kernel(error) => of_kernel(error),
    }
}

/// Returns the code for a tree that could not be stopped. This is a refusal, because the tree was not changed.
fn of_freeze(error: &FreezeError) -> ExitCode {
    match error {
        FreezeError::Kernel(error) => of_kernel(error),
        FreezeError::Traced { .. }
        | FreezeError::Ended(_)
        | FreezeError::Stuck { .. }
        | FreezeError::Growing(_) => ExitCode::Refused,
    }
}

fn of_track(error: &TrackError) -> ExitCode {
    match error {
        TrackError::UnknownName { .. } => ExitCode::Usage,
        TrackError::Missing { .. } | TrackError::ForcedOff { .. } | TrackError::Unsound { .. } => {
            ExitCode::Missing
        }
        TrackError::Kernel(error) => of_kernel(error),
        TrackError::Gone(_) | TrackError::Handler { .. } | TrackError::Remote(_) => ExitCode::Failure,
    }
}

fn of_resource(error: &ResourceError) -> ExitCode {
    match error {
        ResourceError::Kernel(error) => of_kernel(error),
        ResourceError::Remote(RemoteError::Kernel(error)) => of_kernel(error),
        ResourceError::Remote(_) => ExitCode::Failure,
        ResourceError::Malformed { .. } => ExitCode::Damaged,
        ResourceError::File { .. } | ResourceError::Unsupported { .. } => ExitCode::Refused,
    }
}

fn of_store(error: &store::Error) -> ExitCode {
    match error {
        store::Error::NotFound { .. } => ExitCode::Damaged,
        store::Error::InvalidName { .. } | store::Error::UnknownBackend { .. } => ExitCode::Usage,
        store::Error::Io(error) => of_kernel(error),
        store::Error::LogBusy(_) | store::Error::Exists(_) | store::Error::NotACopy(_) => ExitCode::Refused,
        damage if damage.is_damage() => ExitCode::Damaged,
        _ => ExitCode::Failure,
    }
}

/// Returns the code for an error of the undo log. A conflict is a refusal, because nothing was changed.
fn of_undo(error: &UndoError) -> ExitCode {
    match error {
        UndoError::Kernel(error) => of_kernel(error),
        UndoError::Store(error) => of_store(error),
        UndoError::Conflict { .. }
        | UndoError::Denied { .. }
        | UndoError::Fixed { .. }
        | UndoError::Leased { .. }
        | UndoError::Lost { .. }
        | UndoError::Replaced { .. }
        | UndoError::HalfBack { .. }
        | UndoError::PowerCut { .. }
        | UndoError::Taken { .. }
        | UndoError::NotPutBack { .. }
        | UndoError::Unreachable { .. } => ExitCode::Refused,
        _ => ExitCode::Failure,
    }
}

fn of_kernel(error: &sys::Error) -> ExitCode {
    match error.errno {
        Errno::EPERM | Errno::EACCES | Errno::ENOSYS => ExitCode::Missing,
        // A process has ended meanwhile.
        Errno::ESRCH => ExitCode::Refused,
        _ => ExitCode::Failure,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::Pid;

    use super::*;

    fn kernel(errno: Errno) -> sys::Error {
        sys::Error::process("try", Pid(1), errno)
    }

    #[test]
    fn every_code_has_its_number_and_meaning_once() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|(code, _)| code.number()).collect();
        assert_eq!(numbers, [0, 2, 3, 4, 5, 6, 120, 125, 126, 127]);
    }

    #[test]
    fn what_the_subject_holds_is_a_refusal() {
        assert_eq!(of_engine(&EngineError::Refused(Vec::new())), ExitCode::Refused);
        assert_eq!(of_engine(&EngineError::FilesChanged(Vec::new())), ExitCode::Refused);
        assert_eq!(of_engine(&EngineError::PidTaken(Pid(1))), ExitCode::Refused);
        assert_eq!(of_store(&store::Error::LogBusy(PathBuf::new())), ExitCode::Refused);
        let traced = FreezeError::Traced { pid: Pid(1), tracer: Pid(2) };
        assert_eq!(of_engine(&EngineError::Freeze(traced)), ExitCode::Refused);
        let unsupported = ResourceError::Unsupported {
            pid: Pid(1),
            what: String::new(),
            why: String::new(),
            fix: String::new(),
        };
        assert_eq!(of_engine(&unsupported.into()), ExitCode::Refused);
    }

    #[test]
    fn a_missing_permission_is_recognized_wherever_it_comes_from() {
        for errno in [Errno::EPERM, Errno::EACCES, Errno::ENOSYS] {
            assert_eq!(GuardianError::Kernel(kernel(errno)).exit_code(), ExitCode::Missing);
            assert_eq!(of_engine(&EngineError::Kernel(kernel(errno))), ExitCode::Missing);
            assert_eq!(of_engine(&EngineError::Freeze(kernel(errno).into())), ExitCode::Missing);
            assert_eq!(of_store(&store::Error::Io(kernel(errno))), ExitCode::Missing);
            let remote = ResourceError::Remote(RemoteError::Kernel(kernel(errno)));
            assert_eq!(of_resource(&remote), ExitCode::Missing);
        }
        let permission = EngineError::Permission { pid: Pid(1), why: String::new() };
        assert_eq!(of_engine(&permission), ExitCode::Missing);
        assert_eq!(of_engine(&EngineError::KernelDiffers(String::new())), ExitCode::Missing);
    }

    #[test]
    fn a_bad_image_is_damage() {
        let path = PathBuf::new;
        for error in [
            store::Error::NotCommitted(path()),
            store::Error::NoPath(path()),
            store::Error::Foreign(path()),
            store::Error::Newer { path: path(), found: 2, supported: 1 },
            store::Error::WrongLength { path: path(), found: None, expected: model::ByteCount(1) },
            store::Error::NotFound { name: String::new(), sequence: None, store: path() },
        ] {
            assert_eq!(of_store(&error), ExitCode::Damaged, "{error}");
        }
        assert_eq!(of_engine(&EngineError::Incomplete(String::new())), ExitCode::Damaged);
        let unknown = EngineError::UnknownRecord { kind: String::new(), version: 1 };
        assert_eq!(of_engine(&unknown), ExitCode::Damaged);
        let malformed = ResourceError::Malformed { kind: "x", why: String::new() };
        assert_eq!(of_resource(&malformed), ExitCode::Damaged);
    }

    #[test]
    fn what_is_not_possible_now_is_a_refusal() {
        let not_done = |code| GuardianError::NotDone { why: String::new(), code }.exit_code();
        assert_eq!([not_done(None), not_done(Some(125))], [ExitCode::Refused, ExitCode::Failure]);
        for error in [EngineError::NoProcess(Pid(1)), EngineError::Changed(String::new())] {
            assert_eq!(of_engine(&error), ExitCode::Refused, "{error}");
        }
        let exists = store::Error::Exists(PathBuf::new());
        assert_eq!(of_store(&exists), ExitCode::Refused);
        let taken = GuardianError::NameTaken { name: "job".to_owned(), by: String::new() };
        assert_eq!(taken.exit_code(), ExitCode::Refused);
    }

    #[test]
    fn everything_else_is_a_failure_of_ours() {
        assert_eq!(of_engine(&EngineError::NotBuildable(String::new())), ExitCode::Failure);
        assert_eq!(of_store(&store::Error::Full(kernel(Errno::ENOSPC))), ExitCode::Failure);
        let exposed = store::Error::Exposed { path: PathBuf::new(), mode: 0o755 };
        assert_eq!(of_store(&exposed), ExitCode::Failure);
        assert_eq!(GuardianError::Kernel(kernel(Errno::EEXIST)).exit_code(), ExitCode::Failure);
    }

    #[test]
    fn a_program_that_cannot_be_started_ends_as_in_a_shell() {
        let code = |errno| {
            GuardianError::Command { command: "x".into(), source: kernel(errno) }.exit_code().number()
        };
        assert_eq!([Errno::ENOENT, Errno::EACCES, Errno::EPERM].map(code), [127, 126, 126]);
    }
}
