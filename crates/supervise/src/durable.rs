//! The steps that follow when a checkpoint of a subject (a protected program) has become durable.
//!
//! Owns: the order of these steps, and the choice of the checkpoints that the store and the undo log of files keep.
//! Invariants: output that was sent before a checkpoint is released only if a restart can use the checkpoint.
//! Does not: carry a step out; the guardian does.

use model::Sequence;

use crate::subject::Event;

/// An exact checkpoint is a checkpoint to which files can be rolled back. The store keeps at least this number of exact
/// checkpoints. The second newest is used if the newest leads to repeated deaths.
const HELD: usize = 2;

/// The parts of a guardian that a durable checkpoint concerns.
pub trait DurableParts {
    /// Returns those of the checkpoints to which files can be rolled back; all of them if files are not rolled back.
    fn exact(&self, sequences: &[Sequence]) -> Vec<Sequence>;
    /// Returns the checkpoints in the log, in rising order. `None` while no log is open.
    fn kept(&self) -> Option<Vec<Sequence>>;
    /// Returns the checkpoints in flight, in rising order.
    fn in_flight(&self) -> Vec<Sequence>;
    /// Releases the output before the checkpoint. With `is_used == false`, the output waits for a later checkpoint.
    fn release(&mut self, sequence: Sequence, is_used: bool);
    /// Passes an event to the state machine of the subject.
    fn feed(&mut self, event: Event);
    /// Makes the undo log of files forget all other checkpoints.
    fn retain(&mut self, exact: &[Sequence]);
    /// Makes the log of checkpoints keep these checkpoints.
    fn hold(&mut self, sequences: &[Sequence]);
}

/// Takes the steps that follow when a checkpoint has become durable. Returns whether a restart can use the checkpoint.
pub fn committed(parts: &mut impl DurableParts, sequence: Sequence) -> bool {
    // A restart forgets what any other checkpoint releases or confirms.
    let is_used = parts.exact(&[sequence]) == [sequence];
    parts.release(sequence, is_used);
    let kept = parts.kept();
    let oldest = kept.as_ref().and_then(|kept| kept.first().copied());
    parts.feed(Event::Committed { sequence, oldest });
    // With fewer checkpoints, no data is removed, because a single checkpoint can be unusable.
    if let Some(exact) = kept.map(|kept| parts.exact(&kept)).filter(|exact| exact.len() >= HELD) {
        parts.retain(&exact);
    }
    hold_newest(parts);
    is_used
}

/// Makes the log keep the newest checkpoints that a restart can use. The writer of the log counts checkpoints in flight as
/// the newest. A death drops them, and a restart then uses the newest of the others.
pub fn hold_newest(parts: &mut impl DurableParts) {
    let Some(mut confirmed) = parts.kept() else { return };
    let in_flight = parts.in_flight();
    confirmed.retain(|sequence| !in_flight.contains(sequence));
    let (confirmed, in_flight) = (parts.exact(&confirmed), parts.exact(&in_flight));
    parts.hold(&newest_held(&confirmed, &in_flight));
}

fn newest_held(confirmed: &[Sequence], in_flight: &[Sequence]) -> Vec<Sequence> {
    let newest = &confirmed[confirmed.len().saturating_sub(HELD)..];
    newest.iter().chain(in_flight).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_in_flight_do_not_push_out_confirmed_ones() {
        let sequences = |numbers: &[u64]| numbers.iter().copied().map(Sequence).collect::<Vec<_>>();
        let held = newest_held(&sequences(&[5, 7, 8, 9]), &sequences(&[10, 11, 12, 13]));
        assert_eq!(held, sequences(&[8, 9, 10, 11, 12, 13]));
        assert_eq!(newest_held(&[], &sequences(&[1])), sequences(&[1]));
    }
}
