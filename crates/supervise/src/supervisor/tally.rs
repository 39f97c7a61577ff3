//! The complaints about one component.
//!
//! Owns: which complaints count, and the sum of their weights.
//! Invariants: each complainant counts at most once in a window, and has at most one entry.
//! Does not: know which component may complain, or which sum restarts a component.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::event::Complainant;

/// The complaints that count: one entry for each complainant.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counted: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    by: Complainant,
    weight: NonZeroU32,
    at: Instant,
}

impl Tally {
    /// Adds a complaint, and returns the sum of the weights. If the complainant already has an entry in the window, the
    /// heavier complaint counts.
    pub(super) fn add(&mut self, now: Instant, by: Complainant, weight: NonZeroU32, within: Duration) -> u32 {
        self.counted.retain(|counted| is_recent(counted, now, within));
        match self.counted.iter_mut().find(|counted| counted.by == by) {
            Some(counted) if counted.weight > weight => {}
            Some(counted) => (counted.weight, counted.at) = (weight, now),
            None => self.counted.push(Counted { by, weight, at: now }),
        }
        self.sum(now, within)
    }

    /// Returns the sum of the weights in the window that ends at `now`.
    pub(super) fn sum(&self, now: Instant, within: Duration) -> u32 {
        let recent = self.counted.iter().filter(|counted| is_recent(counted, now, within));
        recent.fold(0, |sum, counted| sum.saturating_add(counted.weight.get()))
    }

    /// Removes all complaints.
    pub(super) fn clear(&mut self) {
        self.counted.clear();
    }
}

fn is_recent(counted: &Counted, now: Instant, within: Duration) -> bool {
    now.saturating_duration_since(counted.at) <= within
}
