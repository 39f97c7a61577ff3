//! The result of a checkpoint, or of tracking alone.
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

/// A checkpoint that has left its subject; the log makes it durable.
#[derive(Debug)]
pub struct Taken {
    /// The log's promise.
    pub ticket: Ticket,
    /// How long the subject stood still, and for what.
    pub timings: Timings,
    /// The same in detail, and what came before and after.
    pub phases: Phases,
    /// How long it stood still before that, for trackers to be attached to new processes, and to find that something
    /// stood in the way that was then gone; mostly zero.
    pub arming: Duration,
    /// Earlier stops of this checkpoint, in which pages were copied.
    pub slices: Slices,
    /// Rounds of pre-copy.
    pub rounds: usize,
    /// Pages copied while the subject ran, and in slices.
    pub precopied: PageCount,
    /// Pages copied inside the pause.
    pub residual: PageCount,
    /// Regular files that the subject may write, as they were.
    pub files: Vec<FileRecord>,
    /// Whether files can go back to this checkpoint exactly; `None` without a watch.
    pub boundary: Option<Boundary>,
    /// TCP connections to the outside that the program has neither read from nor written to since the checkpoint before.
    /// Open when the program dies, they can be given to its restore. Close those that it uses: until then the peer does
    /// not see the program close them. With output that is held, all of them.
    pub connections: Vec<Arc<OwnedFd>>,
    /// The last packet that was held before the pause: what was sent until then is in the checkpoint.
    pub held_through: Option<PacketNumber>,
}

/// Stops before the last one of a checkpoint, which keep each stop within the pause budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slices {
    /// How many.
    pub count: u32,
    /// How long the subject was stopped for all of them.
    pub total: Duration,
    /// The longest of them.
    pub longest: Duration,
}

impl Slices {
    pub(super) fn note(&mut self, stopped: Duration) {
        self.count += 1;
        self.total += stopped;
        self.longest = self.longest.max(stopped);
    }
}

/// A subject that is stopped and captured, and what was copied of it.
pub(crate) struct Stood<'a> {
    /// Dropped in this order: the tree goes on first.
    pub(crate) captured: Captured,
    /// What was copied inside the pause.
    pub(crate) reserve: Reserve<'a>,
    /// An earlier pause, in which trackers were attached.
    pub(crate) arming: Duration,
}

/// What one checkpoint has done to pages so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) rounds: usize,
    pub(super) precopied: PageCount,
    pub(super) residual: PageCount,
    pub(super) slices: Slices,
    pub(super) throttle: Throttle,
    /// New mappings were left to the running scans once.
    pub(super) has_deferred_fresh: bool,
}

impl Counts {
    /// The next stop takes everything, however long that takes.
    pub(super) fn complete(&mut self) {
        self.has_deferred_fresh = true;
        self.throttle.give_up();
    }
}

/// What tracking alone has found and cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracking {
    /// Pages that changed since the last time.
    pub pages: PageCount,
    /// How long it was looked for them.
    pub scan: Duration,
    /// How long the subject stood still for it; mostly not at all.
    pub pause: Duration,
    /// How long it stood still before that, for trackers to be attached to new processes.
    pub arming: Duration,
}
