//! The error type of checkpoints and restores.
//!
//! Owns: the variants of the error. docs/errors.md has a row for each variant that an operator can see.
//! Does not: choose exit codes; the commands of the crate `cli` map variants to exit codes.

use std::path::PathBuf;

use model::{Escaped, Pid};
use resource::files::ChangedFile;
use resource::{Obstacle, ResourceError};
use tracee::{FreezeError, RemoteError};

use crate::obstacles;

/// The reason why a checkpoint or restore was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The subject uses a feature that cannot be checkpointed. Nothing was changed.
    /// Row: refused
    #[error("{}", refusal(.0))]
    Refused(Vec<Obstacle>),
    /// The process does not exist, or has already ended.
    /// Row: no-process
    #[error(
        "there is no process {0} to checkpoint\nhelp: `ps -e` lists the processes; a zombie has ended already"
    )]
    NoProcess(Pid),
    /// The kernel does not permit this user to trace the subject, or to choose the pid of a process.
    /// Row: no-permission
    #[error(
        "pid {pid} cannot be traced: {why}\nhelp: run undying as the subject's user or as root; `undying doctor` tells what is missing"
    )]
    Permission {
        /// The process.
        pid: Pid,
        /// The reason of the refusal, as text.
        why: String,
    },
    /// The threads of the tree could not be stopped.
    /// Row: not-stopped
    #[error("{0}\nhelp: the program continues unchanged; {help}", help = after_freeze(.0))]
    Freeze(tracee::FreezeError),
    /// A pid or tid that the subject needs belongs to another process.
    /// Row: pid-taken
    #[error(
        "pid {0} is taken by another process\nhelp: `ps -fp {0}` shows it; restore again when it has ended"
    )]
    PidTaken(Pid),
    /// A pid that the subject needs belongs to a process that has ended and is not reaped.
    /// Row: pid-unreaped
    #[error(
        "pid {pid} has ended, and its number is taken until its parent, pid {parent}, reaps it\nhelp: end the parent, or let it wait for its children; then restore again"
    )]
    PidUnreaped {
        /// The pid.
        pid: Pid,
        /// The parent, which must reap the process.
        parent: Pid,
    },
    /// A pid that the subject needs is the id of a process group or session that has members.
    /// Row: pid-of-group
    #[error(
        "pid {number} cannot be used: pid {member} still belongs to a process group or session with this id\nhelp: `ps -o pid,pgid,sid,args {member}` shows it; restore again when it has ended"
    )]
    PidOfGroup {
        /// The pid.
        number: Pid,
        /// A process of this group or session.
        member: Pid,
    },
    /// The image contains a record that this version of `undying` does not support.
    /// Row: record-unknown
    #[error(
        "the image holds a record `{}` (version {version}) that this version of undying does not understand\nhelp: restore with the version that wrote it",
        Escaped(kind)
    )]
    UnknownRecord {
        /// The kind of the record.
        kind: String,
        /// The version of the record.
        version: u32,
    },
    /// The process tree changed during each of several attempts of a capture. The tree continues to run.
    /// Row: tree-changed
    #[error(
        "the process tree changed while it was captured: {0}\nhelp: the tree runs on; take the checkpoint again when the program starts and ends fewer processes"
    )]
    Changed(String),
    /// The construction of the process tree failed, but not because of the image.
    /// Row: restore-failed
    #[error(
        "the process tree cannot be built: {0}\nhelp: no process of the tree runs, and the image is intact; restore again, or under the kernel of the checkpoint"
    )]
    NotBuildable(String),
    /// The image is damaged: a record is missing, or a record contradicts another record.
    /// Row: image-incomplete
    #[error("the image is not usable: {}\nhelp: run `undying verify`; restore an earlier checkpoint", Escaped(.0))]
    Incomplete(String),
    /// This kernel differs from the kernel of the checkpoint.
    /// Row: kernel-differs
    #[error("{0}\nhelp: restore under the kernel that the checkpoint was taken on")]
    KernelDiffers(String),
    /// Files that the subject can write differ from their state at the checkpoint.
    /// Row: files-changed
    #[error("{}", changed_files(.0))]
    FilesChanged(Vec<ChangedFile>),
    /// The image was made by an earlier version of `undying`, which did not record files.
    /// Row: files-not-recorded
    #[error(
        "the image does not tell which files the program writes: an earlier version of undying made it\nhelp: restore with --files keep if no file has changed since"
    )]
    FilesNotRecorded,
    /// The directory for the bytes that a restore cuts off files belongs to another user, or is no directory. No step
    /// of the restore was begun.
    /// Row: aside-untrusted
    #[error(
        "the end of a file cannot be kept in {path}, which {why}; nothing was changed\nhelp: find out who made it, then rename it: mv {path} {path}.found",
        path = Escaped(&path.to_string_lossy())
    )]
    AsideRefused {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// This system cannot fill memory while the program runs. No step of the restore was begun.
    /// Row: lazy-missing
    #[error(
        "the program cannot run before its memory is filled: {0}\nhelp: run undying as root or with CAP_SYS_PTRACE, on a kernel with CONFIG_USERFAULTFD; or restore without --lazy"
    )]
    LazyMissing(sys::Error),
    /// A missing page of memory could not be filled while the restored program was already running. The program was
    /// killed.
    /// Row: lazy-lost
    #[error(
        "{0}\nthe program had begun to run, and was killed because a missing page of its memory could not be filled\nhelp: restore an earlier checkpoint; without --lazy, the whole image is checked before the program runs"
    )]
    LazyLost(Box<EngineError>),
    /// A restore of the captured subject would be refused, so the subject was not killed.
    #[error("the program was not ended, because its checkpoint could not be restored:\n{0}")]
    NotRestorable(Box<EngineError>),
    /// A living tree differs from the checkpoint in state that `apply` cannot set.
    #[error("the tree differs from the checkpoint in more than memory and registers: {}", .0.join("; "))]
    NotInPlace(Vec<String>),
    /// `apply` failed when a part of a living tree was already changed. The tree was killed.
    #[error("{0}\nthe process tree was rolled back only partly to the checkpoint, and was killed")]
    InPart(Box<EngineError>),
    /// An operation on a kernel object failed.
    #[error(transparent)]
    Resource(#[from] resource::ResourceError),
    /// The subject opened a file with O_DIRECT while the memory of the subject was being copied.
    #[error("the program began to read past the page cache while its memory was copied")]
    Unsteady,
    /// A clock of this machine shows an earlier time than at the checkpoint.
    /// Row: clock-behind
    #[error(
        "{clock} of this machine is {behind} behind the time of the checkpoint{boot}, and timed waits of the program \
         would last longer by that time\nhelp: start the program from its beginning; or accept late timers: restore \
         with --late-timers"
    )]
    ClockBehind {
        /// The name of the clock.
        clock: &'static str,
        /// The difference, as text.
        behind: String,
        /// The text ` (the machine was restarted since)`, or nothing.
        boot: &'static str,
    },
    /// Files could not be rolled back, or the undo log could not be written.
    #[error(transparent)]
    Undo(#[from] undo::UndoError),
    /// A tracker, the part that finds written pages, failed.
    #[error(transparent)]
    Track(#[from] track::TrackError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
}

/// The result type of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

impl EngineError {
    /// Reports whether the error means only that a process has ended during the operation.
    #[must_use]
    pub fn says_gone(&self) -> bool {
        let error = match self {
            Self::NoProcess(_) | Self::Track(track::TrackError::Gone(_)) => return true,
            Self::Kernel(error)
            | Self::Resource(
                ResourceError::Kernel(error) | ResourceError::Remote(RemoteError::Kernel(error)),
            ) => error,
            _ => return false,
        };
        error.errno == sys::Errno::ESRCH || error.errno == sys::Errno::ENOENT
    }

    /// Reports whether another program killed a process under construction. This error is no sign of a damaged
    /// image.
    #[must_use]
    pub fn is_broken_off(&self) -> bool {
        matches!(self, Self::Resource(ResourceError::Remote(RemoteError::Ended(_)))) || self.says_gone()
    }

    /// Returns the process in which the instructions for remote system calls are missing; `None` if the error has
    /// another reason.
    pub(crate) fn lacks_code(&self) -> Option<Pid> {
        match self {
            Self::Resource(ResourceError::Remote(RemoteError::NoGadget(pid))) => Some(*pid),
            _ => None,
        }
    }

    /// Converts an error of missing instructions (see `lacks_code`) into a refusal. Returns every other error
    /// unchanged.
    pub(crate) fn or_refusal(self) -> Self {
        self.lacks_code().map_or(self, |pid| Self::Refused(vec![obstacles::of_code(pid)]))
    }
}

impl From<RemoteError> for EngineError {
    fn from(error: RemoteError) -> Self {
        Self::Resource(error.into())
    }
}

impl From<tracee::FreezeError> for EngineError {
    fn from(error: tracee::FreezeError) -> Self {
        match error {
            tracee::FreezeError::Ended(pid) => Self::NoProcess(pid),
            tracee::FreezeError::Kernel(error)
                if error.errno == sys::Errno::EPERM || error.errno == sys::Errno::EACCES =>
            {
                Self::Kernel(error)
            }
            other => Self::Freeze(other),
        }
    }
}

/// Converts an error from the inspection of a process. EACCES and EPERM become `Permission`.
pub(crate) fn permission(pid: Pid, error: sys::Error) -> EngineError {
    if error.errno == sys::Errno::EACCES || error.errno == sys::Errno::EPERM {
        EngineError::Permission { pid, why: error.to_string() }
    } else {
        error.into()
    }
}

/// Returns the help text for a tree that could not be stopped.
fn after_freeze(error: &FreezeError) -> String {
    match error {
        FreezeError::Traced { tracer, .. } => match obstacles::program(*tracer) {
            Some(name) if name.starts_with("undying") => {
                format!("retry when another undying, pid {tracer}, has finished")
            }
            Some(name) => format!("end {}, pid {tracer}, first", Escaped(&name)),
            None => "end the debugger or strace first".to_owned(),
        },
        FreezeError::Stuck { tid, .. } => {
            format!("retry when thread {tid} no longer waits inside the kernel")
        }
        FreezeError::Growing(_) => "retry when the program forks less often".to_owned(),
        FreezeError::Ended(_) | FreezeError::Kernel(_) => "retry".to_owned(),
    }
}

/// The maximum number of files that one message names.
const NAMED_MAX: usize = 8;

fn changed_files(files: &[ChangedFile]) -> String {
    let mut text = String::from(
        "files have changed since the checkpoint, and the memory of the checkpoint does not match these files:",
    );
    for ChangedFile { path, why, .. } in files.iter().take(NAMED_MAX) {
        text.push_str(&format!("\n  {} {why}", Escaped(&path.display().to_string())));
    }
    if files.len() > NAMED_MAX {
        text.push_str(&format!("\n  and {} more", files.len() - NAMED_MAX));
    }
    text.push_str(
        "\nhelp: start the program from its beginning, so that it recovers from its files; --files keep lets it \
         use the changed files and can destroy them",
    );
    text
}

fn refusal(obstacles: &[Obstacle]) -> String {
    let mut text = String::from("the checkpoint is refused; nothing was changed:");
    for group in obstacles::grouped(obstacles) {
        text.push_str("\n  ");
        text.push_str(&group);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_after_a_stop_that_failed_fits_the_reason() {
        let help = |error| EngineError::Freeze(error).to_string();
        // The name of process 1 does not begin with `undying`.
        let (pid, tracer) = (Pid(2), Pid(1));
        let traced = help(FreezeError::Traced { pid, tracer });
        let name = obstacles::program(tracer).unwrap();
        assert!(traced.contains(&format!("end {name}, pid 1, first")), "{traced}");
        let traced = help(FreezeError::Traced { pid, tracer: Pid(i32::MAX) });
        assert!(traced.contains("end the debugger or strace first"), "{traced}");
        assert!(help(FreezeError::Growing(pid)).contains("forks less often"));
    }

    #[test]
    fn what_a_subject_names_cannot_forge_a_line() {
        let obstacle = Obstacle {
            pid: Pid(7),
            what: "fd 3 (a\u{202e}b)".to_owned(),
            place: "/tmp/x\nhelp: forged\x1b[2J".to_owned(),
            why: "because\x07".to_owned(),
            fix: "close it".to_owned(),
        };
        let text = EngineError::Refused(vec![obstacle]).to_string();
        assert!(text.contains("/tmp/x\\nhelp: forged\\u{1b}[2J"), "{text}");
        assert!(text.lines().all(|line| !line.starts_with("help: forged")), "{text}");
        assert!(!text.contains(['\x1b', '\x07', '\u{202e}']), "{text}");
    }
}
