//! A restore whose program runs before its memory is there.
//!
//! Owns: which memory comes later; the order in which it is watched, filled and released.
//! Invariants: a page that is missing is never read as zeros: the program waits for it, or is killed with this
//! program (`tracee::post_restore_tracer`), or is killed because the page cannot be had; nothing of it stays when all
//! is there.
//! Does not: change what a restore brings back.

mod filler;
mod spaces;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{ScopedJoinHandle, scope};

use image::{Extent, PageIndex, SpaceId};
use model::{AddressRange, ByteCount, PAGE_BYTES, Pid, Tid};
use resource::memory::AreaRecord;
use rustix::pipe::{PipeFlags, pipe_with};
use store::ImageReader;
use sys::features::{self, Feature};
use sys::{Errno, Error, userfaultfd};
use tracee::{FdHolder, PostRestoreTracer};

use super::built::Built;
use super::plan::{Plan, PlannedProcess};
use crate::error::{EngineError, Result};
use filler::Filler;
use spaces::LiveSpace;

/// Areas with less to fill come before the start: to watch them takes longer.
const AREA_BYTES_MIN: ByteCount = ByteCount(256 << 10);
/// Trees with less to fill do too: to fill them takes less than to hold the tree.
const TREE_BYTES_MIN: ByteCount = ByteCount(8 << 20);
/// Flags that do not keep an area from being filled later. All others do: locked memory is there by definition,
/// stacks grow, what forks leave out or wipe is not told of.
const FLAGS: [&str; 7] = ["nr", "nh", "hg", "dd", "rr", "sr", "mw"];
/// Messages to the fd holder hold one descriptor each; so many bytes of them do for some thousand.
const FD_HOLDER_QUEUE_BYTES: i32 = 8 << 20;
const SOCK_STREAM: i32 = 1;

/// Memory that is filled later, and the processes that fill it, or kill the tree if they cannot.
pub(super) struct Lazy {
    areas: Vec<(Pid, SpaceId, Vec<AddressRange>)>,
    fd_holder: FdHolder,
    keep: OwnedFd,
}

impl Lazy {
    /// Chooses what comes later; `None` if that is too little, `LazyMissing` if the kernel cannot. Nothing is touched
    /// before this has returned.
    pub(super) fn prepare(plan: &Plan, index: &PageIndex) -> Result<Option<Self>> {
        let areas = choose(plan, index);
        if areas.is_empty() {
            return Ok(None);
        }
        probe().map_err(EngineError::LazyMissing)?;
        let (keep, kept) = sys::socket::pair(SOCK_STREAM)?;
        // Without it there is room for some hundred.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&keep, FD_HOLDER_QUEUE_BYTES as usize);
        let numbers = plan.living().flat_map(|process| process.threads.iter().map(|thread| thread.tid));
        let taken: HashSet<Tid> = numbers.chain(plan.pids().into_iter().map(Pid::leader)).collect();
        let fd_holder = FdHolder::spawn(&taken)?;
        // From now on the fd holder alone can be sent to.
        drop(kept);
        Ok(Some(Self { areas, fd_holder, keep }))
    }

    /// Whether all of an extent comes later.
    pub(super) fn has(&self, extent: &Extent) -> bool {
        let of_space = self.areas.iter().filter(|(_, space, _)| *space == extent.space);
        let mut ranges = of_space.flat_map(|(_, _, ranges)| ranges);
        let all = extent.range();
        ranges.any(|range| range.start <= all.start && all.end <= range.end)
    }

    /// Watches what comes later, in processes under construction.
    fn watch(&self, built: &mut Built, filler: &Filler<'_>) -> Result<()> {
        for (pid, image, ranges) in &self.areas {
            let descriptor = built.get(*pid)?.userfaultfd(0)?;
            userfaultfd::begin_for_missing(descriptor.as_fd())?;
            for range in ranges {
                userfaultfd::register_for_missing(descriptor.as_fd(), *range)?;
            }
            filler.add(LiveSpace::new(descriptor, *image, ranges.clone()))?;
        }
        Ok(())
    }
}

