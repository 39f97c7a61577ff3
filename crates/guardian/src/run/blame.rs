//! Decides whose fault it is that a step of a restart has failed.
//!
//! Owns: the one place in which an error becomes a [`RestoreError`].
//! Invariants: only an error that depends on the records or pages of a checkpoint is the fault of the checkpoint. A
//! missing resource, a killed process of `undying` and a missing right are not.
//! Does not: decide what follows; `supervise` does.

use channel::ChannelError;
use engine::EngineError;
use resource::ResourceError;
use supervise::RestoreError;
use sys::Errno;
use tracee::RemoteError;
use undo::UndoError;

use crate::error::GuardianError;

/// Returns whose fault an error is that occurred before or after the rollback of files.
#[must_use]
pub fn of(error: &GuardianError) -> RestoreError {
    match error {
        GuardianError::Engine(error) => of_engine(error),
        GuardianError::Store(error) => of_store(error),
        GuardianError::Kernel(error) | GuardianError::Channel(ChannelError::Kernel(error)) => {
            of_call(error.errno)
        }
        GuardianError::Command { source, .. } if source.errno.may_pass() => RestoreError::NotNow,
        GuardianError::Undo(error) => of_rollback(error),
        // A process of the subject hangs in the kernel. It was waited for already.
        _ => RestoreError::Configuration,
    }
}

/// Returns whose fault an error of a rollback of files is. The checkpoint is never at fault. A rollback that was
/// interrupted by a failed call continues when it is repeated.
fn of_rollback(error: &UndoError) -> RestoreError {
    match error {
        UndoError::Kernel(error) => of_own_call(error.errno),
        UndoError::Store(store::Error::Full(_)) => RestoreError::NotNow,
        UndoError::Store(store::Error::Io(error)) => of_own_call(error.errno),
        UndoError::Step { source, .. } => match of_rollback(source) {
            RestoreError::FilesStay => RestoreError::FilesHalfWay,
            other => other,
        },
        UndoError::NotMounted { .. } | UndoError::ForeignKeep { .. } | UndoError::Store(_) => {
            RestoreError::Configuration
        }
        // After an incomplete rollback, the program must not start: no program expects a mixture of old and new files.
        // A start would also discard the journal that is needed to complete the rollback.
        error if error.is_half_way() => RestoreError::FilesHalfWay,
        _ => RestoreError::FilesStay,
    }
}

fn of_engine(error: &EngineError) -> RestoreError {
    if error.is_broken_off() {
        return RestoreError::NotNow;
    }
    match error {
        EngineError::FilesChanged(files) => {
            let is_failure = |errno: &Errno| ![Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP].contains(errno);
            let errnos = files.iter().filter_map(|file| file.errno);
            errnos.filter(is_failure).map(of_call).next().unwrap_or(RestoreError::FilesChanged)
        }
        EngineError::FilesNotRecorded => RestoreError::FilesChanged,
        EngineError::Refused(_)
        | EngineError::UnknownRecord { .. }
        | EngineError::Incomplete(_)
        | EngineError::NotInPlace(_) => RestoreError::Unusable,
        EngineError::Permission { .. }
        | EngineError::KernelDiffers(_)
        | EngineError::AsideRefused { .. }
        | EngineError::ClockBehind { .. }
        | EngineError::LazyMissing(_) => RestoreError::Configuration,
        EngineError::NoProcess(_)
        | EngineError::PidTaken(_)
        | EngineError::PidUnreaped { .. }
        | EngineError::PidOfGroup { .. }
        | EngineError::Freeze(_)
        | EngineError::Changed(_)
        | EngineError::Unsteady => RestoreError::NotNow,
        EngineError::LazyLost(cause) | EngineError::InPart(cause) | EngineError::NotRestorable(cause) => {
            of_engine(cause)
        }
        EngineError::Undo(error) => of_rollback(error),
        EngineError::Resource(error) => of_resource(error),
        EngineError::Store(error) => of_store(error),
        EngineError::Kernel(error) => of_call(error.errno),
        EngineError::NotBuildable(_) | EngineError::Track(_) => RestoreError::Unclear,
    }
}

fn of_resource(error: &ResourceError) -> RestoreError {
    match error {
        ResourceError::Kernel(error) | ResourceError::Remote(RemoteError::Kernel(error)) => {
            of_call(error.errno)
        }
        // The arguments of a remote call come from the checkpoint, so a refusal can be the fault of the checkpoint.
        ResourceError::Remote(RemoteError::Refused { errno, .. }) if errno.may_pass() => RestoreError::NotNow,
        ResourceError::Remote(_) | ResourceError::File { .. } => RestoreError::Unclear,
        // The capture has checked that the object is supported. So this process lacks a right or a limit, and lacks it for
        // each checkpoint.
        ResourceError::Unsupported { .. } => RestoreError::Configuration,
        ResourceError::Malformed { .. } => RestoreError::Unusable,
    }
}

