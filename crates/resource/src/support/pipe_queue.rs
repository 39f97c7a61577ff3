//! Saves and restores the unread content of a pipe of the subject.
//!
//! A write in packet mode (O_DIRECT) stores a packet in the pipe. A write without packet mode stores bytes of a
//! stream. A read returns at most one packet. The kernel does not report whether a pipe contains packets or bytes of
//! a stream. This module finds out by trial reads of a copy.
//!
//! Owns: copying the content without consuming the content (tee(2)), distinguishing packets from bytes, and writing
//! the content into a restored pipe.
//! Invariants: the copy is a pipe of this process. Inside the pause, while the subject is stopped, one tee(2) call
//! fills the copy. The copy shares the buffers of the subject's pipe. Reads and writes of the subject after the pause
//! do not change the copy. The copy is read after the pause.
//! Does not: restore the descriptors, the capacity or the name of a pipe.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno as E;
use rustix::pipe::{PipeFlags, SpliceFlags};
use sys::{Errno, Error, Result};

/// The length that is passed to tee(2), in bytes. No pipe contains more bytes.
const TEE_BYTES: usize = 1 << 30;

/// A piece of the content: bytes of a stream, or one packet.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Chunk {
    #[prost(bytes = "vec", tag = "1")]
    pub bytes: Vec<u8>,
    /// `true` for a packet.
    #[prost(bool, tag = "2")]
    pub packet: bool,
}

/// The reason why the content of a pipe could not be read.
#[derive(Debug)]
pub(crate) enum QueueError {
    /// A kernel call failed.
    Kernel(Error),
    /// The pipe contains bytes of a stream that are followed by a packet. A read can return both together, so the
    /// boundary between bytes and packet is unknown.
    Mixed,
}

impl From<Error> for QueueError {
    fn from(error: Error) -> Self {
        Self::Kernel(error)
    }
}

/// The copy of the content in a pipe of this process, and a second pipe of this process: the *probe*. The probe is
/// filled from the copy before each trial read, so that a trial read does not consume the copy.
#[derive(Debug)]
pub(crate) struct QueueCopy {
    copy: Pipe,
    probe: Pipe,
}

#[derive(Debug)]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    fn new(capacity: usize) -> Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|errno| failed("create a pipe", errno))?;
        let pipe = Self { reader, writer };
        pipe.grow(capacity)?;
        Ok(pipe)
    }

    fn grow(&self, capacity: usize) -> Result<()> {
        if self::capacity(&self.writer)? < capacity {
            set_capacity(&self.writer, capacity)?;
        }
        Ok(())
    }

    /// Discards the content. Reads repeatedly, because one read returns at most one packet.
    fn empty(&self) -> Result<()> {
        loop {
            match waiting(&self.reader)? {
                0 => return Ok(()),
                left => drop(take(&self.reader, left)?),
            }
        }
    }
}

impl QueueCopy {
    /// Creates both pipes with a capacity in bytes. Called before the pause.
    pub(crate) fn new(capacity: usize) -> Result<Self> {
        Ok(Self { copy: Pipe::new(capacity)?, probe: Pipe::new(capacity)? })
    }

    /// Copies the unread content of the subject's pipe. `reader` is its readable end. Called inside the pause.
    pub(crate) fn copy(&mut self, reader: BorrowedFd<'_>) -> Result<()> {
        self.copy.empty()?;
        self.copy.grow(capacity(reader)?)?;
        let wanted = waiting(reader)?;
        let copied = tee(reader, self.copy.writer.as_fd())?;
        if copied == wanted { Ok(()) } else { Err(failed("copy all of a pipe", Errno::SHORT)) }
    }

    /// Returns the content. Called after the pause. `packets` is `true` if the writable end is in packet mode at the
    /// checkpoint. This argument is used only if trial reads cannot show whether a single byte is a packet.
    pub(crate) fn take(&mut self, packets: bool) -> std::result::Result<Vec<Chunk>, QueueError> {
        let capacity = capacity(&self.copy.reader)?;
        self.probe.grow(capacity)?;
        // The probe needs one byte more than the copy, for the mark (see `mark_end`). If a limit of the system
        // prevents this growth, the probe of a full pipe has no mark.
        let _ = self.probe.grow(capacity + 1);
        let mut chunks = Vec::new();
        loop {
            let left = waiting(&self.copy.reader)?;
            if left == 0 {
                return Ok(chunks);
            }
            let packet = self.begins_with_packet(left, packets)?;
            let has_packets_after_bytes = !packet && self.has_packet(left)?;
            let bytes = take(&self.copy.reader, left)?;
            if has_packets_after_bytes || (!packet && bytes.len() < left) {
                return Err(QueueError::Mixed);
            }
            chunks.push(Chunk { bytes, packet });
        }
    }

