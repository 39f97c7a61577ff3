//! The results of a checkpoint, and of tracking alone.
//!
//! Owns: the types for the counts and the reports.
//! Does not: count; the other modules of `continuous` fill these types.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use image::Timings;
use model::PageCount;
use resource::files::FileRecord;
use store::Ticket;
use sys::packet_hold::PacketNumber;
use undo::watch::Boundary;

use super::super::phases::Phases;
use super::super::pipeline::Captured;
use super::super::reserve::Reserve;
use super::copies::Copies;
use super::throttle::Throttle;

/// A completed capture of a subject. The log may still be making the checkpoint durable.
#[derive(Debug)]
pub struct Taken {
    /// Reports when the checkpoint is durable.
    pub ticket: Ticket,
    /// How long the subject was stopped, by purpose.
    pub timings: Timings,
    /// The length of each phase of the pause, and of the phases before and after the pause.
    pub phases: Phases,
    /// How long the subject was stopped outside the pause and the slices: to attach trackers to new
    /// processes, and for aborted captures. Usually zero.
    pub arming: Duration,
    /// The stops before the pause in which pages were copied.
    pub slices: Slices,
    /// The pause budget for the next checkpoint. It is larger than the requested one if a stop of all threads
    /// needs more time.
    pub max_pause: Option<Duration>,
    /// Number of pre-copy rounds.
    pub rounds: usize,
    /// Number of pages that were copied while the subject ran, and in slices.
    pub precopied: PageCount,
    /// Number of pages that were copied inside the pause.
    pub residual: PageCount,
    /// Regular files that the subject may write, with their state in the pause.
    pub files: Vec<FileRecord>,
    /// O_PATH descriptors of the program files, libraries and other mapped files that a restore needs. While the
    /// descriptors are open, a restore finds the files, even if other files get their names.
    pub mapped: Vec<Arc<OwnedFd>>,
    /// Whether files can be rolled back exactly to this checkpoint; `None` without a watch.
    pub boundary: Option<Boundary>,
    /// Idle TCP connections to processes outside the subject. A connection is idle if the subject has not
    /// used the connection since the previous checkpoint. If output is held, active connections are listed,
    /// too.
    ///
    /// If the program dies, a restore can take over the connections that are still open in this process. If
    /// the program uses a connection again, the caller must close this connection. As long as the caller has
    /// the connection open, a close by the program does not reach the peer.
    pub connections: Vec<Arc<OwnedFd>>,
    /// The last packet that was held before the pause. The checkpoint contains the sending of this packet and
    /// of all packets before it.
    pub held_through: Option<PacketNumber>,
}

/// The slices of a checkpoint: the stops before the final stop. The copying is divided among several slices,
/// so that no stop exceeds the pause budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slices {
    /// Number of slices.
    pub count: u32,
    /// How long the subject was stopped in all slices together.
    pub total: Duration,
    /// Length of the longest slice.
    pub longest: Duration,
}

impl Slices {
    pub(super) fn note(&mut self, stopped: Duration) {
        self.count += 1;
        self.total += stopped;
        self.longest = self.longest.max(stopped);
    }
}

/// A stopped and captured subject, with its copied pages.
pub(crate) struct StoppedCapture<'a> {
    /// The captured tree. Fields are dropped in the order of declaration, so the tree is resumed first.
    pub(crate) captured: Captured,
    /// The pages that were copied inside the pause.
    pub(crate) reserve: Reserve<'a>,
    /// Length of an earlier pause in which trackers were attached.
    pub(crate) arming: Duration,
}

/// Counts of the copied pages and stops of one checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) rounds: usize,
    pub(super) precopied: PageCount,
    pub(super) residual: PageCount,
    /// Whether the subject was scanned while it ran.
    pub(super) has_scanned: bool,
    /// The duration of the last scan while the subject ran.
    pub(super) scan: Duration,
    /// The number of dirty pages that the first round has found.
    pub(super) found_first: PageCount,
    /// The largest number of dirty pages that one scan has found.
    pub(super) found_most: PageCount,
    pub(super) slices: Slices,
    pub(super) throttle: Throttle,
    /// Whether the scan of new mappings was already deferred once, to a time when the subject runs.
    pub(super) has_deferred_fresh: bool,
}

impl Counts {
    pub(super) fn copies(&self) -> Copies {
        Copies { pages: self.found_most, done: self.precopied + self.residual }
    }
}

/// The result and the cost of tracking alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracking {
    /// Number of pages that have changed since the previous scan.
    pub pages: PageCount,
    /// Length of the scan.
    pub scan: Duration,
    /// How long the subject was stopped for the scan. Usually zero.
    pub pause: Duration,
    /// How long the subject was stopped before the scan, to attach trackers to new processes or to cover new
    /// mappings.
    pub arming: Duration,
}
