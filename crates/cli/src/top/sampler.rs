//! The sampler: reads the files of guardians at each interval.
//!
//! Owns: the series and the last events of all subjects.
//! Does not: contact a guardian, or draw.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use guardian::{Clock, History, RunEvent, StoreLocation};

use super::rows::Subject;
use super::series::{AllSeries, LENGTH};
use crate::failure::Failure;

/// Maximum number of stored events of a subject.
const EVENTS_MAX: usize = 100;

/// The data that was read until now.
pub(super) struct Sampler {
    location: StoreLocation,
    name: Option<String>,
    history: History,
    clock: Clock,
    has_read: bool,
    pub(super) series: AllSeries,
    events: BTreeMap<String, VecDeque<(String, String)>>,
}

/// The subjects at one time, and the subjects that could not be read.
pub(super) struct Sample {
    pub(super) subjects: Vec<Subject>,
    pub(super) failed: Vec<(String, guardian::GuardianError)>,
}

impl Sampler {
    pub(super) fn new(location: StoreLocation, name: Option<&str>) -> Result<Self, Failure> {
        let history = History::open(&location, name)?;
        let clock = Clock::default();
        let series = AllSeries::new(clock.now());
        let name = name.map(str::to_owned);
        Ok(Self { location, name, history, clock, has_read: false, series, events: BTreeMap::new() })
    }

    /// Reads the new events and the current state.
    pub(super) fn sample(&mut self) -> Result<Sample, Failure> {
        let now = self.clock.now();
        let is_first = !std::mem::replace(&mut self.has_read, true);
        for event in self.history.read()? {
            // Events before the first sample are placed by their recorded time.
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

    /// Returns the time and the text of the last events of a subject. Events of checkpoints are left out.
    pub(super) fn events(&self, name: &str) -> Vec<(String, String)> {
        self.events.get(name).into_iter().flatten().cloned().collect()
    }
}

/// Converts the time of an event to the clock of this process. Returns `None` if the event is too old for the view.
fn before(time: &str, now: Instant) -> Option<Instant> {
    let age = guardian::age(time)?;
    if age.as_secs() < LENGTH as u64 { now.checked_sub(age) } else { None }
}
