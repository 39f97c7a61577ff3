//! A checkpoint, from the first scan to the committed image.
//!
//! Owns: the order *before – inside – after* the pause, and the timings.
//! Invariants: the subject is stopped only if preflight has found no obstacle. It is resumed when a step fails. With
//! `kill`, it is killed only after the image is committed.
//! Does not: know kinds; it calls the registries.

mod address_space;
mod area_flags;
mod before;
mod continuous;
mod copier;
mod descriptors;
mod group;
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
mod threads;
mod watched;

use std::time::{Duration, SystemTime};

use image::{Commit, Timings};
use model::{PageCount, Pid};
use store::{OpenCheckpoint, PageBatch, PageSink};
use sys::clock::Stopwatch;
use tracee::{Freezer, Urgent};
use track::TrackerKind;

pub use crate::capture::before::preflight;
use crate::capture::before::{Before, look_while_it_runs, look_while_it_stands};
pub use crate::capture::continuous::{
    Comparison, Continuous, Difference, MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Preference, Slices, Taken,
    Tracking, Tuning,
};
pub use crate::capture::group::GroupMember;
pub use crate::capture::options::CheckpointOptions;
use crate::capture::pages::WholeMemory;
pub(crate) use crate::capture::pages::without;
pub use crate::capture::phases::{Phase, Phases};
pub use crate::capture::pipeline::Held;
use crate::capture::pipeline::{Capture, Captured, Stopped};
pub(crate) use crate::capture::present::{Present, present};
use crate::capture::retry::{CAPTURES, Retries};
use crate::error::Result;

/// What a checkpoint did.
#[derive(Clone, Debug)]
pub struct CheckpointReport {
    /// The commit record.
    pub commit: Commit,
    /// From the first look at the subject to the durable image.
    pub total: Duration,
}

/// A checkpoint that has left its subject: all of it is here or with the sink, and nothing is visible yet.
struct Left {
    before: Before,
    /// The subject, if it is to be killed once the image is committed.
    held: Option<Held>,
    time: SystemTime,
    timings: Timings,
}

/// Takes one checkpoint of a process and all its descendants.
pub fn checkpoint(
    root: Pid,
    sink: Box<dyn OpenCheckpoint>,
    options: &CheckpointOptions,
) -> Result<CheckpointReport> {
    let started = Stopwatch::start();
    let looked = look_while_it_runs(root, options)?;
    let kind = looked.as_ref().and_then(worth_tracking);
    let left = match (kind, looked) {
        (Some(kind), Some(looked)) => take_tracked(root, kind, looked, &*sink, options),
        (_, looked) => take_whole(root, looked, &*sink, options),
    };
    let Left { mut before, held, time, timings } = left?;
    let completed = before.processes.complete_areas(&mut before.objects).and_then(|()| before.records());
    let records = completed.inspect_err(|_| before.descriptors.release())?;
    if !options.kill {
        // The subject runs on: what it closes from now on has to be closed.
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

/// Pages of a subject from which on pre-copy pays: copying so many takes about as long as attaching a tracker.
const TRACKED_MIN: PageCount = PageCount(512);

/// Pages that a small subject may come to have between the look at it and the pause, beside a quarter of what it had.
/// Each takes time to have, and more than these only a longer pause.
const SLACK: PageCount = PageCount(16);

/// A tracker, if the subject is large enough for one and it would not forbid pre-copy.
fn worth_tracking(looked: &Before) -> Option<&'static dyn TrackerKind> {
    if looked.processes.own_pages() < TRACKED_MIN || looked.descriptors.bypass_cache() {
        return None;
    }
    let kind = track::choose(track::AUTO).ok()?.kind;
    kind.properties().rearms_running.then_some(kind)
}

/// Most of the pages are copied while the subject runs.
fn take_tracked(
    root: Pid,
    kind: &'static dyn TrackerKind,
    mut before: Before,
    sink: &dyn PageSink,
    options: &CheckpointOptions,
) -> Result<Left> {
    // A single checkpoint has no pause budget.
    let tuning = Tuning { max_pause: None, ..Tuning::default() };
    let mut subject = Continuous::new(root, kind).tuned(tuning);
    let Some(stood) = subject.stop_once(&mut before, sink)? else {
        drop((subject, before));
        return take_whole(root, look_while_it_runs(root, options)?, sink, options);
    };
    let continuous::Stood { captured, arming, reserve } = stood;
    let time = captured.0.time;
    let (mut timings, held) = leave(captured, options)?;
    timings.pause += arming;
    reserve.end().inspect_err(|_| before.descriptors.release())?;
    if !options.kill {
        // It may have ended by now, and the trackers with it.
        timings.pause += subject.untrack().unwrap_or_default();
    }
    drop(subject);
    Ok(Left { before, held, time, timings })
}

/// All pages are copied inside the pause. Most failures come before the first page is copied; such an attempt leaves
/// nothing in the image, and can be repeated.
fn take_whole(
    root: Pid,
    mut looked: Option<Before>,
    sink: &dyn PageSink,
    options: &CheckpointOptions,
) -> Result<Left> {
    let mut retries = Retries::of(CAPTURES, root);
    loop {
        let mut memory = WholeMemory::new(sink, first_buffer(looked.as_ref(), sink)?);
        match capture_whole(root, looked, &mut memory, options) {
            Ok((captured, mut before)) => {
                let time = captured.0.time;
                let (timings, held) = leave(captured, options)?;
                memory.hand_on().inspect_err(|_| before.descriptors.release())?;
                return Ok(Left { before, held, time, timings });
            }
            Err(error) if memory.is_empty => std::thread::sleep(retries.after(error).again()?),
            Err(error) => return Err(error),
        }
        looked = look_while_it_runs(root, options)?;
    }
}

/// The first buffer is made, and touched, before the pause.
fn first_buffer(looked: Option<&Before>, sink: &dyn PageSink) -> Result<PageBatch> {
    Ok(match looked {
        Some(looked) if looked.objects.saved().next().is_none() => {
            let own = looked.processes.own_pages();
            sink.buffer_for(PageCount(own.get() + own.get() / 4) + SLACK)?
        }
        _ => sink.buffer()?,
    })
}

fn capture_whole(
    root: Pid,
    looked: Option<Before>,
    memory: &mut WholeMemory<'_>,
    options: &CheckpointOptions,
) -> Result<(Captured, Before)> {
    let stopped = Stopped::stop(&mut Freezer::default(), root, Urgent::begin(), Phases::new())?;
    let mut before = looked.map_or_else(|| look_while_it_stands(root, options), Ok)?;
    let capture = stopped.capture(&mut before, memory);
    match capture.inspect_err(|_| before.descriptors.release())? {
        Capture::Whole(captured) => Ok((captured, before)),
        Capture::Part(_, never) => match never {},
    }
}

/// Resumes a subject, or holds the one that is to be killed.
fn leave(captured: Captured, options: &CheckpointOptions) -> Result<(Timings, Option<Held>)> {
    if options.kill {
        return Ok((captured.0.phases.timings(), Some(captured.hold(None))));
    }
    Ok((captured.0.resume()?.timings(), None))
}
