//! Reads what guardians have written, once in an interval.
//!
//! Owns: the series and the last events of all subjects.
//! Does not: ask a guardian, or draw.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use guardian::{Clock, History, RunEvent, StoreLocation};

use super::rows::Subject;
use super::series::{AllSeries, LENGTH};
use crate::failure::Failure;

/// Events of a subject that are kept.
const EVENTS_MAX: usize = 100;

/// What was read so far.
pub(super) struct Sampler {
    location: StoreLocation,
    name: Option<String>,
    history: History,
    clock: Clock,
    has_read: bool,
    pub(super) series: AllSeries,
    events: BTreeMap<String, VecDeque<(String, String)>>,
}

/// The subjects at one time, and those that could not be read.
pub(super) struct Sample {
    pub(super) subjects: Vec<Subject>,
    pub(super) failed: Vec<(String, guardian::GuardianError)>,
}

impl Sampler {
    /// Of one subject, or of all in the store.
    pub(super) fn new(location: StoreLocation, name: Option<&str>) -> Result<Self, Failure> {
        let history = History::open(&location, name)?;
        let clock = Clock::default();
        let series = AllSeries::new(clock.now());
        let name = name.map(str::to_owned);
        Ok(Self { location, name, history, clock, has_read: false, series, events: BTreeMap::new() })
    }

    /// Reads what is new.
    pub(super) fn sample(&mut self) -> Result<Sample, Failure> {
        let now = self.clock.now();
        let is_first = !std::mem::replace(&mut self.has_read, true);
        for event in self.history.read()? {
            // Events of before the first sample are as old as they say.
            let at = if is_first { before(&event.time, now) } else { Some(now) };
            match (event.what, at) {
                (RunEvent::Checkpoint(checkpoint), Some(at)) => self.series.add(&event.name, at, checkpoint),
                (RunEvent::Checkpoint(_), None) => {}
                (what, _) => {
                    let events = self.events.entry(event.name).or_default();
                    events.push_back((event.time, what.to_string()));
                    if events.len() > EVENTS_MAX {
                        events.pop_front();
                    }
                }
            }
        }
        self.series.advance(now);
        let found = guardian::status(&self.location, self.name.as_deref())?;
        Ok(Sample { subjects: Subject::all(found.rows, &self.series, now), failed: found.failed })
    }

    /// The last events of a subject, apart from its checkpoints: time and text.
    pub(super) fn events(&self, name: &str) -> Vec<(String, String)> {
        self.events.get(name).into_iter().flatten().cloned().collect()
    }
}

/// When an event happened, on the clock of this process; `None` if that is too long ago to be shown.
fn before(time: &str, now: Instant) -> Option<Instant> {
    let age = guardian::age(time)?;
    if age.as_secs() < LENGTH as u64 { now.checked_sub(age) } else { None }
}
