//! Why there is no tracker, or why it cannot continue.
//!
//! Owns: `TrackError`.
//! Invariants: names the process or the tracker.
//! Does not: choose another tracker; `choice` does.

use model::Pid;
use sys::{Errno, Error};
use tracee::RemoteError;

/// A tracker that is not there or has failed.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// No tracker has this name.
    /// Row: tracker-unknown
    #[error("there is no tracker {name}\nhelp: choose one of {known}")]
    UnknownName {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The kernel, or this user's rights, lack what the tracker needs.
    /// Row: tracker-missing
    #[error("tracker {tracker} cannot be used: {cause}\nhelp: {fix}, or use --tracker auto")]
    Missing {
        /// The tracker.
        tracker: &'static str,
        /// What failed.
        cause: Error,
        /// How to get it.
        fix: &'static str,
    },
    /// A feature was forced off.
    /// Row: tracker-missing
    #[error(
        "tracker {tracker} cannot be used: {feature} is forced off\nhelp: take {feature} out of UNDYING_FEATURES_OFF, or use --tracker auto"
    )]
    ForcedOff {
        /// The tracker.
        tracker: &'static str,
        /// The feature's name.
        feature: &'static str,
    },
    /// This kernel misses changes.
    /// Row: tracker-unsound
    #[error(
        "tracker {tracker} cannot be used: this kernel does not report {change}\nhelp: use --tracker auto, or a kernel with this error mended"
    )]
    Unsound {
        /// The tracker.
        tracker: &'static str,
        /// The change that went unseen.
        change: &'static str,
    },
    /// The process may not have its faults served, and neither may we on its behalf.
    /// Row: tracker-unprivileged
    #[error(
        "tracker write-protect cannot watch pid {pid}: it has no CAP_SYS_PTRACE, and {cause}\nhelp: run undying as root on Linux 6.1 or later, set vm.unprivileged_userfaultfd to 1, or use --tracker auto"
    )]
    Unprivileged {
        /// The process.
        pid: Pid,
        /// Why the device cannot be had either.
        cause: Error,
    },
    /// The address space is gone: the process ended, or replaced it by exec.
    #[error("the memory of pid {0} is gone, and its tracker with it")]
    Gone(Pid),
    /// The handler of faults has ended.
    #[error("the fault handler for pid {pid} failed: {cause}")]
    Handler {
        /// The process.
        pid: Pid,
        /// What failed.
        cause: Error,
    },
    /// A remote call failed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

impl TrackError {
    /// The error of a scan that failed; where nothing is left to scan, it says so.
    pub(crate) fn of_scan(pid: Pid, cause: Error) -> Self {
        if cause.errno == Errno::ESRCH { Self::Gone(pid) } else { Self::Kernel(cause) }
    }
}
