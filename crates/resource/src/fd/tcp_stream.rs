//! The bytes of one direction of a live connection that are in its queue, known from one checkpoint to the next.
//!
//! A queue can contain megabytes that do not change: the peer does not read, or the program does not read. A checkpoint
//! then copies only bytes that are new since the previous checkpoint, and the log writes only these bytes. The bytes
//! are divided into *blocks*. A full block never changes, and is a piece of the payload ([`Part::Piece`]).
//!
//! Owns: the known bytes of a queue, and their division into blocks.
//! Invariants: the known bytes end at the end of the queue of the last update. The bytes of a sequence number never
//! change, as TCP requires.
//! Does not: read a socket; `tcp::connection` does.

use std::collections::VecDeque;

use bytes::Bytes;
use sys::tcp_repair::Info;

use super::pieces::Part;
use crate::error::Result;

/// Size of a block in bytes. Smaller blocks need more records; with larger blocks, more bytes are written again as long
/// as the last block is not full.
const BLOCK_BYTES: usize = 16 * 1024;
/// Number of bits of the number of a block.
const BLOCK_BITS: u32 = 38;

/// The direction of the bytes on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Received,
    Written,
}

/// The known bytes of both queues of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    received: Stream,
    written: Stream,
    /// The last read of the connection.
    pub(super) last: Option<LastRead>,
}

/// What changes whenever a program or a packet changes a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counters {
    pub(super) info: Info,
    /// Bytes in the receive queue.
    pub(super) unread: usize,
    /// Bytes in the send queue. A FIN counts as one byte.
    pub(super) waiting: usize,
    /// Bytes in the send queue that were never sent.
    pub(super) unsent: usize,
}

/// A connection at its last read.
#[derive(Debug)]
pub(super) struct LastRead {
    /// Read before the connection: after a packet during the read, they differ from the present ones.
    pub(super) counters: Counters,
    /// The encoded state of the connection, without the bytes of the queues.
    pub(super) state: Vec<u8>,
    /// The lengths of the receive queue and the send queue.
    pub(super) lengths: [usize; 2],
}

impl Default for Streams {
    fn default() -> Self {
        let (received, written) = (Stream::new(Direction::Received), Stream::new(Direction::Written));
        Self { received, written, last: None }
    }
}

impl Streams {
    /// Forgets the known bytes. Keeps the last read.
    pub(super) fn forget(&mut self) {
        self.received.clear();
        self.written.clear();
    }

    pub(super) fn of(&mut self, direction: Direction) -> &mut Stream {
        match direction {
            Direction::Received => &mut self.received,
            Direction::Written => &mut self.written,
        }
    }
}

/// The known bytes of one queue.
#[derive(Debug)]
pub(super) struct Stream {
    direction: Direction,
    /// The number of the first block.
    first: u64,
    blocks: VecDeque<Bytes>,
    /// The bytes behind the last block. Fewer than [`BLOCK_BYTES`].
    rest: Vec<u8>,
    /// The sequence number behind the last known byte.
    end: u32,
}

impl Stream {
    fn new(direction: Direction) -> Self {
        Self { direction, first: 0, blocks: VecDeque::new(), rest: Vec::new(), end: 0 }
    }

    /// Returns the last `length` bytes as parts of the payload, if all of them are known and end at this sequence number.
    pub(super) fn known(&self, end: u32, length: usize) -> Option<Vec<Part>> {
        (end == self.end && length <= self.length()).then(|| self.parts(length))
    }

    /// Learns a queue of `length` bytes that ends at the sequence number `end`. Calls `read` with the number of bytes
    /// that are not known. `read` returns this number of bytes from the end of the queue, or fewer if the queue contains
    /// fewer bytes now. Returns the parts of the payload that contain the whole queue, and the length of the queue.
    ///
    /// # Errors
    ///
    /// Returns the error of `read`. The known bytes are then unchanged.
    pub(super) fn update(
        &mut self,
        end: u32,
        length: usize,
        read: impl FnOnce(usize) -> Result<Vec<u8>>,
    ) -> Result<(Vec<Part>, usize)> {
        let since = end.wrapping_sub(self.end) as usize;
        let known = length.checked_sub(since).filter(|known| *known <= self.length()).unwrap_or(0);
        let (new, mut length) = (length - known, length);
        if new > 0 {
            let bytes = read(new)?;
            let is_complete = bytes.len() == new;
            if known == 0 || !is_complete {
                self.clear();
            }
            if !is_complete {
                length = bytes.len();
            }
            self.append(&bytes);
        }
        self.end = end;
        self.forget_before(length);
        Ok((self.parts(length), length))
    }

    fn length(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES + self.rest.len()
    }

    fn clear(&mut self) {
        // The number of a block is not used again for other bytes.
        self.first += self.blocks.len() as u64;
        self.blocks.clear();
        self.rest.clear();
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while self.rest.len() + bytes.len() >= BLOCK_BYTES {
            let (now, later) = bytes.split_at(BLOCK_BYTES - self.rest.len());
            self.rest.extend_from_slice(now);
            self.blocks.push_back(std::mem::take(&mut self.rest).into());
            bytes = later;
        }
        self.rest.extend_from_slice(bytes);
    }

