//! Lazy restore (post-copy): the program runs before all of its memory is filled.
//!
//! Owns: the choice of the memory that is filled later; the order of the steps: registration with userfaultfd(2),
//! start of the program, filling, release.
//! Invariants: the program never reads a missing page as zeros. A thread that accesses a missing page waits until
//! the page is filled. The tree is killed if a page cannot be filled, or if this program dies
//! (`tracee::post_restore_tracer`). When all memory is filled, the tree runs without userfaultfd and without a
//! tracer.
//! Does not: change the result of a restore.

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

/// Areas (mappings) with fewer stored bytes are filled before the program starts, because registration takes
/// longer than filling.
const MAPPING_BYTES_MIN: ByteCount = ByteCount(256 << 10);
/// Trees with fewer stored bytes are filled before the program starts, because filling takes less time than
/// tracing the tree.
const TREE_BYTES_MIN: ByteCount = ByteCount(8 << 20);
/// An area can be filled later if all its flags in `/proc/PID/smaps` are in this list. Examples of missing flags:
/// locked memory must be present from the start, and stacks grow. userfaultfd(2) does not report areas that
/// fork(2) omits or wipes.
const FLAGS: [&str; 7] = ["nr", "nh", "hg", "dd", "rr", "sr", "mw"];
/// The size of the send buffer for messages to the fd holder, in bytes. Each message carries one descriptor; the
/// buffer has space for some thousand messages.
const FD_HOLDER_QUEUE_BYTES: i32 = 8 << 20;
const SOCK_STREAM: i32 = 1;

/// Memory that is filled later, and the fd holder. The fd holder is a process. If this program dies, the fd holder
/// keeps the userfaultfds open until the tree is killed.
pub(super) struct Lazy {
    areas: Vec<(Pid, SpaceId, Vec<AddressRange>)>,
    fd_holder: FdHolder,
    keep: OwnedFd,
}

impl Lazy {
    /// Chooses the memory that is filled later. Returns `None` if the chosen memory is too small. Fails with
    /// `LazyMissing` if the kernel lacks a feature. Must be called before the first change.
    pub(super) fn prepare(plan: &Plan, index: &PageIndex) -> Result<Option<Self>> {
        let areas = choose(plan, index);
        if areas.is_empty() {
            return Ok(None);
        }
        probe().map_err(EngineError::LazyMissing)?;
        let (keep, kept) = sys::socket::pair(SOCK_STREAM)?;
        // An error is ignored: the default buffer has space for some hundred messages.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&keep, FD_HOLDER_QUEUE_BYTES as usize);
        let numbers = plan.living().flat_map(|process| process.threads.iter().map(|thread| thread.tid));
        let taken: HashSet<Tid> = numbers.chain(plan.pids().into_iter().map(Pid::leader)).collect();
        let fd_holder = FdHolder::spawn(&taken)?;
        // After this line, only the fd holder has the receiving end.
        drop(kept);
        Ok(Some(Self { areas, fd_holder, keep }))
    }

    /// Reports whether a whole extent is filled later.
    pub(super) fn has(&self, extent: &Extent) -> bool {
        let of_space = self.areas.iter().filter(|(_, space, _)| *space == extent.space);
        let mut ranges = of_space.flat_map(|(_, _, ranges)| ranges);
        let all = extent.range();
        ranges.any(|range| range.start <= all.start && all.end <= range.end)
    }

    /// Registers the memory that is filled later, in processes under construction.
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

/// Registers the memory that is filled later. Calls `finish`, which completes and resumes the tree. Then calls
/// `running`, and fills the registered memory.
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
            // One computing thread: half of the threads that fill memory before the start. The running program
            // needs processors, too.
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
            // Kills the tree while threads still wait for missing pages, so that no thread reads a missing page as
            // zeros.
            post_restore_tracer.kill();
            drop(end);
            // If the server has failed, its error is returned, because the error in `outcome` is only a
            // consequence.
            return joined(server).map_err(lost).and(outcome);
        }
        drop(end);
        joined(server)?;
        filler.end();
        drop(lazy.fd_holder);
        Ok(post_restore_tracer.release(&|| ())?)
    })
}

