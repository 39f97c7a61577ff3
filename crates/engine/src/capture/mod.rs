//! Takes a checkpoint, from the first scan of the subject to the committed image.
//!
//! Owns: the order of the steps before, inside and after the pause, and the timings.
//! Invariants: the subject is not stopped for a capture if preflight finds a lasting obstacle. The subject is resumed
//! if a step fails. With `kill`, the subject is killed only after the records passed the checks of a restore, and after
//! the image is committed.
//! Does not: depend on resource kinds; this module calls their registries.

mod address_space;
mod before;
mod continuous;
mod copier;
mod descriptors;
mod mapping_flags;
mod objects;
mod options;
mod pages;
mod phases;
mod pipeline;
mod present;
mod process;
mod processes;
mod reserve;
mod retry;
mod shared_pages;
mod threads;
mod watched;

use std::time::{Duration, SystemTime};

use image::{Commit, RecordSet, Timings};
use model::PageCount;
use store::{OpenCheckpoint, PageBatch, PageSink};
use sys::clock::Stopwatch;
use tracee::{Freezer, Roots, Urgent};
use track::TrackerKind;

pub(crate) use crate::capture::address_space::AddressSpace;
pub use crate::capture::before::preflight;
use crate::capture::before::{Before, inspect_running, inspect_stopped};
pub use crate::capture::continuous::{
    Comparison, Continuous, Difference, MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Slices, Taken,
    Tracking, Tuning,
};
pub use crate::capture::options::CheckpointOptions;
use crate::capture::pages::WholeMemory;
pub(crate) use crate::capture::pages::without;
pub use crate::capture::phases::{Phase, Phases};
pub use crate::capture::pipeline::Held;
use crate::capture::pipeline::{Capture, Captured, Stopped};
pub(crate) use crate::capture::present::{Present, present};
use crate::capture::reserve::Reserve;
use crate::capture::retry::{CAPTURES, Retries};
use crate::error::{EngineError, Result};

/// The result of one checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointReport {
    /// The commit record.
    pub commit: Commit,
    /// The time from the first scan of the subject until the image is durable.
    pub total: Duration,
}

/// A completed capture: all data is in this process or in the sink. No part of the checkpoint is visible yet.
struct Completed {
    before: Before,
    /// The stopped subject, if it must be killed after the commit.
    held: Option<Held>,
    time: SystemTime,
    timings: Timings,
}

/// Takes one checkpoint of the roots and all their descendants. With `kill`, `check` makes the checks of a restore on the
/// records and the time of the capture, before the image is committed and the tree is killed.
pub(crate) fn checkpoint(
    roots: &Roots,
    sink: Box<dyn OpenCheckpoint>,
    options: &CheckpointOptions,
    check: fn(RecordSet, SystemTime) -> Result<()>,
) -> Result<CheckpointReport> {
    let started = Stopwatch::start();
    let scanned = inspect_running(roots, options)?;
    let kind = scanned.as_ref().and_then(worth_tracking);
    let outcome = match (kind, scanned) {
        (Some(kind), Some(scanned)) => take_tracked(roots, kind, scanned, &*sink, options),
        (_, scanned) => take_whole(roots, scanned, &*sink, options),
    };
    let Completed { mut before, held, time, timings } = outcome?;
    let completed = before.processes.complete_mappings(&mut before.objects).and_then(|()| before.records());
    let records = completed.inspect_err(|_| before.descriptors.release())?;
    if options.kill {
        check(records.clone(), time)
            .inspect_err(|_| before.descriptors.release())
            .map_err(|error| EngineError::NotRestorable(Box::new(error)))?;
    } else {
        // The subject continues to run. An open duplicate would keep the subject's close(2) from releasing
        // the open file description.
        before.descriptors.forget();
    }
    let committed = sink
        .commit(records, before.meta(time, timings))
        .and_then(|ticket| ticket.wait())
        .inspect_err(|_| before.descriptors.release())?;
    if let Some(held) = held {
        held.kill()?;
    }
    Ok(CheckpointReport { commit: committed.commit, total: started.elapsed() })
}

/// The minimum size of a subject for pre-copy (copying pages while the subject runs). Copying this number of
/// pages takes about as long as attaching a tracker, which finds written pages.
const TRACKED_MIN: PageCount = PageCount(512);

/// The number of pages by which a small subject may grow between the scan and the pause, in addition to a
/// quarter of its size. Each new page costs the subject time, so that more new pages are rare. More new pages
/// only make the pause longer.
const SLACK: PageCount = PageCount(16);

