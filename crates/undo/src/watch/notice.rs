//! Notices that a subject changes files, and records nothing.
//!
//! Some policies never restore memory beside changed files, and change no file themselves. For these policies, it is
//! sufficient to know whether the subject has changed any file since a checkpoint. The restore compares the content of
//! files that were open or mapped at the checkpoint. The subject can change any other file only with a call that the
//! seccomp filter reports.
//!
//! Owns: this knowledge, and the decision whether a call can change a file.
//! Invariants: a change is noticed before the call is executed. In doubt, and also if the call then fails, a call
//! counts as a change.
//! Does not: compare content, or write to the store.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{Sequence, Tid};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use sys::listener_holder::ListenerHolder;
use sys::socket_call::CallHandler;

use super::answer::{socket_path, with_flags};
use super::calls::{Call, Change, FileAt, PathAt, change_of, changes, is_nameless};
use super::paths::{self, Place, is_made_up};
use super::reports::CallReports;
use super::threads::Recipient;

/// Notices changes of files by one subject over all its incarnations.
#[derive(Debug)]
pub struct Notice {
    noticed: Arc<Noticed>,
    calls: CallReports,
}

/// The oldest checkpoint after which the subject has changed no file. `None` if the subject has changed a file after
/// the newest checkpoint.
#[derive(Debug, Default)]
struct Noticed(Mutex<Option<Sequence>>);

impl Notice {
    /// Prepares to notice the changes of a subject that is to be started.
    #[must_use]
    pub fn new(holder: ListenerHolder) -> Self {
        let noticed = Arc::<Noticed>::default();
        let calls = CallReports::new(Arc::clone(&noticed) as Arc<dyn Recipient>, holder, None);
        Self { noticed, calls }
    }

    /// Sets the handler of socket calls: see [`super::Watch::with_channels`].
    #[must_use]
    pub fn with_channels(self, channels: Arc<dyn CallHandler>) -> Self {
        Self { calls: self.calls.with_channels(channels), ..self }
    }

    /// Returns the reports of the calls of the subject.
    #[must_use]
    pub fn calls(&self) -> &CallReports {
        &self.calls
    }

    /// Returns the oldest checkpoint after which the subject has changed no file. `None` if the subject has changed a
    /// file after the newest checkpoint.
    #[must_use]
    pub fn unchanged_since(&self) -> Option<Sequence> {
        *self.noticed.lock()
    }

    /// Forgets all checkpoints, because the subject starts from its beginning.
    pub fn start_over(&self) {
        self.noticed.changed();
    }

    /// Notes that a checkpoint is taken. The caller calls this method inside the pause of the checkpoint, while all
    /// threads of the subject are stopped, so that no call is in progress.
    pub fn boundary(&self, sequence: Sequence) {
        self.noticed.lock().get_or_insert(sequence);
    }
}

impl Noticed {
    fn lock(&self) -> MutexGuard<'_, Option<Sequence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        *self.lock() = None;
    }
}

impl Recipient for Noticed {
    fn begins(&self) {}

    fn answer(&self, thread: Tid, call: &Call, _: &dyn Fn() -> bool) {
        // After the first change, further changes make no difference until the next checkpoint.
        if self.lock().is_some() && can_change(thread, call) {
            self.changed();
        }
    }

    fn missed(&self, _: &str) {
        self.changed();
    }
}

/// Reports whether a call can change a file.
fn can_change(thread: Tid, call: &Call) -> bool {
    let is_any = |file, what| is_any(thread, file, what);
    let Ok(change) = with_flags(thread, change_of(call)) else { return true };
    match change {
        Change::Nothing | Change::Map { .. } => false,
        Change::Open(_, flags) if !changes(flags) || is_nameless(flags) => false,
        Change::Open(at, flags) => {
            let follows = !flags.contains(OFlags::NOFOLLOW);
            is_any(FileAt::Path(PathAt { follows, ..at }), What::Content)
        }
        Change::Bind(address, length) => socket_path(thread, address, length) != Ok(None),
        Change::NoAppend(fd) => is_any(FileAt::Descriptor(fd), What::Content),
        Change::Cut(file, _) | Change::Range { file, .. } | Change::Whole(file) => {
            is_any(file, What::Content)
        }
        Change::Attributes(file, _) => is_any(file, What::Attributes),
        Change::MappedHole
        | Change::OpenHow(..)
        | Change::Make(_)
        | Change::Link(..)
        | Change::Remove { .. }
        | Change::Rename { .. }
        | Change::Unknown(_) => true,
    }
}

/// The part of a file that a call changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Content,
    Attributes,
}

/// Reports whether a file argument leads to a file that stays on a file system, or to no file. A shell, for example,
/// opens /dev/null for writing, and many programs change the flags of their sockets.
fn is_any(thread: Tid, file: FileAt, what: What) -> bool {
    let found = match file {
        FileAt::Descriptor(fd) => paths::descriptor(thread, fd),
        FileAt::Path(at) => {
            paths::seek(thread, &at).and_then(paths::Sought::find).and_then(|place| match place {
                Place::Entry(entry) => entry.open(),
                Place::File(file) => Ok(file),
            })
        }
    };
    found.and_then(|file| stays(file.as_fd(), what)).unwrap_or(true)
}

/// Reports whether a file stays on a file system. The content of a device or pipe is not on a file system. A checkpoint
/// contains the files without a name. The kernel generates the content of some file systems, for example /proc.
fn stays(file: BorrowedFd<'_>, what: What) -> Result<bool, Errno> {
    let found = rustix::fs::fstat(file)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let has_content = !matches!(kind, FileType::CharacterDevice | FileType::Fifo | FileType::Socket);
    Ok((has_content || what == What::Attributes) && found.st_nlink > 0 && !is_made_up(file)?)
}