    /// Reports whether the content begins with a packet. `left` is the length of the content in bytes. Returns
    /// `guess` if trial reads cannot decide.
    fn begins_with_packet(&self, left: usize, guess: bool) -> Result<bool> {
        // If the content begins with a packet of several bytes, a read of one byte discards the rest of this packet.
        // If only the byte itself is missing after the read, the byte is part of a stream, or is a packet of one
        // byte.
        self.refill_probe()?;
        take(&self.probe.reader, 1)?;
        if waiting(&self.probe.reader)? + 1 < left {
            return Ok(true);
        }
        self.refill_probe()?;
        if !self.mark_end()? && left == 1 {
            return Ok(guess);
        }
        // The second byte exists, or is the mark. A read of two bytes returns two bytes of a stream. A packet of one
        // byte ends the read after one byte.
        Ok(take(&self.probe.reader, 2)?.len() == 1)
    }

    /// Reports whether content that begins with bytes of a stream also contains a packet. `left` is the length of the
    /// content in bytes.
    fn has_packet(&self, left: usize) -> Result<bool> {
        self.refill_probe()?;
        if self.mark_end()? {
            // This read includes the mark, unless a packet ends the read before the mark.
            return Ok(take(&self.probe.reader, left + 1)?.len() <= left);
        }
        if left == 1 {
            return Ok(false);
        }
        // Without a mark, all bytes except the last byte are read. If the last byte is part of a longer packet, the
        // kernel discards the last byte. If the last byte alone is a packet, this packet is not detected.
        take(&self.probe.reader, left - 1)?;
        Ok(waiting(&self.probe.reader)? == 0)
    }

    /// Fills the probe with the content.
    fn refill_probe(&self) -> Result<()> {
        self.probe.empty()?;
        tee(self.copy.reader.as_fd(), self.probe.writer.as_fd()).map(drop)
    }

    /// Appends one byte of a stream, the *mark*, to the content of the probe. Returns `false` if the probe is full.
    fn mark_end(&self) -> Result<bool> {
        match rustix::io::write(&self.probe.writer, &[0]) {
            Ok(count) => Ok(count == 1),
            Err(E::AGAIN) => Ok(false),
            Err(errno) => Err(failed("write to a pipe", errno)),
        }
    }
}

/// Writes the content into an empty pipe, and clears the status flags of `writer`.
pub(crate) fn fill(writer: BorrowedFd<'_>, chunks: &[Chunk]) -> Result<()> {
    for chunk in chunks {
        let mode = if chunk.packet { OFlags::NONBLOCK | OFlags::DIRECT } else { OFlags::NONBLOCK };
        set_flags(writer, mode)?;
        match rustix::io::write(writer, &chunk.bytes) {
            Ok(count) if count == chunk.bytes.len() => {}
            Ok(_) => return Err(failed("fill a pipe", Errno::SHORT)),
            Err(errno) => return Err(failed("fill a pipe", errno)),
        }
    }
    set_flags(writer, OFlags::empty())
}

fn set_flags(writer: BorrowedFd<'_>, flags: OFlags) -> Result<()> {
    rustix::fs::fcntl_setfl(writer, flags).map_err(|errno| failed("set the flags of a pipe", errno))
}

/// Returns the number of unread bytes.
pub(crate) fn waiting(file: impl AsFd) -> Result<usize> {
    let count =
        rustix::io::ioctl_fionread(file).map_err(|errno| failed("count the bytes in a pipe", errno))?;
    Ok(count as usize)
}

/// Returns the capacity of a pipe in bytes.
pub(crate) fn capacity(file: impl AsFd) -> Result<usize> {
    rustix::pipe::fcntl_getpipe_size(file).map_err(|errno| failed("get the capacity of a pipe", errno))
}

/// Sets the capacity of a pipe in bytes.
pub(crate) fn set_capacity(file: impl AsFd, bytes: usize) -> Result<()> {
    rustix::pipe::fcntl_setpipe_size(file, bytes)
        .map(drop)
        .map_err(|errno| failed("set the capacity of a pipe", errno))
}

