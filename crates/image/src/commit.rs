//! Encodes and decodes the *commit record*: the properties of an image, and the list of its files.
//!
//! The record file of an image contains kernel state. The page index contains the location of every page, and the
//! segment files contain the pages.
//!
//! Owns: `Commit` and its file.
//! Invariants: the commit record is written last and names all other files of the image. The commit record contains the
//! length and the checksum of the record file and of the page index. It also contains the length of each segment. The
//! index contains the checksums of the pages.
//! Does not: know in which directory the files are, or format a time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::{ByteCount, PageCount, Pid, Sequence};
use prost::Message;

use crate::checksum::Checksum;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES};
use crate::page_index::SegmentId;

/// Whether every page of an image was written for this image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageKind {
    /// Every page was written for this checkpoint.
    Full,
    /// Unchanged pages are in segments of earlier checkpoints.
    Delta,
}

/// The durations of the steps of a checkpoint, stored in whole microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// The duration for which the subject's threads were stopped.
    pub pause: Duration,
    /// The duration of stopping all threads.
    pub stop: Duration,
    /// The duration of the scan for dirty pages in the pause.
    pub scan: Duration,
    /// The duration of copying the residual.
    pub copy: Duration,
}

/// A file whose length and checksum are in the commit record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedFile {
    /// The file name in the image's directory.
    pub name: String,
    /// The length in bytes.
    pub length: ByteCount,
    /// The checksum of all bytes of the file.
    pub checksum: Checksum,
}

/// A segment: a file with pages of the image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    /// The number of the segment in the page index.
    pub id: SegmentId,
    /// The file name in the image's directory.
    pub name: String,
    /// The length of the file in bytes.
    pub length: ByteCount,
    /// The compression of the segment; `None` when the pages are stored uncompressed.
    pub packing: Option<Packing>,
}

impl SegmentFile {
    /// Returns the number of bytes of the segment file and of its chunk table.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        self.length + self.packing.as_ref().map_or(ByteCount(0), |packing| packing.chunks.length)
    }
}

/// The compression of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// The name of the codec.
    pub codec: String,
    /// The file with the chunk table of the segment ([`ChunkTable`](crate::ChunkTable)).
    pub chunks: SealedFile,
}

/// The commit record of one image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The sequence number of the checkpoint, among all checkpoints of the subject.
    pub sequence: Sequence,
    /// The time when the subject was stopped, in nanosecond resolution.
    pub time: SystemTime,
    /// The name of the subject.
    pub subject: String,
    /// Whether the image is full or a delta.
    pub kind: ImageKind,
    /// The pids of the processes in the image, the root of the tree first.
    pub pids: Vec<Pid>,
    /// The release of the kernel on which the checkpoint was taken.
    pub kernel_release: String,
    /// The version of `undying` that took the checkpoint.
    pub tool_version: String,
    /// The durations of the steps of the checkpoint.
    pub timings: Timings,
    /// The number of pages in the index, including pages of zeros.
    pub pages: PageCount,
    /// The number of bytes of all files except the commit record.
    pub bytes: ByteCount,
    /// The record file: the saved kernel state.
    pub records: SealedFile,
    /// The page index: the location of every page.
    pub index: SealedFile,
    /// The page segments; empty for an image without stored pages.
    pub segments: Vec<SegmentFile>,
}

impl Commit {
    /// Encodes the commit record as the content of its file.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge` for a time before 1970 or after 2554, and for 2³² segments or more.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let since = self.time.duration_since(UNIX_EPOCH).map_err(|_| too_large("the time"))?;
        let message = CommitMessage {
            sequence: self.sequence.0,
            time_unix_ns: u64::try_from(since.as_nanos()).map_err(|_| too_large("the time"))?,
            subject: self.subject.clone(),
            kind: match self.kind {
                ImageKind::Full => KIND_FULL,
                ImageKind::Delta => KIND_DELTA,
            },
            pids: self.pids.iter().map(|pid| pid.0).collect(),
            kernel_release: self.kernel_release.clone(),
            tool_version: self.tool_version.clone(),
            pause_us: microseconds(self.timings.pause),
            stop_us: microseconds(self.timings.stop),
            scan_us: microseconds(self.timings.scan),
            copy_us: microseconds(self.timings.copy),
            pages: self.pages.0,
            bytes: self.bytes.0,
            records: Some(FileMessage::from(&self.records)),
            index: Some(FileMessage::from(&self.index)),
            segments: self.segments.iter().map(SegmentMessage::from).collect(),
        };
        let items = u32::try_from(self.segments.len()).map_err(|_| too_large("the number of segments"))?;
        let is_compressed = self.segments.iter().any(|segment| segment.packing.is_some());
        let version = frame::version(is_compressed);
        Ok(frame::seal_as(version, Part::Commit, items, frame::begin_with(&message)))
    }

    /// Verifies the content of a commit record's file, then decodes the commit record.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check, with the offset.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let body = frame::open(Part::Commit, file)?;
        let message = CommitMessage::decode(body.bytes).map_err(|_| malformed("not protobuf"))?;
        if message.segments.len() as u64 != u64::from(body.items) {
            return Err(malformed("another number of segments than the header counts"));
        }
        message.try_into().map_err(malformed)
    }
}