/// Traces a running tree until all of its memory is filled. Returns false if the tree or the server ends before
/// that.
fn attend(
    post_restore_tracer: &mut PostRestoreTracer,
    filler: &Filler<'_>,
    server: &ScopedJoinHandle<'_, Result<()>>,
    background: &ScopedJoinHandle<'_, Result<()>>,
) -> Result<bool> {
    while !background.is_finished() {
        // The server ends by itself only after an error.
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

/// Checks in this process that the kernel has the required features.
fn probe() -> std::result::Result<(), Error> {
    if !features::enabled(Feature::UserfaultfdMissing) {
        return Err(Error::new("use userfaultfd-missing, which is forced off", Errno::ENOSYS));
    }
    let descriptor = userfaultfd::create(0)?;
    userfaultfd::begin_for_missing(descriptor.as_fd())
}

/// Chooses the private anonymous areas (mappings) for which an image stores many bytes. Each row contains the pid,
/// the page space and the chosen areas of a process. Returns no row if the total number of bytes is small.
pub(super) fn choose(plan: &Plan, index: &PageIndex) -> Vec<(Pid, SpaceId, Vec<AddressRange>)> {
    let mut chosen = Vec::new();
    let mut total = 0;
    for process in plan.living() {
        let space = SpaceId(process.message.space);
        let areas = process.areas.iter().filter(|area| may_wait(process, area));
        let (ranges, bytes) = large(areas.map(AreaRecord::range), index.of_space(space));
        total += bytes;
        if !ranges.is_empty() {
            chosen.push((process.pid, space, ranges));
        }
    }
    if total < TREE_BYTES_MIN.get() { Vec::new() } else { chosen }
}

/// Chooses some private anonymous areas of one process, for which `extents` store many bytes.
pub(super) fn choose_among(
    areas: impl Iterator<Item = AddressRange>,
    extents: &[Extent],
) -> Vec<AddressRange> {
    let (ranges, bytes) = large(areas, extents);
    if bytes < TREE_BYTES_MIN.get() { Vec::new() } else { ranges }
}

/// Returns the ranges for which `extents` store many bytes, and the number of these bytes.
fn large(ranges: impl Iterator<Item = AddressRange>, extents: &[Extent]) -> (Vec<AddressRange>, u64) {
    let sizes = ranges.map(|range| (range, stored_bytes(extents, range)));
    let large: Vec<_> = sizes.filter(|(_, bytes)| *bytes >= MAPPING_BYTES_MIN.get()).collect();
    (large.iter().map(|(range, _)| *range).collect(), large.iter().map(|(_, bytes)| bytes).sum())
}

/// Reports whether an area can be filled while the program runs.
pub(super) fn may_wait(process: &PlannedProcess, area: &AreaRecord) -> bool {
    area.object == 0 && !area.shared && is_plain(process, area)
}

/// Reports whether an area has only flags that affect neither its pages nor fork(2), and no guard region.
pub(super) fn is_plain(process: &PlannedProcess, area: &AreaRecord) -> bool {
    let has_guards = process.guards.iter().any(|guard| guard.overlaps(area.range()));
    area.flags.iter().all(|flag| FLAGS.contains(&flag.as_str())) && !has_guards
}

fn stored_bytes(extents: &[Extent], range: AddressRange) -> u64 {
    let first = extents.partition_point(|extent| extent.range().end <= range.start);
    let inside = extents[first..].iter().take_while(|extent| extent.start < range.end);
    let stored = inside.filter(|extent| extent.stored().is_some()).map(Extent::range);
    let parts = stored.map(|extent| (extent.start.max(range.start), extent.end.min(range.end)));
    debug_assert!(range.len().get().is_multiple_of(PAGE_BYTES), "the plan checks the alignment");
    parts.map(|(start, end)| (end - start).get()).sum()
}
