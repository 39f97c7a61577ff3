//! How long each phase of a checkpoint took, as an event has it.
//!
//! Owns: the keys, one for each phase of the engine's table.
//! Invariants: a key that is missing, as in an event of an earlier version, counts as zero.
//! Does not: know any phase by name.

use std::fmt;

use engine::{Phase, Phases};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time;

/// The key that tells the order.
const MEMORY_FIRST: &str = "memory_first";

/// The phases of a checkpoint: one key for each phase of [`Phase`], with its duration in microseconds.
///
/// The keys also have `memory_first`: memory (scan, copy, objects) was captured before state (descriptors, files,
/// threads), as the tracker `write-protect` needs it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PhaseTimes {
    memory_first: bool,
    us: [u64; Phase::ALL.len()],
}

impl PhaseTimes {
    pub(crate) fn of(phases: &Phases) -> Self {
        let mut times = Self { memory_first: phases.memory_first, ..Self::default() };
        phases.iter().for_each(|(phase, took)| times.us[phase as usize] = time::microseconds(took));
        times
    }

    /// Each phase with its duration in microseconds, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, u64)> {
        Phase::in_order(self.memory_first).map(|phase| (phase, self.us[phase as usize]))
    }

    #[cfg(test)]
    pub(crate) fn with(memory_first: bool, known: &[(Phase, u64)]) -> Self {
        let mut times = Self { memory_first, ..Self::default() };
        known.iter().for_each(|(phase, us)| times.us[*phase as usize] = *us);
        times
    }
}

impl Serialize for PhaseTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Phase::ALL.len() + 1))?;
        map.serialize_entry(MEMORY_FIRST, &self.memory_first)?;
        self.iter().try_for_each(|(phase, us)| map.serialize_entry(phase.key(), &us))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for PhaseTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Times)
    }
}

struct Times;

impl<'de> Visitor<'de> for Times {
    type Value = PhaseTimes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the phases of a checkpoint")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PhaseTimes, A::Error> {
        let mut times = PhaseTimes::default();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(phase) = Phase::ALL.iter().find(|phase| phase.key() == key) {
                times.us[*phase as usize] = map.next_value()?;
            } else if key == MEMORY_FIRST {
                times.memory_first = map.next_value()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckpointEvent;
    use super::*;

    #[test]
    fn phases_are_read_as_they_were_written_beside_other_keys() {
        let phases = PhaseTimes::with(true, &[(Phase::Precopy, 70), (Phase::Scan, 30)]);
        let event = CheckpointEvent { seq: 7, pages: 5, phases, ..CheckpointEvent::default() };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains("\"scan_us\":30") && text.contains("\"memory_first\":true"), "{text}");
        assert_eq!(serde_json::from_str::<CheckpointEvent>(&text).unwrap(), event);
        // As an earlier version wrote it.
        let text = text.replace("\"room_us\":0,", "").replace("\"memory_first\":true,", "");
        let read: CheckpointEvent = serde_json::from_str(&text).unwrap();
        assert_eq!(read.phases, PhaseTimes { memory_first: false, ..event.phases });
    }
}
