//! Saved state of a TCP socket.
//!
//! Owns: the payload of a record.
//! Invariants: addresses are stored as the bytes of the kernel's structures.
//! Does not: read or set the state of a socket.

use prost::Message;
use prost::encoding::encode_varint;
use sys::socket::SocketAddress;
use sys::tcp_repair::{Agreement, State as TcpState, Window};

use super::super::inherited_socket::InheritedSocket;
use super::super::pieces::Part;
use super::super::socket_family::Family;
use super::super::socket_options::Options;
use super::super::tcp_progress::Progress;
use super::super::tcp_stream::Direction;

pub(super) const NAME: &str = "fd/tcp";

/// The payload: one TCP socket as it is in the image.
#[derive(Clone, PartialEq, Message)]
pub(super) struct State {
    #[prost(message, required, tag = "1")]
    pub(super) family: Family,
    #[prost(message, required, tag = "2")]
    pub(super) options: Options,
    /// The kernel's number of the TCP state.
    #[prost(uint32, tag = "3")]
    pub(super) state: u32,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) local: Vec<u8>,
    /// The address of the peer; empty without a connection.
    #[prost(bytes = "vec", tag = "5")]
    pub(super) peer: Vec<u8>,
    /// The identity of a socket that the restoring process has inherited; `None` for other sockets.
    #[prost(message, optional, tag = "6")]
    pub(super) inherited: Option<InheritedSocket>,
    #[prost(message, optional, tag = "7")]
    pub(super) listener: Option<Listener>,
    #[prost(message, optional, tag = "8")]
    pub(super) connection: Option<Connection>,
    #[prost(message, optional, tag = "9")]
    pub(super) ended: Option<Ended>,
    /// The progress of an outside connection that continues after the checkpoint; `None` for other sockets.
    #[prost(message, optional, tag = "10")]
    pub(super) progress: Option<Progress>,
}

/// The first byte of an encoded field: the tag of the field, and the wire type of a value with a length.
const CONNECTION_FIELD: u8 = 8 << 3 | 2;
const RECEIVED_FIELD: u8 = 3 << 3 | 2;
const WRITTEN_FIELD: u8 = 4 << 3 | 2;

/// State of a listener.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Listener {
    #[prost(uint32, tag = "1")]
    pub(super) backlog: u32,
    /// Ids of the descriptions of connections that waited to be accepted, in accept order.
    #[prost(uint32, repeated, tag = "2")]
    pub(super) waiting: Vec<u32>,
}

/// State of a connection. Sequence numbers do not count FINs.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Connection {
    /// The sequence number after the last received byte.
    #[prost(fixed32, tag = "1")]
    pub(super) receive_end: u32,
    /// The sequence number after the last written byte.
    #[prost(fixed32, tag = "2")]
    pub(super) send_end: u32,
    /// Bytes that were received but not read.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) received: Vec<u8>,
    /// Bytes that were written but not acknowledged.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) written: Vec<u8>,
    /// Number of bytes at the end of `written` that were never sent.
    #[prost(uint32, tag = "5")]
    pub(super) unsent: u32,
    #[prost(uint32, tag = "6")]
    pub(super) segment_limit: u32,
    #[prost(bool, tag = "7")]
    pub(super) scaling: bool,
    #[prost(uint32, tag = "8")]
    pub(super) send_scale: u32,
    #[prost(uint32, tag = "9")]
    pub(super) receive_scale: u32,
    #[prost(bool, tag = "10")]
    pub(super) selective_acknowledgement: bool,
    #[prost(bool, tag = "11")]
    pub(super) timestamps: bool,
    #[prost(fixed32, tag = "12")]
    pub(super) timestamp: u32,
    #[prost(fixed32, tag = "13")]
    pub(super) window_send_update: u32,
    #[prost(uint32, tag = "14")]
    pub(super) window_send: u32,
    #[prost(uint32, tag = "15")]
    pub(super) window_send_max: u32,
    #[prost(uint32, tag = "16")]
    pub(super) window_receive: u32,
    #[prost(fixed32, tag = "17")]
    pub(super) window_receive_update: u32,
}

/// State of a connection that has ended.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Ended {
    /// Bytes that were received but not read.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) received: Vec<u8>,
    /// Set when an error is pending.
    #[prost(bool, tag = "2")]
    pub(super) failed: bool,
}

