//! Defines the error type of this crate.
//!
//! Owns: the errors of commands, and their messages.
//! Does not: choose exit codes and advice; `exit` does.

use std::ffi::OsString;
use std::path::PathBuf;

use engine::EngineError;
use model::{Escaped, Pid, Sequence};

/// An error of a command: the command was refused, or it failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant tells what its fields are")]
pub enum GuardianError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// Files could not be watched, or could not be rolled back.
    #[error(transparent)]
    Undo(#[from] undo::UndoError),
    /// The channels (listeners and waiting connections) of a component could not be prepared.
    #[error(transparent)]
    Channel(#[from] channel::ChannelError),
    /// A program could not be run as replicas.
    #[error(transparent)]
    Replica(#[from] replica::ReplicaError),
    /// A system file has mistakes.
    /// Row: system-file
    #[error("{path} is not a valid system file\n\n{mistakes}\n\nhelp: `undying check --schema` prints every key", path = Escaped(&path.to_string_lossy()))]
    System {
        /// Path of the system file.
        path: PathBuf,
        /// The text about all mistakes. The text shows the line of each mistake, with a caret below the mistake.
        mistakes: String,
    },
    /// File rollback was requested, but the files of this subject cannot be rolled back.
    /// Row: files-cannot-go-back
    #[error(
        "files cannot be rolled back with the program: {why}\nhelp: run it without `--files`, or with another policy (`undying run --help`); `undying doctor` shows what is missing"
    )]
    NoRewind { why: String },
    /// Files cannot be rolled back to the checkpoint, because the undo log does not reach it.
    /// Row: files-not-reached
    #[error(
        "files cannot be rolled back to {image}: {why}\nhelp: {others}; `--files refuse` compares those that were open, `--files keep` restores over them as they are",
        others = others_reached(*has_others)
    )]
    NotReached {
        image: String,
        why: String,
        /// Whether files can be rolled back to another checkpoint of the subject.
        has_others: bool,
    },
    /// The undo log does not state how the subject ended, so later changes of files can be missing in the undo log.
    /// Row: end-not-recorded
    #[error(
        "files cannot be rolled back to {image}: the end of the program is not recorded, so it may have changed files that the undo log does not contain; nothing was changed\nhelp: if undying and the program were killed together (a container that was stopped), `--files force` rolls back what is recorded; `--files refuse` compares those that were open, `--files keep` restores over them as they are"
    )]
    EndNotRecorded { image: String },
    /// The restore failed after files were rolled back.
    /// Row: failed-after-rollback
    #[error("files were rolled back to checkpoint {to}, and then the program was not restored: {source}")]
    AfterRollback { to: Sequence, source: Box<GuardianError> },
    /// The name belongs to a living program whose guardian has died, and which was started in another way.
    /// Row: still-started
    #[error(
        "{name} still runs as pid {pid} without a guardian, and was started by another command or in another directory; nothing was started\nhelp: `{adopt}` guards it again; to start this program, end that one first (`kill {pid}`), or choose another name with --name"
    )]
    StillStarted {
        name: String,
        pid: Pid,
        /// The command that guards the living program again.
        adopt: String,
    },
    /// A process of the subject still runs without a guardian, and the restore needs its pid.
    /// Row: still-runs
    #[error(
        "pid {pid} ({program}) of {name} still runs without a guardian; nothing was changed\nhelp: to restore {name}, end it first: `kill {pid}`; `undying status {name}` shows how a living program is guarded again",
        program = Escaped(program)
    )]
    StillRuns { name: String, pid: Pid, program: String },
    /// A guardian protects the subject of the image, so the subject cannot be restored by hand.
    /// Row: guarded
    #[error(
        "{name} is guarded by another undying process, pid {guardian}, which restores it when it dies; nothing was changed\nhelp: to restore it by hand, end it first: `{end}`; `undying status {name}` shows it"
    )]
    Guarded {
        name: String,
        guardian: Pid,
        /// The command that ends the subject and its guard.
        end: String,
    },
    /// The pid file of a restore cannot be written. The restore was not begun.
    /// Row: pidfile-refused
    #[error(
        "cannot write the pid file {path}: {errno}; nothing was restored\nhelp: name a file in a directory in which this user may create files",
        path = Escaped(&path.to_string_lossy())
    )]
    PidFileRefused { path: PathBuf, errno: sys::Errno },
    /// The program was restored and runs, and then its pid file could not be written.
    /// Row: pidfile-lost
    #[error(
        "the program runs as pid {root}, but the pid file {path} was not written: {errno}\nhelp: do not restore again; write the pid yourself: echo {root} > {path}",
        path = Escaped(&path.to_string_lossy())
    )]
    PidFileLost { path: PathBuf, root: Pid, errno: sys::Errno },
    /// No rollback has moved a file of this path aside, or the moved file no longer exists.
    /// Row: not-moved-aside
    #[error(
        "nothing was moved aside from {path} by a restart of {name}\nhelp: `undying files {name}` lists what is there",
        path = Escaped(&path.to_string_lossy())
    )]
    NotAside { name: String, path: PathBuf },
    /// A required kernel feature is missing, or is disabled by `UNDYING_FEATURES_OFF`.
    /// Row: feature-missing
    #[error("the kernel feature {name} is missing: {purpose}\nhelp: {fix}; `undying doctor` checks them all")]
    FeatureMissing { name: &'static str, purpose: &'static str, fix: &'static str },
    /// The user who requests a checkpoint would not be permitted to restore the checkpoint. The checkpoint was not
    /// begun.
    /// Row: no-right-to-restore
    #[error(
        "this user could not restore the checkpoint, so none is taken: choosing pids needs CAP_CHECKPOINT_RESTORE\nhelp: run undying as root, or give undying the capability: `setcap cap_checkpoint_restore,cap_sys_ptrace+ep` on its file"
    )]
    NoRightToRestore,
    /// Output was to be held until the next checkpoint, but the time between two checkpoints is longer than a second.
    /// Row: output-waits
    #[error(
        "the output of the program would wait for more than a second\nhelp: take checkpoints more often, for example --every 20ms"
    )]
    OutputWaits,
    /// Output was to be held, but a restart could ignore the checkpoint that has released the output.
    /// Row: output-forgotten
    #[error(
        "the program could forget output that it has sent: {why}\nhelp: use `--output committed` with `--files rewind`; or with `--files keep`, if the program may continue beside newer files"
    )]
    OutputForgotten { why: String },
    /// Output was to be held, but the files of this subject cannot be rolled back.
    /// Row: output-needs-rewind
    #[error(
        "output is held only for programs whose files are rolled back, and files cannot be rolled back here: {why}\nhelp: use `--files keep` if the program may continue beside newer files; `undying doctor` shows what is missing"
    )]
    OutputNeedsRewind { why: String },
    /// Neither an option nor the environment names a directory for the store.
    /// Row: store-unknown
    #[error(
        "no directory for the store: neither XDG_STATE_HOME nor HOME is set\nhelp: name one with --store DIR"
    )]
    NoStore,
    /// The program to run cannot be started.
    /// Row: command-failed
    #[error(
        "cannot start {command:?}: {source}\nhelp: check the name of the program, PATH and the permissions"
    )]
    Command { command: OsString, source: sys::Error },
    /// A component has to run as a user who is not in /etc/passwd.
    /// Row: no-user
    #[error("there is no user {name:?} in /etc/passwd\nhelp: use the name of an existing user, or a uid")]
    NoUser { name: String },
    /// The log of a component cannot be opened with the rights of its user.
    /// Row: log-denied
    #[error(
        "cannot open the log {path} with the rights of uid {user}, who can change where this path leads: {errno}\nhelp: let uid {user} write the file; or name a log in a directory that only root can write",
        path = Escaped(&path.to_string_lossy())
    )]
    LogDenied { path: PathBuf, user: u32, errno: sys::Errno },
    /// Another user owns or can write a system file, which contains commands.
    /// Row: system-file-untrusted
    #[error(
        "the system file {path} {why}, who can have written any command into it; it was not used\nhelp: if you trust its content, make it yours: chown {own} {path} && chmod go-w {path}",
        path = Escaped(&path.to_string_lossy())
    )]
    SystemUntrusted {
        path: PathBuf,
        /// The owner or the permission, in words.
        why: String,
        /// The effective user id of this process.
        own: u32,
    },
    /// Another guardian already protects a subject of this name.
    /// Row: name-taken
    #[error(
        "{name} is already guarded by another undying process{by}\nhelp: choose another name with --name"
    )]
    NameTaken {
        name: String,
        /// The text ` (pid N)` with the pid of the other guardian; empty if this pid is unknown.
        by: String,
    },
    /// The process tree contains the calling `undying` process.
    /// Row: own-tree
    #[error(
        "the tree of pid {pid} contains this undying process, which cannot stop itself; nothing was changed\nhelp: run undying from outside of the tree: from another terminal, or under `setsid`"
    )]
    OwnTree { pid: Pid },
    /// Another guardian already runs a system in this store.
    /// Row: system-taken
    #[error(
        "the store {store} has a system already: {name}, guarded by pid {pid}\nhelp: `undying down` ends it; another system needs a store of its own (`store` in `[system]`, or `--store`)",
        store = store.display()
    )]
    SystemTaken { name: String, pid: Pid, store: PathBuf },
    /// No system runs in this store.
    /// Row: no-system
    #[error(
        "no system is guarded in the store {store}\nhelp: `{up}` starts one; `--store` names another store; a program of `undying run` ends when its guardian gets SIGTERM",
        store = store.display()
    )]
    NoSystem {
        store: PathBuf,
        /// The command that starts a system in this store.
        up: String,
    },
    /// A probe of a system file is not valid.
    /// Row: bad-probe
    #[error("{why}")]
    BadProbe { why: String },
    /// The service manager cannot be reached.
    /// Row: service-manager
    #[error(
        "{why}\nhelp: start `undying up` without NOTIFY_SOCKET, or from a service manager that sd_notify(3) fits"
    )]
    BadManager { why: String },
    /// A component could not be kept running.
    /// Row: system-failed
    #[error(
        "a component of {system} could not be kept running\nhelp: `undying status` and `undying deaths` tell which one, and why it died"
    )]
    SystemFailed { system: String },
    /// The guardian of a system has refused a request.
    /// Row: request-refused
    #[error("{why}")]
    NotDone {
        why: String,
        /// The number of the exit code, if the reason is no refusal.
        code: Option<u8>,
    },
    /// The process is a kernel thread.
    /// Row: kernel-thread
    #[error(
        "pid {pid} ({name}) is a kernel thread, which runs no program; nothing was changed\nhelp: name the process of a program; `ps -e -o pid,args` shows kernel threads in brackets",
        name = Escaped(name)
    )]
    KernelThread { pid: Pid, name: String },
    /// No subject of this name was ever guarded.
    /// Row: not-guarded
    #[error(
        "no subject {name} is or was guarded in this store\nhelp: `undying status` lists those that are; `--store` names another store"
    )]
    NotGuarded { name: String },
    /// The store has neither a subject nor a copy of this name.
    /// Row: no-subject
    #[error(
        "the store {store} has no subject {name}\nhelp: `undying ls` lists its subjects; `--store` names another store",
        store = store.display()
    )]
    NoSubject { name: String, store: PathBuf },
    /// The parent directory of a new image does not exist.
    /// Row: image-parent
    #[error(
        "cannot write the image {image}: there is no directory {parent}\nhelp: make it with `mkdir -p`, then take the checkpoint again",
        image = image.display(),
        parent = parent.display()
    )]
    NoParent { image: PathBuf, parent: PathBuf },
    /// A process of a dead subject does not end.
    /// Row: leftovers
    #[error(
        "pid {pid} is left over from the dead subject and does not end\nhelp: it hangs in the kernel (`cat /proc/{pid}/stack`); the subject cannot be restored before it is gone"
    )]
    Leftover { pid: Pid },
    /// The subject died, and none of its checkpoints could be restored.
    /// Row: not-restorable
    #[error("{name} died and cannot be restored from any of its {tried} checkpoints; the last error: {last}")]
    NotRestorable {
        name: String,
        /// Number of checkpoints that were tried.
        tried: usize,
        /// The error of the last attempt, with its own help text.
        last: Box<GuardianError>,
    },
    /// The subject died, and its checkpoint could not be restored for a reason that is not the fault of the checkpoint.
    /// No older checkpoint was tried.
    /// Row: restore-stopped
    #[error(
        "{image} was not restored: {last}\nhelp: the checkpoints are intact; remove the cause, then `undying restore {image}`"
    )]
    RestoreStopped {
        /// The checkpoint, as NAME@SEQ.
        image: String,
        /// The error of the last attempt.
        last: Box<GuardianError>,
    },
    /// An adopted subject (a program that `undying` did not start) has ended. There is neither a checkpoint to restore
    /// nor a command to start.
    /// Row: no-way-back
    #[error(
        "{name} has ended and is not restarted: undying did not start {name}, and there is no checkpoint of {name}\nhelp: start the program under `undying run`"
    )]
    NoWayBack { name: String },
    /// The subject died, and has changed files after its newest checkpoint.
    /// Row: files-changed-since
    #[error(
        "{image} was not restored: the program has changed files after this checkpoint\nhelp: start the program again, or restore its memory beside the present files: `undying restore {image} --files keep`"
    )]
    FilesChangedSince {
        /// The checkpoint, as NAME@SEQ.
        image: String,
    },
    /// A status file, which only this program writes, cannot be parsed.
    /// Row: status-damaged
    #[error("{path} is not a valid status file: {why}\nhelp: remove the file; the next run writes it again", path = Escaped(&path.to_string_lossy()))]
    Status { path: PathBuf, why: String },
}

/// Rows about several subjects. If a subject cannot be read, the rows of the other subjects are still returned.
#[derive(Debug)]
pub struct Found<T> {
    /// The rows of the subjects that could be read.
    pub rows: Vec<T>,
    /// The name of each subject that could not be read, and the error.
    pub failed: Vec<(String, GuardianError)>,
}

impl<T> Default for Found<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), failed: Vec::new() }
    }
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, GuardianError>;

/// Returns the help about other checkpoints, for a checkpoint to which files cannot be rolled back.
fn others_reached(has_others: bool) -> &'static str {
    if has_others {
        "`undying ls` shows the checkpoints to which files can be rolled back"
    } else {
        "they cannot be rolled back to any other checkpoint"
    }
}
