//! Defines the interface of every *tracker*: the code that finds the pages of a process that have changed.
//!
//! A scan *begins a new round* if it marks the found pages as unchanged. The next scan then finds only pages that
//! change after this scan.
//!
//! Owns: the traits, and the report on memory that is not watched.
//! Invariants: a tracker belongs to one address space. After an execve(2) of the process, the tracker does
//! not act on the new address space.
//! Does not: name a tracker; the registry does.

use std::fmt::Debug;
use std::sync::Arc;

use model::{AddressRange, ByteCount, Pid};
use sys::Errno;
use sys::features::Feature;
use tracee::procfs::Mapping;
use tracee::{RemoteSession, WorkerPool};

use crate::dirty::DirtyPages;
use crate::error::TrackError;
use crate::loosen::Loosener;

/// Whether the process runs during a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The process runs. The result is preliminary. The next scan of the stopped process corrects the result.
    Running,
    /// All threads that can write to this memory are stopped. The result is exact.
    Stopped,
}

/// The properties of a tracker on which other code depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Properties {
    /// A scan of a running process begins a new round. If false, only a scan of the stopped process begins a
    /// new round, and scans of the running process find the same pages repeatedly.
    pub rearms_running: bool,
    /// `auto` can select this tracker.
    pub automatic: bool,
}

/// A method to find dirty pages.
pub trait TrackerKind: Sync + Debug {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;

    /// Returns a description in one line.
    fn purpose(&self) -> &'static str;

    /// Returns the kernel features that the tracker needs.
    fn features(&self) -> &'static [Feature];

    /// Returns the properties of the tracker.
    fn properties(&self) -> Properties;

    /// Tests on memory of this program whether the kernel reports every change.
    fn self_test(&self) -> Result<(), TrackError>;

    /// Prepares to track a process that still runs. Returns the function that begins the tracking of the
    /// stopped process. `mappings` are the known mappings of the process, in rising order.
    fn prepare(&self, pid: Pid, mappings: &[Mapping]) -> Result<Attach, TrackError>;
}

/// A function that begins to track a process. [`TrackerKind::prepare`] returns the function. The process must
/// be stopped, because the function makes a few remote system calls in it. The new tracker covers no mapping
/// before the first call of [`Tracker::cover`].
pub type Attach = Box<dyn FnOnce(&mut RemoteSession<'_>) -> Result<Box<dyn Tracker>, TrackError>>;

/// A tracker of one address space. Dropping the tracker ends the tracking, and the process continues
/// unchanged. The drop can delay the process, unless [`Tracker::unwind`] and [`Tracker::leave`] were called
/// before the drop.
pub trait Tracker: Send + Debug {
    /// Returns the kind of the tracker.
    fn kind(&self) -> &'static dyn TrackerKind;

    /// Sets the list of mappings of the process, in rising order. All pages of a new mapping are dirty at the
    /// next scan. Mappings that are not in the list are forgotten. Must be called before a scan if the
    /// mappings have changed.
    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError>;

    /// Allocates memory for the results of [`Self::post_scan`], if the watched memory has at least the given
    /// size. Must not be called inside a pause.
    fn prepare_scan(&mut self, _min_bytes: ByteCount) {}

    /// Hands the next scan of a stopped process to a worker pool, if the watched memory has at least the
    /// given size. The workers start at [`WorkerPool::begin`]. If the process is resumed before the next call
    /// of [`Self::scan`], no change is lost.
    fn post_scan(&mut self, _worker_pool: &Arc<WorkerPool>, _min_bytes: ByteCount) {}

    /// Adds the pages that have changed in the current round to `into`. In the same step, begins a new round
    /// (see [`Properties::rearms_running`]).
    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError>;

    /// Returns a handle that ends the protection of memory, if this tracker can do that between two scans.
    fn loosener(&self) -> Option<Loosener> {
        None
    }

    /// Does the slow part of ending the tracking, while the process runs. No scan is possible afterwards.
    fn unwind(&mut self) {}

    /// Ends the tracking of a stopped process. Dropping the tracker afterwards has no effect on the process.
    fn leave(&mut self) {}
}

/// The reason why a tracker does not watch a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnwatchedReason {
    /// The program watches the mapping with its own userfaultfd.
    WatchedByProgram,
    /// The kernel cannot watch memory of this kind. Contains the errno of the request.
    Unwatchable(Errno),
    /// The page tables for watching the mapping would take too much memory.
    TooSparse,
    /// This tracker cannot find the changes of shared memory.
    Shared,
    /// The pages belong to hugetlbfs. The kernel has no soft-dirty bits for pages of hugetlbfs, and the write
    /// protection of these pages was not tested.
    Hugetlb,
    /// This tracker watches no memory.
    Chosen,
}

/// A mapping whose pages are all dirty at every scan. In a private file mapping, only the private pages are
/// dirty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwatched {
    /// Addresses of the mapping.
    pub range: AddressRange,
    /// The reason.
    pub reason: UnwatchedReason,
}

/// The result of [`Tracker::cover`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Ranges of new mappings, and ranges that show another object than at the previous call. All data that
    /// was stored for these ranges is invalid.
    pub fresh: Vec<AddressRange>,
    /// Mappings that are reported completely at every scan.
    pub unwatched: Vec<Unwatched>,
}