impl State {
    /// Returns parts that, behind an encoded state with a connection, set a queue of the connection. A decoder merges
    /// the second occurrence of the field `connection` into the first.
    pub(super) fn with_queue(direction: Direction, queue: Vec<Part>) -> Vec<Part> {
        let length: usize = queue.iter().map(|part| part.bytes().len()).sum();
        if length == 0 {
            return Vec::new();
        }
        let field = match direction {
            Direction::Received => RECEIVED_FIELD,
            Direction::Written => WRITTEN_FIELD,
        };
        let mut inner = vec![field];
        encode_varint(length as u64, &mut inner);
        let mut outer = vec![CONNECTION_FIELD];
        encode_varint((inner.len() + length) as u64, &mut outer);
        outer.extend(inner);
        [vec![Part::Own(outer)], queue].concat()
    }

    pub(super) fn local(&self) -> SocketAddress {
        SocketAddress(self.local.clone())
    }

    pub(super) fn peer(&self) -> SocketAddress {
        SocketAddress(self.peer.clone())
    }

    pub(super) fn tcp_state(&self) -> Option<TcpState> {
        TcpState::from_number(self.state as u8)
    }

    /// Reports whether this end has sent a FIN.
    pub(super) fn has_shut(&self) -> bool {
        matches!(
            self.tcp_state(),
            Some(TcpState::FinWait1 | TcpState::FinWait2 | TcpState::Closing | TcpState::LastAck)
        )
    }

    /// Reports whether the peer has sent a FIN.
    pub(super) fn was_shut(&self) -> bool {
        matches!(self.tcp_state(), Some(TcpState::CloseWait | TcpState::Closing | TcpState::LastAck))
    }
}

impl Connection {
    /// Returns the sequence number after the last sent byte.
    pub(super) fn sent_end(&self) -> u32 {
        self.send_end.wrapping_sub(self.unsent)
    }

    /// Returns how many bytes of `written` count as sent, if the bytes before the sequence number `until` count as sent.
    pub(super) fn sent(&self, until: u32) -> usize {
        let unsent = self.send_end.wrapping_sub(until) as i32;
        self.written.len().saturating_sub((self.unsent as i32).min(unsent.max(0)) as usize)
    }

    pub(super) fn agreement(&self) -> Agreement {
        Agreement {
            segment_limit: self.segment_limit,
            scales: self.scaling.then_some((self.send_scale as u8, self.receive_scale as u8)),
            selective_acknowledgement: self.selective_acknowledgement,
            timestamps: self.timestamps,
        }
    }

    /// Returns the windows. Their sequence numbers are limited to the end of the receive queue without FIN.
    pub(super) fn window(&self) -> Window {
        let limit = |sequence: u32| {
            let beyond = sequence.wrapping_sub(self.receive_end) as i32 > 0;
            if beyond { self.receive_end } else { sequence }
        };
        Window {
            send_update: limit(self.window_send_update),
            send: self.window_send,
            send_max: self.window_send_max.max(self.window_send),
            receive: self.window_receive,
            receive_update: limit(self.window_receive_update),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_behind_an_encoded_state_belong_to_its_connection() {
        let connection = Connection { send_end: 9, unsent: 2, ..Connection::default() };
        let state = State { connection: Some(connection.clone()), ..State::default() };
        let queue = |byte, length| vec![Part::Own(vec![byte; length]), Part::Own(vec![byte + 1])];
        let mut parts = State::with_queue(Direction::Received, queue(1, 300));
        parts.extend(State::with_queue(Direction::Written, queue(3, 1)));
        parts.extend(State::with_queue(Direction::Written, Vec::new()));
        let mut bytes = state.encode_to_vec();
        for part in parts {
            bytes.extend(part.bytes());
        }
        let (received, written) = ([vec![1; 300], vec![2]].concat(), vec![3, 4]);
        let connection = Connection { received, written, ..connection };
        assert_eq!(State::decode(&*bytes).unwrap(), State { connection: Some(connection), ..state });
    }

    #[test]
    fn bytes_before_a_sequence_number_count_as_sent() {
        for send_end in [100, 5_u32] {
            let connection =
                Connection { send_end, written: vec![0; 95], unsent: 16, ..Connection::default() };
            let until = |back: u32| connection.sent(send_end.wrapping_sub(back));
            assert_eq!([until(16), until(10), until(0), until(50)], [79, 85, 95, 79]);
            assert_eq!(connection.sent(connection.sent_end()), 79);
        }
    }
}
