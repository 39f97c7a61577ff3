//! Decides when the held network output of a subject (a protected program) may leave, and which connections a restore can
//! continue.
//!
//! A point is a checkpoint, with the last packet that was sent before the checkpoint and the connections at the checkpoint.
//!
//! Owns: the points, the assignment of packets to points, and the time after which output leaves without a checkpoint.
//! Invariants: a packet may leave only after a later checkpoint that a restart can use has become durable, or after
//! [`OUTPUT_TIMEOUT`].
//! Does not: know a kernel queue or a socket. The guardian releases packets and changes connections.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use model::Sequence;

/// Maximum time for which output is held while no checkpoint becomes durable. Peers wait longer than this time before
/// they give up.
pub const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between releases of output after `OUTPUT_TIMEOUT` has passed, until a checkpoint is durable.
const LATE_EACH: Duration = Duration::from_millis(100);

/// The checkpoints that decide about the output of one subject. `Packet` identifies a packet, in the order of sending.
/// `Connections` are the connections of the subject at a checkpoint.
#[derive(Debug)]
pub struct OutputPoints<Packet, Connections> {
    /// Checkpoints in rising order. If connections can be rolled back to the newest durable checkpoint, this checkpoint
    /// is the first. Checkpoints that are still being written follow.
    points: VecDeque<Point<Packet, Connections>>,
    /// The last checkpoint for which output was released: all output that was sent before this checkpoint.
    released: Option<Sequence>,
    /// At this time, the output of a living program is released without a checkpoint.
    until: Instant,
    /// Whether output was released without a checkpoint, and no checkpoint has become durable since that release.
    is_late: bool,
    /// The last packet that was released.
    sent: Option<Packet>,
}

#[derive(Debug)]
struct Point<Packet, Connections> {
    sequence: Sequence,
    /// The last packet that was sent before the checkpoint.
    through: Option<Packet>,
    connections: Connections,
}

/// A release of output without a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LateRelease {
    /// Whether this is the first such release after the last release by a checkpoint.
    pub is_first: bool,
    /// Whether any packet was released.
    pub has_sent: bool,
}

/// What a checkpoint permits: a durable checkpoint, or the checkpoint of a restore.
#[derive(Debug)]
pub struct Released<Packet, Connections> {
    /// The last packet that may leave.
    pub through: Option<Packet>,
    /// The connections of the other points, which are removed: the older points of a durable checkpoint, and the newer
    /// points of a restore.
    pub others: Vec<Connections>,
}

