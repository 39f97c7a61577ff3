//! The results of a checkpoint, and of tracking alone.
//!
//! Owns: the counts and the reports.
//! Does not: fill them.

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
use super::budget::Throttle;

/// A completed capture of a subject (a protected process tree). The log makes the checkpoint durable.
#[derive(Debug)]
pub struct Taken {
    /// Reports when the checkpoint is durable.
    pub ticket: Ticket,
    /// How long the subject was stopped, by purpose.
    pub timings: Timings,
    /// The length of each phase of the pause, and of the phases before and after the pause.
    pub phases: Phases,
    /// How long the subject was stopped before that, to attach trackers to new processes and for aborted
    /// captures. Usually zero.
    pub arming: Duration,
    /// Earlier stops of this checkpoint in which pages were copied.
    pub slices: Slices,
    /// Number of pre-copy rounds.
    pub rounds: usize,
    /// Number of pages that were copied while the subject ran, and in slices.
    pub precopied: PageCount,
    /// Number of pages that were copied inside the pause.
    pub residual: PageCount,
    /// Regular files that the subject may write, in their state of the pause.
    pub files: Vec<FileRecord>,
    /// Whether files can be rolled back exactly to this checkpoint; `None` without a watch.
    pub boundary: Option<Boundary>,
    /// Idle TCP connections to processes outside the subject. A connection is idle if the subject has neither
    /// read nor written since the previous checkpoint. If output is held, active connections are listed, too.
    ///
    /// When the program dies, a restore can take over the connections that are still open here. The caller
    /// must close the connections that the program uses. Until then, the peer does not see a close by the
    /// program.
    pub connections: Vec<Arc<OwnedFd>>,
    /// The last packet that was held before the pause. The checkpoint contains the sending of this packet and
    /// of all earlier ones.
    pub held_through: Option<PacketNumber>,
}

/// Stops before the final stop of a checkpoint. They keep the length of each stop within the pause budget.
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
    /// Fields are dropped in this order, so that the tree is resumed first.
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
    pub(super) slices: Slices,
    pub(super) throttle: Throttle,
    /// The scan of new mappings was once deferred to the running subject.
    pub(super) has_deferred_fresh: bool,
}

impl Counts {
    /// Lets the next stop capture everything, without the pause budget.
    pub(super) fn complete(&mut self) {
        self.has_deferred_fresh = true;
        self.throttle.give_up();
    }
}

/// The result and the cost of tracking alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracking {
    /// Number of pages that have changed since the last call.
    pub pages: PageCount,
    /// Length of the scan.
    pub scan: Duration,
    /// How long the subject was stopped for the scan. Usually zero.
    pub pause: Duration,
    /// How long the subject was stopped before the scan, to attach trackers to new processes or to cover new
    /// mappings.
    pub arming: Duration,
}
