//! The reports of the tracer thread to the guard. The thread traces the subject.
//!
//! Owns: the types of the reports, and the end of the channel that belongs to the thread.
//! Invariants: the guard detects the end of the thread, even after a panic.
//! Does not: trace; `tracer` does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use engine::{Comparison, Taken};
use model::ProcessKey;
use store::LogWriter;

use crate::error::GuardianError;

/// A report of the thread.
#[derive(Debug)]
pub(super) enum News {
    /// A checkpoint was captured.
    Taken(Box<TakenNews>),
    /// Dirty pages were scanned, but no checkpoint was taken.
    Scanned(engine::Tracking),
    /// No checkpoint was taken, because the log has not written enough of the earlier checkpoints.
    Behind,
    /// A checkpoint was not taken, or the log was not opened.
    Failed(GuardianError),
    /// A checkpoint was not taken, because the tracker could not be attached. The named tracker is used from now on.
    Tracking(&'static str, GuardianError),
    /// The stopped subject was resumed or killed.
    LetGo,
    /// The log was opened again.
    Opened(Arc<LogWriter>),
}

/// A captured checkpoint.
#[derive(Debug)]
pub(super) struct TakenNews {
    pub(super) taken: Taken,
    /// The processes of the subject at the checkpoint, without the root.
    pub(super) descendants: Vec<ProcessKey>,
    /// The result of comparing the checkpoint with the subject. `None` if the checkpoint was not compared.
    pub(super) comparison: Option<Comparison>,
    /// Name of the tracker that found the dirty pages.
    pub(super) tracker: &'static str,
}

/// The end of the report channel that belongs to the thread.
pub(super) struct NewsSender {
    sender: Option<Sender<News>>,
    alarm: Arc<OwnedFd>,
}

impl NewsSender {
    /// `alarm` is an eventfd, which becomes readable with each report.
    pub(super) fn new(sender: Sender<News>, alarm: Arc<OwnedFd>) -> Self {
        Self { sender: Some(sender), alarm }
    }

    pub(super) fn send(&self, news: News) {
        if let Some(sender) = &self.sender {
            // An error means that the guard has ended and needs no report.
            let _ = sender.send(news);
        }
        self.ring();
    }

    fn ring(&self) {
        // The counter cannot overflow, because the guard resets the counter after each report.
        let _ = rustix::io::write(&*self.alarm, &1_u64.to_ne_bytes());
    }
}

impl Drop for NewsSender {
    /// Closes the channel. Then writes to the eventfd a last time, so that the guard detects the end of the channel.
    fn drop(&mut self) {
        self.sender = None;
        self.ring();
    }
}
