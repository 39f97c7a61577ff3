//! The complaints about one component.
//!
//! Owns: which of them count, and what they add up to.
//! Invariants: a complainant counts once in a window, so that there is at most one entry for each.
//! Does not: know whether a complainant may complain, or what follows.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::event::Complainant;

/// The complaints that count, one for each complainant.
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
    /// Counts a complaint, and gives the sum. A complainant that has one in the window counts with the heavier one.
    pub(super) fn add(&mut self, now: Instant, by: Complainant, weight: NonZeroU32, within: Duration) -> u32 {
        self.counted.retain(|counted| is_recent(counted, now, within));
        match self.counted.iter_mut().find(|counted| counted.by == by) {
            Some(counted) if counted.weight > weight => {}
            Some(counted) => (counted.weight, counted.at) = (weight, now),
            None => self.counted.push(Counted { by, weight, at: now }),
        }
        self.sum(now, within)
    }

    /// The sum of the weights in the window that ends now.
    pub(super) fn sum(&self, now: Instant, within: Duration) -> u32 {
        let recent = self.counted.iter().filter(|counted| is_recent(counted, now, within));
        recent.fold(0, |sum, counted| sum.saturating_add(counted.weight.get()))
    }

    /// The count begins anew.
    pub(super) fn clear(&mut self) {
        self.counted.clear();
    }
}

fn is_recent(counted: &Counted, now: Instant, within: Duration) -> bool {
    now.saturating_duration_since(counted.at) <= within
}
