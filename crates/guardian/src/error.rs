//! Why a command was not carried out.
//!
//! Owns: the error type of this crate.
//! Does not: choose exit codes and advice; `exit` does.

use std::ffi::OsString;
use std::path::PathBuf;

use engine::EngineError;
use model::{Escaped, Pid};

/// A verb that was refused or failed.
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
    /// Files could not be watched, or not be taken back.
    #[error(transparent)]
    Undo(#[from] undo::UndoError),
    /// Channels of a component could not be kept.
    #[error(transparent)]
    Channel(#[from] channel::ChannelError),
    /// A system file has mistakes.
    /// Row: system-file
    #[error("{path} is not a valid system file\n\n{mistakes}\n\nhelp: `undying check --schema` prints every key", path = Escaped(&path.to_string_lossy()))]
    System {
        /// The file.
        path: PathBuf,
        /// Each with its line and a caret.
        mistakes: String,
    },
    /// Going back was requested, and files of this subject cannot.
    /// Row: files-cannot-go-back
    #[error(
        "files cannot go back with the program: {why}\nhelp: run it with `--files fresh` (or without `--files`); `undying doctor` tells what this system lacks"
    )]
    NoRewind { why: String },
    /// The undo log of a subject does not lead to a checkpoint.
    /// Row: files-not-reached
    #[error(
        "files cannot go back to {image}: {why}\nhelp: `undying ls` shows the checkpoints that files can go back to; `--files refuse` compares them, `--files keep` restores over them as they are"
    )]
    NotReached { image: String, why: String },
    /// A subject runs, or has a guardian: its files are in use.
    /// Row: files-in-use
    #[error(
        "files of {name} do not go back while it is guarded; nothing was changed\nhelp: end it first, or wait until it has ended: `undying status {name}`"
    )]
    FilesInUse { name: String },
    /// Nothing of this path was moved aside, or it is gone.
    /// Row: not-moved-aside
    #[error(
        "nothing was moved aside from {path} by a restart of {name}\nhelp: `undying files {name}` lists what is there",
        path = Escaped(&path.to_string_lossy())
    )]
    NotAside { name: String, path: PathBuf },
    /// There is something where a file is to be put back.
    /// Row: put-back-taken
    #[error(
        "{path} exists; nothing was changed\nhelp: rename it, then put the other one back; or use that where it is: {from}",
        path = Escaped(&path.to_string_lossy()),
        from = Escaped(&from.to_string_lossy())
    )]
    PutBackTaken { path: PathBuf, from: PathBuf },
    /// A kernel feature that nothing can replace is missing or forced off.
    /// Row: feature-missing
    #[error("the kernel feature {name} is missing: {purpose}\nhelp: {fix}; `undying doctor` checks them all")]
    FeatureMissing { name: &'static str, purpose: &'static str, fix: &'static str },
    /// The user that requests a checkpoint could not restore it; nothing was begun.
    /// Row: no-right-to-restore
    #[error(
        "no checkpoint is made that this user cannot restore: choosing process numbers needs CAP_CHECKPOINT_RESTORE\nhelp: run undying as root, or give it the capability: `setcap cap_checkpoint_restore,cap_sys_ptrace+ep` on its file"
    )]
    NoRightToRestore,
    /// Output that waits for checkpoints would wait too long.
    /// Row: output-waits
    #[error(
        "what the program sends would wait for more than a second\nhelp: take checkpoints more often, for example --every 20ms"
    )]
    OutputWaits,
    /// No place for the store is known.
    /// Row: store-unknown
    #[error(
        "no directory for the store: neither XDG_STATE_HOME nor HOME is set\nhelp: name one with --store DIR"
    )]
    NoStore,
    /// The program to run cannot be started.
    /// Row: command-failed
    #[error("cannot start {command:?}: {source}\nhelp: check its name, PATH and its permissions")]
    Command { command: OsString, source: sys::Error },
    /// A component is to run as a user that this machine does not have.
    /// Row: no-user
    #[error("there is no user {name:?} in /etc/passwd\nhelp: name one that is there, or its number")]
    NoUser { name: String },
    /// Another guardian owns this name.
    /// Row: name-taken
    #[error("{name} is guarded by another undying{by}\nhelp: give this one another name with --name")]
    NameTaken {
        name: String,
        /// The other guardian, as far as it is known: ` (pid N)` or nothing.
        by: String,
    },
    /// The tree contains this very program.
    /// Row: own-tree
    #[error(
        "the tree of pid {pid} contains this undying, which cannot stop itself; nothing was changed\nhelp: run undying from outside of the tree: from another terminal, or under `setsid`"
    )]
    OwnTree { pid: Pid },
    /// Another guardian has the system of this store.
    /// Row: system-taken
    #[error(
        "the store {store} has a system already: {name}, guarded by pid {pid}\nhelp: `undying down` ends it; another system needs a store of its own (`store` in `[system]`, or `--store`)",
        store = store.display()
    )]
    SystemTaken { name: String, pid: Pid, store: PathBuf },
    /// No system runs in this store.
    /// Row: no-system
    #[error(
        "no system is guarded in the store {store}\nhelp: `undying up FILE.toml` starts one; `--store` names another store",
        store = store.display()
    )]
    NoSystem { store: PathBuf },
    /// A system file has a key that this version does not follow.
    /// Row: key-not-built
    #[error(
        "{what} of a system file is not supported yet\nhelp: remove the key; `undying up` does the rest of the file"
    )]
    KeyNotBuilt { what: String },
    /// A probe of a system file cannot be made.
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
    NotDone { why: String },
    /// The process is a thread of the kernel.
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
    /// The directory that is to hold an image does not exist.
    /// Row: image-parent
    #[error(
        "cannot write the image {image}: there is no directory {parent}\nhelp: make it with `mkdir -p`, then take the checkpoint again",
        image = image.display(),
        parent = parent.display()
    )]
    NoParent { image: PathBuf, parent: PathBuf },
    /// Processes of a dead subject do not go away.
    /// Row: leftovers
    #[error(
        "pid {pid} is left over from the dead subject and does not end\nhelp: it hangs in the kernel (`cat /proc/{pid}/stack`); the subject cannot be restored before it is gone"
    )]
    Leftover { pid: Pid },
    /// The subject died, and nothing that is there brings it back.
    /// Row: not-restorable
    #[error(
        "{name} died and cannot be restored from any of its {tried} checkpoints; the last reason: {last}"
    )]
    NotRestorable {
        name: String,
        /// Checkpoints that were tried.
        tried: usize,
        /// Why the last of them failed, with its own help.
        last: Box<GuardianError>,
    },
    /// An adopted subject has ended, and there is neither a checkpoint to restore nor a command to start.
    /// Row: no-way-back
    #[error(
        "{name} has ended and is not restarted: undying has not started it and there is no checkpoint of it\nhelp: start it under `undying run`"
    )]
    NoWayBack { name: String },
    /// A file that only this program writes makes no sense.
    /// Row: status-damaged
    #[error("{path} cannot be read as a status: {why}\nhelp: remove the file; it is written anew by the next run", path = Escaped(&path.to_string_lossy()))]
    Status { path: PathBuf, why: String },
}

/// Rows about several subjects, and the subjects that could not be read. One of these keeps no other from being shown.
#[derive(Debug)]
pub struct Found<T> {
    /// What was found.
    pub rows: Vec<T>,
    /// Subjects that could not be read, by name, and why.
    pub failed: Vec<(String, GuardianError)>,
}

impl<T> Default for Found<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), failed: Vec::new() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, GuardianError>;

impl GuardianError {
    /// Whether a restore was refused because of files on disk.
    pub(crate) fn names_changed_files(&self) -> bool {
        matches!(self, Self::Engine(EngineError::FilesChanged(_) | EngineError::FilesNotRecorded))
    }
}
