//! The calls of a subject that a seccomp filter reports, and the thread that answers them.
//!
//! Each incarnation has a filter of its own.
//!
//! Owns: the choice of the filter, its installation in a started program, and the start of the answering thread.
//! Invariants: a listener is passed to the listener holders before the first call is answered.
//! Does not: decide what a call means for files; the `Recipient` does.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::OFlags;
use sys::listener_holder::ListenerHolder;
use sys::seccomp_listener::{self, FilterProgram, Listener, Reported};
use sys::socket_call::CallHandler;
use sys::watched_start::PendingListener;

use super::threads::{Recipient, Source, answer_calls, spawn};
use crate::error::Result;
use crate::log::UNWATCHED;

/// Reports the calls of one subject over all its incarnations.
#[derive(Clone, Debug)]
pub struct CallReports {
    recipient: Arc<dyn Recipient>,
    holder: Arc<ListenerHolder>,
    /// The directory of the undo log, in which the holders record that the program runs unwatched. `None` without a log.
    log: Option<PathBuf>,
    /// The handler for socket calls: bind(2), listen(2) and connect(2).
    channels: Option<Arc<dyn CallHandler>>,
}

impl CallReports {
    pub(super) fn new(recipient: Arc<dyn Recipient>, holder: ListenerHolder, log: Option<PathBuf>) -> Self {
        Self { recipient, holder: Arc::new(holder), log, channels: None }
    }

    /// Makes the filters of later incarnations report bind(2), listen(2) and connect(2), too, and sets the handler of
    /// these calls. The watch records the name that a bind(2) to a path creates, and then calls the handler. listen(2)
    /// and connect(2) change no file.
    pub(super) fn with_channels(self, channels: Arc<dyn CallHandler>) -> Self {
        Self { channels: Some(channels), ..self }
    }

    /// Returns the filter for the next incarnation of this subject. During a restore, the caller installs the filter
    /// with `seccomp_listener::flags_of`, and passes the listener to [`Self::attach`].
    ///
    /// If a handler for socket calls is set, the filter reports socket calls, too. If the handler can hold a call for a
    /// long time, signals can interrupt all reported calls, because a checkpoint must be able to stop the calling
    /// thread.
    #[must_use]
    pub fn filter(&self) -> FilterProgram {
        let both = || seccomp_listener::filter_program(Reported::FilesAndChannels);
        match &self.channels {
            Some(handler) if handler.may_hold() => both().interruptible(),
            Some(_) => both(),
            None => seccomp_listener::watch_program(),
        }
    }

    /// Prepares a command, so that the started program is watched from its first instruction on.
    ///
    /// # Errors
    ///
    /// The filter cannot be prepared.
    pub fn prepare(&self, command: &mut Command, joins: bool) -> Result<PendingListener> {
        let mark = self.mark(joins)?;
        let held = Some((&*self.holder, mark.as_fd()));
        Ok(sys::watched_start::watch_from_start(command, self.filter(), held)?)
    }

    /// Starts to answer the calls of a program, after the caller has started the prepared command. The start has
    /// already passed the listener to the fd holder.
    ///
    /// # Errors
    ///
    /// No listener was received, or no thread can be started. After an error, calls of the program wait for ever, and
    /// the caller must kill the program.
    pub fn started(&self, pending: PendingListener) -> Result<()> {
        self.serve(pending.receive()?)
    }

    /// Replaces the fd holders that have died.
    ///
    /// # Errors
    ///
    /// No fd holder lives, and none can be created. An incarnation cannot be watched now.
    pub fn repair(&self) -> Result<()> {
        Ok(self.holder.repair()?)
    }

    /// Starts to answer the calls of an incarnation that was restored.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::started`].
    pub fn attach(&self, listener: OwnedFd) -> Result<()> {
        self.holder.hold(listener.as_fd(), self.mark(false)?.as_fd())?;
        self.serve(Listener::new(listener)?)
    }

    fn serve(&self, listener: Listener) -> Result<()> {
        // If the kernel has no synchronous wake-up, answers are slower but still correct.
        let _ = listener.use_sync_wake_up();
        let buffer = self.holder.buffer().ok_or_else(|| {
            sys::Error::new("find a free buffer for calls of the subject", sys::Errno::ENOSPC)
        })?;
        self.recipient.begins();
        let recipient = Arc::clone(&self.recipient);
        let (held, channels) = (self.holder.held_calls(), self.channels.clone());
        let source = Source { listener: Arc::new(listener), buffer, held, channels };
        spawn("undying-files", move || answer_calls(&*recipient, source))
    }

    /// Opens the file in which the holders record that an incarnation runs unwatched. A new incarnation has a new file.
    /// Without an undo log, nothing reads such a record.
    fn mark(&self, joins: bool) -> Result<File> {
        match &self.log {
            Some(log) => open_mark(log, joins),
            None => {
                let opened = OpenOptions::new().append(true).open(NOWHERE);
                Ok(opened.map_err(|error| sys::Error::path("open", Path::new(NOWHERE), error))?)
            }
        }
    }
}

const NOWHERE: &str = "/dev/null";

/// Creates the file [`UNWATCHED`] for a new incarnation, and removes the file of the previous incarnation. With `joins`,
/// opens the file of the present incarnation.
fn open_mark(directory: &Path, joins: bool) -> Result<File> {
    let path = directory.join(UNWATCHED);
    match if joins { Ok(()) } else { std::fs::remove_file(&path) } {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(sys::Error::path("remove", &path, error).into());
        }
        _ => {}
    }
    let mut options = OpenOptions::new();
    let opened = options
        .append(true)
        .create_new(!joins)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&path);
    Ok(opened.map_err(|error| sys::Error::path("create", &path, error))?)
}