/// Chooses a tracker. Returns `None` if the subject is too small, if a descriptor has O_DIRECT, or if no
/// tracker supports pre-copy on this kernel.
fn worth_tracking(scanned: &Before) -> Option<&'static dyn TrackerKind> {
    if scanned.processes.own_pages() < TRACKED_MIN || scanned.descriptors.bypass_cache() {
        return None;
    }
    let kind = track::choose(track::AUTO).ok()?.kind;
    kind.properties().rearms_running.then_some(kind)
}

/// Captures the subject with pre-copy: most pages are copied while the subject runs. Calls `take_whole` if
/// the subject cannot be tracked.
fn take_tracked(
    roots: &Roots,
    kind: &'static dyn TrackerKind,
    mut before: Before,
    sink: &dyn PageSink,
    options: &CheckpointOptions,
) -> Result<Completed> {
    // A single checkpoint has no limit for the pause.
    let tuning = Tuning { max_pause: None, ..Tuning::default() };
    let mut subject = Continuous::new(roots, kind).tuned(tuning);
    let Some(stopped) = subject.stop_once(&mut before, sink)? else {
        drop((subject, before));
        return take_whole(roots, inspect_running(roots, options)?, sink, options);
    };
    let continuous::StoppedCapture { captured, arming, reserve } = stopped;
    let time = captured.0.time;
    let (mut timings, held) = resume_or_hold(captured, options)?;
    timings.pause += arming;
    reserve.end().inspect_err(|_| before.descriptors.release())?;
    if !options.kill {
        // The subject, and with it the trackers, may have ended in the meantime. An error is therefore
        // ignored.
        timings.pause += subject.untrack().unwrap_or_default();
    }
    drop(subject);
    Ok(Completed { before, held, time, timings })
}

/// Captures the subject without pre-copy: all pages are copied inside the pause. Most failures occur before
/// the first page is copied. Such an attempt leaves no data in the image, so the attempt can be repeated.
fn take_whole(
    roots: &Roots,
    mut scanned: Option<Before>,
    sink: &dyn PageSink,
    options: &CheckpointOptions,
) -> Result<Completed> {
    let mut retries = Retries::of(CAPTURES, roots);
    let passing = Reserve::passing(sink);
    loop {
        let mut memory = WholeMemory::new(&passing, first_buffer(scanned.as_ref(), sink)?);
        match capture_whole(roots, scanned, &mut memory, options) {
            Ok((captured, mut before)) => {
                let time = captured.0.time;
                let (timings, held) = resume_or_hold(captured, options)?;
                memory.append_last().inspect_err(|_| before.descriptors.release())?;
                return Ok(Completed { before, held, time, timings });
            }
            Err(error) if memory.is_empty => std::thread::sleep(retries.after(error).again()?),
            Err(error) => return Err(error),
        }
        scanned = inspect_running(roots, options)?;
    }
}

/// Returns the first buffer. Its memory is resident before the pause, so that the pause need not allocate it.
fn first_buffer(scanned: Option<&Before>, sink: &dyn PageSink) -> Result<PageBatch> {
    Ok(match scanned {
        Some(scanned) if scanned.objects.saved().next().is_none() => {
            let own = scanned.processes.own_pages();
            sink.pool().buffer_for(PageCount(own.get() + own.get() / 4) + SLACK)?
        }
        _ => sink.pool().buffer()?,
    })
}

fn capture_whole(
    roots: &Roots,
    scanned: Option<Before>,
    memory: &mut WholeMemory<'_>,
    options: &CheckpointOptions,
) -> Result<(Captured, Before)> {
    let stopped = Stopped::stop(&mut Freezer::default(), roots, Urgent::begin(), Phases::new())?;
    let mut before = scanned.map_or_else(|| inspect_stopped(roots, options), Ok)?;
    let capture = stopped.capture(&mut before, memory);
    match capture.inspect_err(|_| before.descriptors.release())? {
        Capture::Whole(captured) => Ok((captured, before)),
        Capture::Part(_, never) => match never {},
    }
}

/// Resumes the captured subject. With `kill`, keeps the subject stopped and returns it.
fn resume_or_hold(captured: Captured, options: &CheckpointOptions) -> Result<(Timings, Option<Held>)> {
    if options.kill {
        return Ok((captured.0.phases.timings(), Some(captured.hold(None))));
    }
    Ok((captured.0.resume()?.timings(), None))
}
