//! The network output of the simulated program: the packets that are held, and the peer.
//!
//! Owns: the packets and the connection, and what the peer has received.
//! Invariants: the peer receives the packets of a connection in order. If the order is wrong, output was released twice, or
//! output of a forgotten incarnation was released.
//! Does not: decide what is released.

use std::collections::VecDeque;

/// What the program knows about its output. This state belongs to the memory of the program.
#[derive(Clone, Default, Debug)]
pub(crate) struct Sent {
    /// The output, as numbers that are used once.
    pub(crate) all: Vec<u64>,
    connection: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    number: u64,
    output: u64,
    /// The place of the output among all output of the program.
    place: usize,
    connection: u64,
}

/// Output that the peer has received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) output: u64,
    pub(crate) how: Released,
}

/// Why output was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Released {
    /// A durable checkpoint contains the output.
    Committed,
    /// The output was held for too long.
    Late,
    /// No guardian holds the output.
    Unheld,
}

/// The network between the program and its peer.
#[derive(Default, Debug)]
pub(crate) struct Wire {
    pub(crate) received: Vec<Received>,
    /// Why the peer has found an error.
    pub(crate) error: Option<String>,
    held: VecDeque<Packet>,
    last: Option<u64>,
    connection: u64,
    /// The place of the next output that the peer expects.
    expected: usize,
}

impl Wire {
    /// Sends output of the program.
    pub(crate) fn send(&mut self, sent: &mut Sent, is_held: bool) {
        if sent.connection != self.connection {
            // The old connection was reset, and the program connects again.
            sent.connection = self.connection;
            self.expected = sent.all.len();
        }
        let number = self.last.map_or(1, |last| last + 1);
        self.last = Some(number);
        let packet = Packet { number, output: number, place: sent.all.len(), connection: self.connection };
        sent.all.push(number);
        self.held.push_back(packet);
        if !is_held {
            self.release(number, Released::Unheld);
        }
    }

    /// Returns the packet that was sent last.
    pub(crate) fn queued(&self) -> Option<u64> {
        self.last
    }

    /// Delivers held packets, up to and including a packet.
    pub(crate) fn release(&mut self, through: u64, how: Released) {
        while let Some(packet) = self.held.pop_front_if(|packet| packet.number <= through) {
            self.deliver(packet, how);
        }
    }

    fn deliver(&mut self, packet: Packet, how: Released) {
        if packet.connection != self.connection {
            self.error = Some(format!("{packet:?} of a connection that was reset is released"));
        } else if packet.place != self.expected {
            self.error =
                Some(format!("{packet:?} is released, and the peer expects place {}", self.expected));
        }
        self.expected += 1;
        self.received.push(Received { output: packet.output, how });
    }

    pub(crate) fn discard(&mut self) {
        self.held.clear();
    }

    /// Resets the connection.
    pub(crate) fn reset(&mut self) {
        self.discard();
        self.connection += 1;
    }

    /// Reports whether the connection can continue for a program with this memory: the peer has received all its output.
    pub(crate) fn continues(&self, sent: &Sent) -> bool {
        let is_unused = sent.connection != self.connection;
        is_unused || self.expected == sent.all.len()
    }

    /// Begins with a program and a peer that know nothing of each other.
    pub(crate) fn begin(&mut self) {
        self.reset();
        self.received.clear();
    }
}