/// Has a tree completed by `finish` while its memory is watched, lets it run, calls `running`, and fills the rest.
pub(super) fn run(
    lazy: Lazy,
    reader: &ImageReader,
    mut built: Built,
    finish: impl FnOnce(Built, &mut PostRestoreTracer) -> Result<()>,
    running: impl FnOnce(),
) -> Result<()> {
    let extents: Vec<Extent> =
        reader.index().extents().iter().filter(|extent| lazy.has(extent)).copied().collect();
    let filler = Filler::new(reader, lazy.keep.try_clone().map_err(failed)?);
    lazy.watch(&mut built, &filler)?;
    let (ending, end) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    scope(|scope| {
        let server = scope.spawn(|| filler.serve(ending.as_fd()));
        let mut post_restore_tracer = PostRestoreTracer::default();
        let outcome = finish(built, &mut post_restore_tracer).and_then(|()| {
            running();
            // One thread, half of those that fill before the start: the program wants processors as well.
            let background = scope.spawn(|| reader.load(&extents, NonZeroUsize::MIN, |run| filler.fill(run)));
            let is_complete = attend(&mut post_restore_tracer, &filler, &server, &background);
            if !matches!(is_complete, Ok(true)) {
                filler.stop();
            }
            let filled = joined(background);
            match is_complete {
                Ok(true) => filled,
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            }
            .map_err(lost)
        });
        if outcome.is_err() || server.is_finished() {
            // While pages still stay away.
            post_restore_tracer.kill();
            drop(end);
            // What stopped the server is told first: the rest follows from it.
            return joined(server).map_err(lost).and(outcome);
        }
        drop(end);
        joined(server)?;
        filler.end();
        drop(lazy.fd_holder);
        Ok(post_restore_tracer.release(&|| ())?)
    })
}

/// Serves a tree that runs until all its memory is there, or the tree has ended: then the result is false.
fn attend(
    post_restore_tracer: &mut PostRestoreTracer,
    filler: &Filler<'_>,
    server: &ScopedJoinHandle<'_, Result<()>>,
    background: &ScopedJoinHandle<'_, Result<()>>,
) -> Result<bool> {
    while !background.is_finished() {
        // It ends by itself only where it has failed.
        if post_restore_tracer.is_empty() || server.is_finished() {
            return Ok(false);
        }
        post_restore_tracer.round(&|| filler.catch_up())?;
    }
    Ok(true)
}

fn lost(error: EngineError) -> EngineError {
    EngineError::LazyLost(Box::new(error))
}

fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    let panicked = || EngineError::Kernel(Error::new("fill memory: a thread failed", Errno::ECHILD));
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

fn failed(errno: impl Into<Errno>) -> Error {
    Error::new("make a descriptor", errno)
}

/// What is needed of the kernel, tried on ourselves.
fn probe() -> std::result::Result<(), Error> {
    if !features::enabled(Feature::UserfaultfdMissing) {
        return Err(Error::new("use userfaultfd-missing, which is forced off", Errno::ENOSYS));
    }
    let descriptor = userfaultfd::create(0)?;
    userfaultfd::begin_for_missing(descriptor.as_fd())
}

/// Large stretches of private anonymous memory that an image fills to a large part; none where all of them are little.
pub(super) fn choose(plan: &Plan, index: &PageIndex) -> Vec<(Pid, SpaceId, Vec<AddressRange>)> {
    let mut chosen = Vec::new();
    let mut total = 0;
    for process in plan.living() {
        let space = SpaceId(process.message.space);
        let mut ranges: Vec<AddressRange> = Vec::new();
        for area in process.areas.iter().filter(|area| may_wait(process, area)) {
            let bytes = stored_bytes(index.of_space(space), area.range());
            if bytes < AREA_BYTES_MIN.get() {
                continue;
            }
            total += bytes;
            ranges.push(area.range());
        }
        if !ranges.is_empty() {
            chosen.push((process.pid, space, ranges));
        }
    }
    if total < TREE_BYTES_MIN.get() { Vec::new() } else { chosen }
}

/// Whether an area can be filled while the program runs.
fn may_wait(process: &PlannedProcess, area: &AreaRecord) -> bool {
    let has_guards = process.guards.iter().any(|guard| guard.overlaps(area.range()));
    let plain = area.flags.iter().all(|flag| FLAGS.contains(&flag.as_str()));
    area.object == 0 && !area.shared && plain && !has_guards
}

/// Bytes that an image holds for a range.
fn stored_bytes(extents: &[Extent], range: AddressRange) -> u64 {
    let first = extents.partition_point(|extent| extent.range().end <= range.start);
    let inside = extents[first..].iter().take_while(|extent| extent.start < range.end);
    let stored = inside.filter(|extent| extent.stored().is_some()).map(Extent::range);
    let parts = stored.map(|extent| (extent.start.max(range.start), extent.end.min(range.end)));
    debug_assert!(range.len().get().is_multiple_of(PAGE_BYTES), "the plan checks the alignment");
    parts.map(|(start, end)| (end - start).get()).sum()
}