const KIND_FULL: u32 = 1;
const KIND_DELTA: u32 = 2;

/// `message Commit` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct CommitMessage {
    #[prost(uint64, tag = "1")]
    sequence: u64,
    #[prost(fixed64, tag = "2")]
    time_unix_ns: u64,
    #[prost(string, tag = "3")]
    subject: String,
    #[prost(uint32, tag = "4")]
    kind: u32,
    #[prost(int32, repeated, tag = "5")]
    pids: Vec<i32>,
    #[prost(string, tag = "6")]
    kernel_release: String,
    #[prost(string, tag = "7")]
    tool_version: String,
    #[prost(uint64, tag = "8")]
    pause_us: u64,
    #[prost(uint64, tag = "9")]
    stop_us: u64,
    #[prost(uint64, tag = "10")]
    scan_us: u64,
    #[prost(uint64, tag = "11")]
    copy_us: u64,
    #[prost(uint64, tag = "12")]
    pages: u64,
    #[prost(uint64, tag = "13")]
    bytes: u64,
    #[prost(message, optional, tag = "14")]
    records: Option<FileMessage>,
    #[prost(message, optional, tag = "15")]
    index: Option<FileMessage>,
    #[prost(message, repeated, tag = "16")]
    segments: Vec<SegmentMessage>,
}

/// `message File` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct FileMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    length: u64,
    #[prost(fixed32, tag = "3")]
    crc32c: u32,
}

/// `message Segment` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct SegmentMessage {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    length: u64,
    #[prost(string, tag = "4")]
    codec: String,
    #[prost(message, optional, tag = "5")]
    chunks: Option<FileMessage>,
}

impl From<&SealedFile> for FileMessage {
    fn from(file: &SealedFile) -> Self {
        Self { name: file.name.clone(), length: file.length.0, crc32c: file.checksum.0 }
    }
}

impl From<&SegmentFile> for SegmentMessage {
    fn from(segment: &SegmentFile) -> Self {
        let packing = segment.packing.as_ref();
        Self {
            id: segment.id.0,
            name: segment.name.clone(),
            length: segment.length.0,
            codec: packing.map(|packing| packing.codec.clone()).unwrap_or_default(),
            chunks: packing.map(|packing| FileMessage::from(&packing.chunks)),
        }
    }
}

impl TryFrom<CommitMessage> for Commit {
    type Error = &'static str;

    fn try_from(message: CommitMessage) -> std::result::Result<Self, Self::Error> {
        let segment = |from: SegmentMessage| {
            let packing = match (from.codec, from.chunks) {
                (codec, None) if codec.is_empty() => None,
                (codec, chunks) if !codec.is_empty() => Some(Packing { codec, chunks: sealed(chunks)? }),
                _ => return Err("a segment with chunks and no codec"),
            };
            let (id, length) = (SegmentId(from.id), ByteCount(from.length));
            Ok(SegmentFile { id, name: file_name(from.name)?, length, packing })
        };
        Ok(Self {
            sequence: Sequence(message.sequence),
            time: UNIX_EPOCH + Duration::from_nanos(message.time_unix_ns),
            subject: message.subject,
            kind: match message.kind {
                KIND_FULL => ImageKind::Full,
                KIND_DELTA => ImageKind::Delta,
                _ => return Err("neither full nor delta"),
            },
            pids: message.pids.into_iter().map(Pid).collect(),
            kernel_release: message.kernel_release,
            tool_version: message.tool_version,
            timings: Timings {
                pause: Duration::from_micros(message.pause_us),
                stop: Duration::from_micros(message.stop_us),
                scan: Duration::from_micros(message.scan_us),
                copy: Duration::from_micros(message.copy_us),
            },
            pages: PageCount(message.pages),
            bytes: ByteCount(message.bytes),
            records: sealed(message.records)?,
            index: sealed(message.index)?,
            segments: message.segments.into_iter().map(segment).collect::<std::result::Result<_, _>>()?,
        })
    }
}

fn sealed(file: Option<FileMessage>) -> std::result::Result<SealedFile, &'static str> {
    let file = file.ok_or("a file that every image has is missing")?;
    let (length, checksum) = (ByteCount(file.length), Checksum(file.crc32c));
    Ok(SealedFile { name: file_name(file.name)?, length, checksum })
}

/// Returns the name if the name cannot refer to a file outside the image's directory.
fn file_name(name: String) -> std::result::Result<String, &'static str> {
    let outside = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
    if outside { Err("a file name that leads out of the image") } else { Ok(name) }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn too_large(what: &'static str) -> Error {
    Error::TooLarge { part: Part::Commit, what }
}

fn malformed(what: &'static str) -> Error {
    Error::Malformed { part: Part::Commit, offset: ByteCount(HEADER_BYTES as u64), what }
}