    /// Forgets blocks that lie before the last `length` bytes.
    fn forget_before(&mut self, length: usize) {
        while !self.blocks.is_empty() && self.length() - length >= BLOCK_BYTES {
            self.blocks.pop_front();
            self.first += 1;
        }
        if self.blocks.is_empty() {
            self.rest.drain(..self.rest.len() - length);
        }
    }

    /// Returns the last `length` bytes as parts of the payload.
    fn parts(&self, length: usize) -> Vec<Part> {
        let skip = self.length() - length;
        let direction = u64::from(self.direction == Direction::Written) << BLOCK_BITS;
        let piece = |(place, bytes): (usize, &Bytes)| Part::Piece {
            number: direction | ((self.first + place as u64) % (1 << BLOCK_BITS)),
            skip: if place == 0 { skip } else { 0 },
            bytes: bytes.clone(),
        };
        let mut parts: Vec<Part> = self.blocks.iter().enumerate().map(piece).collect();
        if !self.rest.is_empty() {
            parts.push(Part::Own(self.rest.clone()));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue whose byte at sequence number `n` is a function of `n`.
    struct Queue {
        start: u32,
        end: u32,
    }

    fn byte(sequence: u32) -> u8 {
        (sequence.wrapping_mul(0x9e37_79b9) >> 24) as u8
    }

    impl Queue {
        fn length(&self) -> usize {
            self.end.wrapping_sub(self.start) as usize
        }

        fn last(&self, count: usize) -> Vec<u8> {
            (0..count).map(|back| byte(self.end.wrapping_sub((count - back) as u32))).collect()
        }

        /// Updates the stream. Returns how many bytes were read.
        fn update(&self, stream: &mut Stream) -> usize {
            let mut count = 0;
            let read = |new| {
                count = new;
                Ok(self.last(new))
            };
            let (parts, length) = stream.update(self.end, self.length(), read).unwrap();
            assert_eq!(flat(&parts), self.last(length));
            assert_eq!(length, self.length());
            count
        }
    }

    fn flat(parts: &[Part]) -> Vec<u8> {
        parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
    }

    #[test]
    fn only_bytes_that_are_new_are_read() {
        let mut stream = Stream::new(Direction::Written);
        let mut queue = Queue { start: u32::MAX - 50_000, end: u32::MAX - 50_000 };
        assert_eq!(queue.update(&mut stream), 0);
        queue.end = queue.end.wrapping_add(100_000);
        assert_eq!(queue.update(&mut stream), 100_000);
        assert_eq!(queue.update(&mut stream), 0);
        queue.end = queue.end.wrapping_add(5);
        assert_eq!(queue.update(&mut stream), 5);
        queue.start = queue.start.wrapping_add(40_000);
        assert_eq!(queue.update(&mut stream), 0);
        queue.start = queue.end;
        assert_eq!(queue.update(&mut stream), 0);
        assert_eq!(stream.length(), 0);
    }

    #[test]
    fn a_queue_that_becomes_shorter_than_its_new_bytes_is_read_as_it_is() {
        let mut stream = Stream::new(Direction::Written);
        let mut queue = Queue { start: 0, end: 50_000 };
        queue.update(&mut stream);
        queue.end = 60_000;
        let short = queue.last(3_000);
        let (parts, length) = stream.update(queue.end, queue.length(), |_| Ok(short.clone())).unwrap();
        assert_eq!((flat(&parts), length), (short, 3_000));
        queue.start = 57_000;
        assert_eq!(queue.update(&mut stream), 0);
    }

    #[test]
    fn random_queues_keep_their_bytes_and_the_numbers_of_their_blocks() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let mut stream = Stream::new(Direction::Received);
        let mut queue = Queue { start: 7, end: 7 };
        let mut seen: std::collections::HashMap<u64, Vec<u8>> = std::collections::HashMap::new();
        for _ in 0..testkit::rounds(700, 2_000) {
            queue.end = queue.end.wrapping_add(next(60_000) as u32);
            let length = queue.length() as u64;
            queue.start = queue.start.wrapping_add((next(length + 1) * next(3) / 2).min(length) as u32);
            if next(50) == 0 {
                // Bytes that no checkpoint has seen.
                queue.end = queue.end.wrapping_add(1 << 20);
                queue.start = queue.end.wrapping_sub(next(100_000) as u32);
            }
            queue.update(&mut stream);
            for part in stream.parts(queue.length()) {
                let Part::Piece { number, bytes, .. } = part else { continue };
                assert_eq!(*seen.entry(number).or_insert_with(|| bytes.to_vec()), bytes);
            }
            assert!(stream.length() < queue.length() + BLOCK_BYTES);
        }
    }
}
