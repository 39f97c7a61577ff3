//! The errors of trackers.
//!
//! Owns: `TrackError`.
//! Invariants: an error names the process or the tracker.
//! Does not: choose another tracker; `choice` does.

use model::Pid;
use sys::{Errno, Error};
use tracee::RemoteError;

/// A tracker is unusable or has failed.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// No tracker has this name.
    /// Row: tracker-unknown
    #[error("there is no tracker {name}\nhelp: choose one of {known}")]
    UnknownName {
        /// The requested name.
        name: String,
        /// The names of all trackers.
        known: String,
    },
    /// The kernel or the privileges of this user lack a feature that the tracker needs.
    /// Row: tracker-missing
    #[error("tracker {tracker} cannot be used: {cause}\nhelp: {fix}, or use --tracker auto")]
    Missing {
        /// Name of the tracker.
        tracker: &'static str,
        /// The error of the probe.
        cause: Error,
        /// How to make the feature available.
        fix: &'static str,
    },
    /// The user has disabled a feature that the tracker needs.
    /// Row: tracker-missing
    #[error(
        "tracker {tracker} cannot be used: {feature} is forced off\nhelp: take {feature} out of UNDYING_FEATURES_OFF, or use --tracker auto"
    )]
    ForcedOff {
        /// Name of the tracker.
        tracker: &'static str,
        /// Name of the feature.
        feature: &'static str,
    },
    /// The self-test has found a change that this kernel does not report.
    /// Row: tracker-unsound
    #[error(
        "tracker {tracker} cannot be used: this kernel does not report {change}\nhelp: use --tracker auto, or a kernel with this error mended"
    )]
    Unsound {
        /// Name of the tracker.
        tracker: &'static str,
        /// The change that the kernel has not reported.
        change: &'static str,
    },
    /// The address space no longer exists: the process has ended or called execve(2).
    #[error("the memory of pid {0} is gone, and its tracker with it")]
    Gone(Pid),
    /// The thread that reads the messages about discarded pages has failed.
    #[error("the messages about discarded pages of pid {pid} cannot be read: {cause}")]
    Handler {
        /// The process.
        pid: Pid,
        /// The error of the handler.
        cause: Error,
    },
    /// A remote system call failed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

impl TrackError {
    /// Returns the error of a failed scan. ESRCH means that the address space no longer exists, and becomes
    /// [`Self::Gone`].
    pub(crate) fn of_scan(pid: Pid, cause: Error) -> Self {
        if cause.errno == Errno::ESRCH { Self::Gone(pid) } else { Self::Kernel(cause) }
    }
}