fn of_store(error: &store::Error) -> RestoreError {
    match error {
        store::Error::Full(_)
        | store::Error::LogBusy(_)
        | store::Error::CalledOff
        | store::Error::Slow(_) => RestoreError::NotNow,
        store::Error::Io(error) => of_call(error.errno),
        store::Error::Untrusted { .. } | store::Error::Writable { .. } => RestoreError::Configuration,
        store::Error::NotFound { .. } => RestoreError::Unusable,
        error if error.is_damage() => RestoreError::Unusable,
        _ => RestoreError::Configuration,
    }
}

/// Returns whose fault a failed system call is. Its arguments may come from the checkpoint.
fn of_call(errno: Errno) -> RestoreError {
    match errno {
        errno if errno.may_pass() => RestoreError::NotNow,
        errno if errno.is_of_configuration() => RestoreError::Configuration,
        _ => RestoreError::Unclear,
    }
}

/// Returns whose fault a failed system call is whose arguments do not come from the checkpoint.
fn of_own_call(errno: Errno) -> RestoreError {
    if errno.may_pass() { RestoreError::NotNow } else { RestoreError::Configuration }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::{Pid, Sequence, Tid};

    use super::*;

    const PASSING: [Errno; 7] = [
        Errno::EAGAIN,
        Errno::EMFILE,
        Errno::ENOSPC,
        Errno::ENOBUFS,
        Errno::ETIMEDOUT,
        Errno::EEXIST,
        Errno::ECHILD,
    ];

    fn kernel(errno: Errno) -> sys::Error {
        sys::Error::new("try", errno)
    }

    #[test]
    fn a_missing_resource_is_nobodys_fault_wherever_it_is_missing() {
        for errno in PASSING {
            let step = UndoError::Step {
                path: PathBuf::new(),
                source: Box::new(kernel(errno).into()),
                left: String::new(),
            };
            let refused = RemoteError::Refused { tid: Tid(1), number: 1, errno };
            let command = GuardianError::Command { command: "x".into(), source: kernel(errno) };
            for error in [
                GuardianError::Kernel(kernel(errno)),
                EngineError::from(kernel(errno)).into(),
                EngineError::from(ResourceError::from(kernel(errno))).into(),
                EngineError::from(refused).into(),
                store::Error::from(kernel(errno)).into(),
                EngineError::from(store::Error::from(kernel(errno))).into(),
                UndoError::from(kernel(errno)).into(),
                UndoError::Store(kernel(errno).into()).into(),
                step.into(),
                ChannelError::from(kernel(errno)).into(),
                command,
            ] {
                assert_eq!(of(&error), RestoreError::NotNow, "{error}");
            }
        }
        for error in [EngineError::PidTaken(Pid(1)), RemoteError::Ended(Tid(1)).into()] {
            assert_eq!(of_engine(&error), RestoreError::NotNow, "{error}");
        }
    }

    #[test]
    fn only_records_and_pages_are_the_fault_of_the_checkpoint() {
        let malformed = ResourceError::Malformed { kind: "x", why: String::new() };
        let missing = store::Error::NotFound { name: String::new(), sequence: None, store: PathBuf::new() };
        for error in [
            EngineError::Incomplete(String::new()),
            EngineError::UnknownRecord { kind: String::new(), version: 1 },
            malformed.into(),
            store::Error::NotCommitted(PathBuf::new()).into(),
            missing.into(),
        ] {
            assert_eq!(of_engine(&error), RestoreError::Unusable, "{error}");
        }
        let limit = ResourceError::Unsupported {
            pid: Pid(1),
            what: "the hard limit".to_owned(),
            why: String::new(),
            fix: String::new(),
        };
        for error in [
            limit.into(),
            EngineError::Kernel(kernel(Errno::EPERM)),
            EngineError::KernelDiffers(String::new()),
            store::Error::Writable { path: PathBuf::new(), mode: 0o777 }.into(),
        ] {
            assert_eq!(of_engine(&error), RestoreError::Configuration, "{error}");
        }
        assert_eq!(of_engine(&kernel(Errno::EINVAL).into()), RestoreError::Unclear);
    }

    #[test]
    fn files_that_could_not_be_opened_are_no_changed_files() {
        let of_file = |errno| {
            let file = resource::files::ChangedFile { path: PathBuf::new(), why: String::new(), errno };
            of_engine(&EngineError::FilesChanged(vec![file]))
        };
        assert_eq!(of_file(None), RestoreError::FilesChanged);
        assert_eq!(of_file(Some(Errno::ENOENT)), RestoreError::FilesChanged);
        assert_eq!(of_file(Some(Errno::EMFILE)), RestoreError::NotNow);
    }

    #[test]
    fn a_rollback_that_is_refused_and_one_that_stopped_half_way_differ() {
        let lost = UndoError::Lost { to: Sequence(1), paths: Vec::new() };
        assert_eq!(of_rollback(&lost), RestoreError::FilesStay);
        let step = UndoError::Step { path: PathBuf::new(), source: Box::new(lost), left: String::new() };
        assert_eq!(of_rollback(&step), RestoreError::FilesHalfWay);
        let unmounted = UndoError::NotMounted { path: PathBuf::new(), device: 1 };
        assert_eq!(of_rollback(&unmounted), RestoreError::Configuration);
    }
}
