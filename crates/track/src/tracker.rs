//! The interface of every tracker.
//!
//! Owns: the traits, and the report on memory that could not be watched.
//! Invariants: a tracker belongs to one address space. It acts on this one forever, also when the process has replaced
//! it by execve(2).
//! Does not: name a tracker; the registry does.

use std::fmt::Debug;
use std::sync::Arc;

use model::{AddressRange, ByteCount, Pid};
use sys::Errno;
use sys::features::Feature;
use tracee::procfs::Area;
use tracee::{RemoteSession, WorkerPool};

use crate::dirty::DirtyPages;
use crate::error::TrackError;

/// Whether the process runs while it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// It runs: what is found is a beginning, and a later scan corrects it.
    Running,
    /// Every thread that can write to its memory stands: what is found is exact.
    Stopped,
}

/// What distinguishes trackers for the code that uses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Properties {
    /// A scan of a running process begins a new round. Without it, such a scan reports the same pages again until
    /// one is made while the process stands.
    pub rearms_running: bool,
    /// A page is reported before it changes: its writer sleeps until the protection is lifted.
    pub sees_before: bool,
    /// `auto` may take it.
    pub automatic: bool,
}

/// A way to find dirty pages.
pub trait TrackerKind: Sync + Debug {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What it is good for, in a line.
    fn purpose(&self) -> &'static str;

    /// What the kernel must have for it.
    fn features(&self) -> &'static [Feature];

    /// What distinguishes it.
    fn properties(&self) -> Properties;

    /// Tries on memory of our own whether this kernel reports every change.
    fn self_test(&self) -> Result<(), TrackError>;

    /// Does what can be done of beginning to track a process while it runs, and gives the rest. `areas` are those it
    /// has, as far as they are known, rising.
    fn prepare(&self, pid: Pid, areas: &[Area]) -> Result<Attach, TrackError>;
}

/// Begins to track a process that was prepared for it and stands; nothing is covered yet. Makes a few system calls in
/// it.
pub type Attach = Box<dyn FnOnce(&mut RemoteSession<'_>) -> Result<Box<dyn Tracker>, TrackError>>;

/// A tracker of one address space. Dropping it ends tracking; the process goes on untouched. It may be held up by that
/// for a while unless [`Tracker::unwind`] and [`Tracker::leave`] came before.
pub trait Tracker: Send + Debug {
    /// Its kind.
    fn kind(&self) -> &'static dyn TrackerKind;

    /// Tells the areas the process has now, rising. Areas that are new count as wholly dirty at the next scan;
    /// what is no longer among them is forgotten. Called whenever the areas have changed, before a scan.
    fn cover(&mut self, areas: &[Area]) -> Result<&Coverage, TrackError>;

    /// Makes room for what `post_scan` finds. Not inside a pause.
    fn prepare_scan(&mut self, _least: ByteCount) {}

    /// Has a worker pool make the next scan of a stopped process, once it begins, if at least so much memory is
    /// watched. A process that is resumed before that scan loses nothing.
    fn post_scan(&mut self, _worker_pool: &Arc<WorkerPool>, _least: ByteCount) {}

    /// Adds what changed since the last scan, and begins a new round in the same step (see [`Properties`]).
    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError>;

    /// Does what takes long of ending to track, while the process runs. Nothing can be scanned any more.
    fn unwind(&mut self) {}

    /// Ends tracking of a process that stands. What is left to be dropped does not concern it.
    fn leave(&mut self) {}
}

/// Why the tracker does not watch an area itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The program watches it with a userfaultfd of its own.
    WatchedByProgram,
    /// The kernel cannot watch memory of this kind.
    Unwatchable(Errno),
    /// Watching it would fill memory with page tables.
    TooSparse,
    /// This tracker cannot tell what became of shared memory.
    Shared,
    /// Pages of hugetlbfs: soft-dirty bits do not exist for them, and protection of them was not tried.
    Hugetlb,
    /// This tracker watches nothing.
    Chosen,
}

/// An area that counts as wholly dirty at every scan: all its pages, or all private ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwatched {
    /// Where it lies.
    pub range: AddressRange,
    /// Why.
    pub why: Why,
}

/// What became of the areas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Ranges that were not there before, or showed something else: whatever was kept of them is void.
    pub fresh: Vec<AddressRange>,
    /// Areas that fall back to full copies.
    pub unwatched: Vec<Unwatched>,
}