fn tee(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<usize> {
    match rustix::pipe::tee(from, to, TEE_BYTES, SpliceFlags::NONBLOCK) {
        Ok(count) => Ok(count),
        Err(E::AGAIN) => Ok(0),
        Err(errno) => Err(failed("copy a pipe", errno)),
    }
}

/// Reads at most `length` bytes with one system call.
fn take(reader: &OwnedFd, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let count = match rustix::io::read(reader, &mut bytes[..]) {
        Ok(count) => count,
        Err(E::AGAIN) => 0,
        Err(errno) => return Err(failed("read a pipe", errno)),
    };
    bytes.truncate(count);
    Ok(bytes)
}

fn failed(operation: &'static str, errno: impl Into<Errno>) -> Error {
    Error::new(operation, errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(flags: PipeFlags) -> (OwnedFd, OwnedFd) {
        rustix::pipe::pipe_with(flags).unwrap()
    }

    fn contents(reader: &OwnedFd, packets: bool) -> std::result::Result<Vec<Chunk>, QueueError> {
        let mut copy = QueueCopy::new(4096)?;
        copy.copy(reader.as_fd())?;
        // A second copy must not contain the first copy.
        copy.copy(reader.as_fd())?;
        copy.take(packets)
    }

    fn chunk(bytes: &[u8], packet: bool) -> Chunk {
        Chunk { bytes: bytes.to_vec(), packet }
    }

    #[test]
    fn a_stream_is_copied_without_being_consumed() {
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"one ").unwrap();
        rustix::io::write(&writer, &[7; 5000]).unwrap();
        let chunks = contents(&reader, false).unwrap();
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0].bytes.len(), 5004);
        assert_eq!(waiting(&reader).unwrap(), 5004);
        let (again, filled) = pipe(PipeFlags::empty());
        fill(filled.as_fd(), &chunks).unwrap();
        assert_eq!(contents(&again, false).unwrap(), chunks);
    }

    #[test]
    fn a_later_write_is_not_in_the_copy() {
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"before").unwrap();
        let mut copy = QueueCopy::new(65536).unwrap();
        copy.copy(reader.as_fd()).unwrap();
        rustix::io::write(&writer, b" and after").unwrap();
        rustix::io::read(&reader, &mut [0; 3]).unwrap();
        assert_eq!(copy.take(false).unwrap(), [chunk(b"before", false)]);
    }

    #[test]
    fn packets_keep_their_boundaries() {
        let (reader, writer) = pipe(PipeFlags::DIRECT);
        for packet in [&b"a"[..], b"bc", b"d", b"efgh", b"i"] {
            rustix::io::write(&writer, packet).unwrap();
        }
        let chunks = contents(&reader, true).unwrap();
        let wanted: Vec<_> = [&b"a"[..], b"bc", b"d", b"efgh", b"i"].map(|bytes| chunk(bytes, true)).to_vec();
        assert_eq!(chunks, wanted);
        let (again, filled) = pipe(PipeFlags::empty());
        fill(filled.as_fd(), &chunks).unwrap();
        assert_eq!(contents(&again, true).unwrap(), wanted);
    }

    #[test]
    fn bytes_before_packets_are_refused_and_bytes_behind_packets_are_read() {
        let (reader, writer) = pipe(PipeFlags::DIRECT);
        rustix::io::write(&writer, b"packet").unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
        rustix::io::write(&writer, b"bytes").unwrap();
        assert_eq!(contents(&reader, false).unwrap(), [chunk(b"packet", true), chunk(b"bytes", false)]);
        rustix::fs::fcntl_setfl(&writer, OFlags::DIRECT).unwrap();
        // The packet has the length of a page, because the kernel merges a shorter packet with the preceding bytes.
        rustix::io::write(&writer, &[1; 4096]).unwrap();
        assert!(matches!(contents(&reader, true), Err(QueueError::Mixed)));
    }

    #[test]
    fn a_packet_of_one_byte_is_recognised_at_each_place() {
        let (reader, writer) = pipe(PipeFlags::DIRECT);
        rustix::io::write(&writer, b"x").unwrap();
        for packets in [false, true] {
            assert_eq!(contents(&reader, packets).unwrap(), [chunk(b"x", true)]);
        }
        let (reader, writer) = pipe(PipeFlags::empty());
        rustix::io::write(&writer, b"x").unwrap();
        for packets in [false, true] {
            assert_eq!(contents(&reader, packets).unwrap(), [chunk(b"x", false)]);
        }
        // The bytes fill a page, because the kernel would append the packet to a page that is not full.
        rustix::io::read(&reader, &mut [0]).unwrap();
        rustix::io::write(&writer, &[1; 4096]).unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::DIRECT).unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        assert!(matches!(contents(&reader, true), Err(QueueError::Mixed)));
    }

    #[test]
    fn a_full_pipe_and_an_enlarged_pipe_are_copied_whole() {
        let (reader, writer) = pipe(PipeFlags::NONBLOCK);
        set_capacity(&writer, 1 << 20).unwrap();
        while rustix::io::write(&writer, &[3; 1000]).is_ok() {}
        let before = waiting(&reader).unwrap();
        let chunks = contents(&reader, false).unwrap();
        assert_eq!(chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>(), before);
        let (_again, filled) = pipe(PipeFlags::empty());
        set_capacity(&filled, 1 << 20).unwrap();
        fill(filled.as_fd(), &chunks).unwrap();
        assert!(fill(filled.as_fd(), &chunks).is_err(), "it does not fit twice");
    }
}
