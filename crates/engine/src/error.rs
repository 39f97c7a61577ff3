//! Why a checkpoint or a restore was not done.
//!
//! Owns: the error type, with a row in docs/errors.md for each variant that an operator may meet.
//! Does not: choose exit codes; the verbs map variants to them.

use model::{Escaped, Pid};
use resource::files::ChangedFile;
use resource::{Obstacle, ResourceError};
use tracee::{FreezeError, RemoteError};

use crate::obstacles;

/// A checkpoint or restore that was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The subject holds something that cannot be checkpointed; nothing was changed.
    /// Row: refused
    #[error("{}", refusal(.0))]
    Refused(Vec<Obstacle>),
    /// There is no such process, or it ended meanwhile.
    /// Row: no-process
    #[error(
        "there is no process {0} to checkpoint\nhelp: `ps -e` lists the processes; a zombie has ended already"
    )]
    NoProcess(Pid),
    /// The kernel does not let this user trace the subject.
    /// Row: no-permission
    #[error(
        "pid {pid} cannot be traced: {why}\nhelp: run undying as the subject's user or as root; `undying doctor` tells what is missing"
    )]
    Permission {
        /// The process.
        pid: Pid,
        /// What the kernel said.
        why: String,
    },
    /// The tree did not come to a stop.
    /// Row: not-stopped
    #[error("{0}\nhelp: the tree goes on as before; {help}", help = after_freeze(.0))]
    Freeze(tracee::FreezeError),
    /// A number that the subject needs belongs to another process.
    /// Row: pid-taken
    #[error(
        "pid {0} is taken by another process\nhelp: `ps -fp {0}` shows it; restore again when it has ended"
    )]
    PidTaken(Pid),
    /// A number that the subject needs belongs to a process that has ended and is not reaped.
    /// Row: pid-unreaped
    #[error(
        "pid {pid} has ended, and its number is taken until its parent, pid {parent}, reaps it\nhelp: end the parent, or let it wait for its children; then restore again"
    )]
    PidUnreaped {
        /// The number.
        pid: Pid,
        /// Who must reap it.
        parent: Pid,
    },
    /// A number that the subject needs is that of a process group or session with members.
    /// Row: pid-of-group
    #[error(
        "pid {number} cannot be given: a process group or session of that number lives on in pid {member}\nhelp: `ps -o pid,pgid,sid,args {member}` shows it; restore again when it has ended"
    )]
    PidOfGroup {
        /// The number.
        number: Pid,
        /// A process of that group or session.
        member: Pid,
    },
    /// The image holds a record that this version does not know.
    /// Row: record-unknown
    #[error(
        "the image holds a record `{}` (version {version}) that this version of undying does not understand\nhelp: restore with the version that wrote it",
        Escaped(kind)
    )]
    UnknownRecord {
        /// The record's kind.
        kind: String,
        /// Its version.
        version: u32,
    },
    /// The process tree changed while it was captured, in each of the attempts. The tree runs on.
    /// Row: tree-changed
    #[error(
        "the process tree changed while it was captured: {0}\nhelp: the tree runs on; take the checkpoint again when the program starts and ends fewer processes"
    )]
    Changed(String),
    /// A step of building the tree failed, and the image is not the reason.
    /// Row: restore-failed
    #[error(
        "the process tree cannot be built: {0}\nhelp: nothing of it runs and the image is whole; restore again, or under the kernel of the checkpoint"
    )]
    NotBuildable(String),
    /// The image is damaged: it lacks a record, or a record contradicts another.
    /// Row: image-incomplete
    #[error("the image is not usable: {}\nhelp: run `undying verify`; restore an earlier checkpoint", Escaped(.0))]
    Incomplete(String),
    /// The kernel that restores is not like the one that ran the subject.
    /// Row: kernel-differs
    #[error("{0}\nhelp: restore under the kernel that the checkpoint was taken on")]
    KernelDiffers(String),
    /// A restore asked for something that is not built yet.
    /// Row: not-built
    #[error(
        "{0} is not supported yet\nhelp: leave out --pid; the tree then gets the pids of the checkpoint, which must be free"
    )]
    NotBuilt(&'static str),
    /// Files that the subject writes are not as they were at the checkpoint.
    /// Row: files-changed
    #[error("{}", changed_files(.0))]
    FilesChanged(Vec<ChangedFile>),
    /// The image is of a version that did not record files.
    /// Row: files-not-recorded
    #[error(
        "the image does not tell which files the program writes: an earlier version of undying made it\nhelp: restore with --files keep if no file has changed since"
    )]
    FilesNotRecorded,
    /// Memory cannot be filled while the program runs; nothing was begun.
    /// Row: lazy-missing
    #[error(
        "the program cannot run before its memory is there: {0}\nhelp: run undying as root or with CAP_SYS_PTRACE, on a kernel with CONFIG_USERFAULTFD; or restore without --lazy"
    )]
    LazyMissing(sys::Error),
    /// The program ran already when the rest of its memory could not be had.
    /// Row: lazy-lost
    #[error(
        "{0}\nthe program had begun to run, and was killed since the rest of its memory could not be had\nhelp: restore an earlier checkpoint; without --lazy, an image is checked before anything of it runs"
    )]
    LazyLost(Box<EngineError>),
    /// A living tree differs from the checkpoint in what cannot be set in it.
    #[error("the tree differs from the checkpoint in more than memory and registers: {}", .0.join("; "))]
    NotInPlace(Vec<String>),
    /// A living tree was brought back to a checkpoint in part, and was killed.
    #[error("{0}\nthe tree had been brought back to the checkpoint in part, and was killed")]
    InPart(Box<EngineError>),
    /// A step on a kernel object failed.
    #[error(transparent)]
    Resource(#[from] resource::ResourceError),
    /// The subject opened a file with O_DIRECT while it was being copied.
    #[error("the program began to read past the page cache while its memory was copied")]
    Unsteady,
    /// Another subject of its group could not be stopped in time.
    #[error("another subject of the group could not be stopped in time; this one runs on")]
    GroupBroken,
    /// A tracker failed.
    #[error(transparent)]
    Track(#[from] track::TrackError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
}

/// A result of the engine.
pub type Result<T> = std::result::Result<T, EngineError>;

impl EngineError {
    /// Whether it only says that a process has ended meanwhile.
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

    /// Whether a process under construction was killed from outside: what it was built from may be sound.
    #[must_use]
    pub fn is_broken_off(&self) -> bool {
        matches!(self, Self::Resource(ResourceError::Remote(RemoteError::Ended(_)))) || self.says_gone()
    }

    /// The process whose code cannot be borrowed for remote calls, if it says that.
    pub(crate) fn lacks_code(&self) -> Option<Pid> {
        match self {
            Self::Resource(ResourceError::Remote(RemoteError::NoGadget(pid))) => Some(*pid),
            _ => None,
        }
    }

    /// A refusal, if it says that code of a process cannot be borrowed for remote calls.
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

/// An error of an inspection of a process.
pub(crate) fn permission(pid: Pid, error: sys::Error) -> EngineError {
    if error.errno == sys::Errno::EACCES || error.errno == sys::Errno::EPERM {
        EngineError::Permission { pid, why: error.to_string() }
    } else {
        error.into()
    }
}

/// What the operator can do about a tree that did not stop.
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

/// Files named in one message at most.
const NAMED_MAX: usize = 8;

fn changed_files(files: &[ChangedFile]) -> String {
    let mut text = String::from("files have changed since the checkpoint, and its memory does not fit them:");
    for ChangedFile { path, why } in files.iter().take(NAMED_MAX) {
        text.push_str(&format!("\n  {} {why}", Escaped(&path.display().to_string())));
    }
    if files.len() > NAMED_MAX {
        text.push_str(&format!("\n  and {} more", files.len() - NAMED_MAX));
    }
    text.push_str(
        "\nhelp: start the program from its beginning, so that it recovers from its files; --files keep restores over \
         them and can destroy them",
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
        // The first process has a name that is not ours.
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