impl<Packet: Copy + PartialOrd, Connections> OutputPoints<Packet, Connections> {
    /// Returns a state without points. From now on, output is held.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let until = now + OUTPUT_TIMEOUT;
        Self { points: VecDeque::new(), released: None, until, is_late: false, sent: None }
    }

    /// Records a checkpoint that was taken. Returns the connections if later output was already released: then the
    /// checkpoint releases nothing, and no connection is rolled back to it.
    pub fn taken(
        &mut self,
        sequence: Sequence,
        through: Option<Packet>,
        connections: Connections,
    ) -> Option<Connections> {
        if self.sent.is_some_and(|sent| through.is_none_or(|through| through < sent)) {
            return Some(connections);
        }
        self.points.push_back(Point { sequence, through, connections });
        None
    }

    /// Removes a checkpoint that releases no output. The output before the checkpoint waits for a later checkpoint. Either
    /// the checkpoint could not be written, or no restart uses the checkpoint, because files cannot be rolled back to it.
    pub fn unusable(&mut self, sequence: Sequence) -> Option<Connections> {
        let place = self.points.iter().position(|point| point.sequence == sequence)?;
        self.points.remove(place).map(|point| point.connections)
    }

    /// Records that a checkpoint is durable, and that a restart can use it. Returns `None` for a checkpoint that is not a
    /// point.
    pub fn committed(&mut self, sequence: Sequence, now: Instant) -> Option<Released<Packet, Connections>> {
        let place = self.points.iter().position(|point| point.sequence == sequence)?;
        let others = self.points.drain(..place).map(|point| point.connections).collect();
        let through = self.points.front()?.through;
        self.sent = through.or(self.sent);
        self.released = Some(sequence);
        self.wait_anew(now);
        Some(Released { through, others })
    }

    /// Returns the connections of the first point: after a release by a durable checkpoint, the connections of this
    /// checkpoint.
    #[must_use]
    pub fn first(&self) -> Option<&Connections> {
        self.points.front().map(|point| &point.connections)
    }

    /// Returns the connections that can be rolled back to the newest durable checkpoint.
    #[must_use]
    pub fn durable(&self) -> Option<&Connections> {
        let durable = self.points.iter().find(|point| Some(point.sequence) == self.released);
        durable.map(|point| &point.connections)
    }

    /// Returns the time when output must be released, even if no checkpoint is durable.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.until
    }

    /// Reports whether output was held for too long, so that the caller must release all of it and call
    /// [`Self::released_late`]. After this release, connections cannot be rolled back until the next checkpoint is
    /// durable.
    pub fn is_late(&mut self, now: Instant) -> bool {
        if self.until > now {
            return false;
        }
        self.until = now + LATE_EACH;
        self.points.clear();
        self.released = None;
        true
    }

    /// Records a release without a checkpoint, up to this packet.
    pub fn released_late(&mut self, last: Option<Packet>) -> LateRelease {
        let has_sent = last.is_some() && last != self.sent;
        self.sent = last.or(self.sent);
        LateRelease { is_first: !std::mem::replace(&mut self.is_late, true), has_sent }
    }

    /// Begins the restore of a checkpoint of a dead subject. Returns `None` if connections cannot be rolled back to this
    /// checkpoint; the caller then drops all output, and ends the connections that [`Self::abandon`] returns. Otherwise,
    /// the caller drops the output after `through`.
    pub fn go_back(&mut self, to: Sequence) -> Option<Released<Packet, Connections>> {
        let place = self.points.iter().position(|point| point.sequence == to);
        let is_current = self.released.is_none_or(|released| released <= to);
        let point = place.filter(|_| is_current).and_then(|place| self.points.remove(place))?;
        self.released = Some(to);
        let others = self.points.drain(..).map(|point| point.connections).collect();
        let through = point.through;
        self.points.push_back(Point { through: None, ..point });
        Some(Released { through, others })
    }

    /// Records that the subject runs again. Returns the connections of the checkpoint from which it was restored.
    pub fn is_back(&mut self, now: Instant) -> Option<&mut Connections> {
        self.wait_anew(now);
        self.points.front_mut().map(|point| &mut point.connections)
    }

    /// Removes all points, because no connection can be rolled back. Returns their connections.
    pub fn abandon(&mut self) -> impl Iterator<Item = Connections> + '_ {
        self.released = None;
        self.points.drain(..).map(|point| point.connections)
    }

    fn wait_anew(&mut self, now: Instant) {
        (self.until, self.is_late) = (now + OUTPUT_TIMEOUT, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_before_output_that_was_released_late_is_no_point() {
        let now = Instant::now();
        let mut points = OutputPoints::new(now);
        let late = now + OUTPUT_TIMEOUT;
        assert!(points.taken(Sequence(1), Some(3), "before").is_none());
        // The pause of checkpoint 2 was before packet 4, and its report comes after the release.
        assert!(points.is_late(late));
        assert!(points.released_late(Some(4)).has_sent);
        assert_eq!(points.taken(Sequence(2), Some(3), "between"), Some("between"));
        assert!(points.committed(Sequence(2), late).is_none());
        assert!(points.go_back(Sequence(2)).is_none());
        assert!(points.taken(Sequence(3), Some(4), "after").is_none());
        assert_eq!(points.committed(Sequence(3), late).and_then(|released| released.through), Some(4));
        assert_eq!(points.go_back(Sequence(3)).map(|released| released.others.len()), Some(0));
    }
}
