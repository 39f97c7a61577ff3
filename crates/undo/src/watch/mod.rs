//! Watching a subject change files.
//!
//! Owns: the threads that answer the kernel before a change, and what is kept of the present epoch.
//! Invariants: a change is answered only after the log has what was there before it; no answer waits for the pause; the
//! death of this program lets every change pass.
//! Does not: go back.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{ByteCount, Pid, Sequence};

use crate::error::Result;

/// What a watch is told.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Where the log is: `undo` below the directory of the subject.
    pub directory: PathBuf,
    /// Bytes that the log may take (`--files-undo-max`).
    pub bytes_max: ByteCount,
    /// Part of the time that keeping may cost, 0.1 for a tenth (`--files-cost-max`).
    pub cost_max: f64,
    /// The checkpoint whose files are those of now: the one that the subject starts from, 0 for its beginning.
    pub start: Sequence,
}

/// A description of the subject that may write to a regular file, as the capture holds it inside the pause.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile<'a> {
    /// A duplicate of the description itself.
    pub file: BorrowedFd<'a>,
    /// Its file status flags (O_APPEND and the like).
    pub flags: u32,
    /// Its file offset.
    pub position: Option<u64>,
    /// The guardian was started with it and hands it on.
    pub is_inherited: bool,
}

/// A file behind a shared mapping that is, or can become, writable.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// Major and minor number of its device, as in /proc/PID/maps.
    pub device: (u32, u32),
    /// Its inode number.
    pub inode: u64,
    /// Its path.
    pub path: &'a Path,
}

/// Whether files can go back to a checkpoint exactly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// They can.
    Exact,
    /// They cannot, for this reason: the epoch goes on.
    Deferred(String),
}

/// What `status` says of the watch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WatchReport {
    /// Why the way back is lost since the last exact checkpoint, if it is.
    pub broken: Option<String>,
    /// Files that can be changed without a trace: they do not go back.
    pub uncovered: Vec<PathBuf>,
    /// The newest checkpoint that files can go back to.
    pub newest_exact: Option<Sequence>,
    /// Bytes of the log.
    pub bytes: ByteCount,
    /// Part of the time of the last epoch that keeping took.
    pub cost: f64,
    /// Checkpoints for each exact one, by the cost cap.
    pub every: u32,
}

/// Watches one subject, incarnation after incarnation.
#[derive(Debug)]
pub struct Watch {}

impl Watch {
    /// Why files cannot be watched here, if they cannot: privilege or kernel feature by name.
    #[must_use]
    pub fn missing() -> Option<String> {
        Some("not built yet".to_owned())
    }

    /// Begins a log and the threads that answer.
    pub fn start(_options: WatchOptions) -> Result<Self> {
        Ok(Self {})
    }

    /// Answers the filter of a new incarnation from now on. `root` names its process tree.
    pub fn attach(&self, _listener: OwnedFd, _root: Pid) -> Result<()> {
        Ok(())
    }

    /// The subject is stopped for this checkpoint: binds the state of files to it. Called inside the pause, after all
    /// threads are stopped and before any runs again.
    pub fn boundary(
        &self,
        _sequence: Sequence,
        _open: &[OpenFile<'_>],
        _mapped: &[MappedFile<'_>],
    ) -> Boundary {
        Boundary::Deferred("not built yet".to_owned())
    }

    /// What need not be done inside the pause that has just ended.
    pub fn after_pause(&self) {}

    /// The subject has ended and no process of it is left. Nothing is watched until `attach`.
    pub fn subject_ended(&self) {}

    /// Checkpoints that files can go back to, in rising order.
    #[must_use]
    pub fn exact(&self) -> Vec<Sequence> {
        Vec::new()
    }

    /// Takes files back to a checkpoint after `subject_ended`, and begins a new epoch there.
    pub fn go_back(&self, _to: Sequence) -> Result<crate::back::WentBack> {
        Ok(crate::back::WentBack::default())
    }

    /// The files as they are belong to a subject that starts from its beginning: the log begins anew.
    pub fn start_over(&self, _start: Sequence) -> Result<()> {
        Ok(())
    }

    /// Checkpoints before this one are not kept any more.
    pub fn forget_before(&self, _oldest: Sequence) {}

    /// For `status`.
    #[must_use]
    pub fn report(&self) -> WatchReport {
        WatchReport::default()
    }
}
