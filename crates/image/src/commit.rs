//! The commit record: what an image is, and every file it consists of.
//!
//! Owns: `Commit` and its file.
//! Invariants: it is the last file of an image to be written and names all others; the record file and the
//! index with length and checksum, the segments with their length (their extents carry the checksums).
//! Does not: know where the files lie, or format a time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::{ByteCount, PageCount, Pid, Sequence};
use prost::Message;

use crate::checksum::Checksum;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES};
use crate::page_index::SegmentId;

/// Whether an image brought its own copy of every page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ImageKind {
    /// Every page was written for this checkpoint.
    Full,
    /// Pages that had not changed come from segments of earlier checkpoints.
    Delta,
}

/// How long the steps of a checkpoint took. Kept in whole microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// How long the subject's threads stood still.
    pub pause: Duration,
    /// Stopping all threads.
    pub stop: Duration,
    /// Scanning for dirty pages inside the pause.
    pub scan: Duration,
    /// Copying the residual inside the pause.
    pub copy: Duration,
}

/// A file that the commit record seals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealedFile {
    /// Its name in the image's directory.
    pub name: String,
    /// Its length.
    pub length: ByteCount,
    /// Over all of its bytes.
    pub checksum: Checksum,
}

/// A page segment that the index refers to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    /// Its number in the index.
    pub id: SegmentId,
    /// Its name in the image's directory.
    pub name: String,
    /// Its length.
    pub length: ByteCount,
    /// How its pages are stored, when not as they are.
    pub packing: Option<Packing>,
}

impl SegmentFile {
    /// Bytes of its files.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        self.length + self.packing.as_ref().map_or(ByteCount(0), |packing| packing.chunks.length)
    }
}

/// How a segment is compressed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// The codec's name.
    pub codec: String,
    /// The table of its chunks.
    pub chunks: SealedFile,
}

/// The commit record of one image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The number of this checkpoint of its subject.
    pub sequence: Sequence,
    /// When the subject was stopped, to the nanosecond.
    pub time: SystemTime,
    /// The name of the subject.
    pub subject: String,
    /// Full or delta.
    pub kind: ImageKind,
    /// The processes inside, the root of the tree first.
    pub pids: Vec<Pid>,
    /// The release of the kernel that the checkpoint was taken on.
    pub kernel_release: String,
    /// The version of undying that took it.
    pub tool_version: String,
    /// How long it took.
    pub timings: Timings,
    /// Pages in the index, zero pages included.
    pub pages: PageCount,
    /// Bytes of all files but the commit record.
    pub bytes: ByteCount,
    /// The record file.
    pub records: SealedFile,
    /// The page index.
    pub index: SealedFile,
    /// The page segments, none for an image without stored pages.
    pub segments: Vec<SegmentFile>,
}

impl Commit {
    /// The commit record's file.
    ///
    /// # Errors
    ///
    /// `TooLarge` for a time before 1970 or after 2554, or 2³² segments.
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
        let mut file = frame::begin(message.encoded_len());
        file.extend_from_slice(&message.encode_to_vec());
        let items = u32::try_from(self.segments.len()).map_err(|_| too_large("the number of segments"))?;
        let compressed = self.segments.iter().any(|segment| segment.packing.is_some());
        Ok(if compressed {
            frame::seal_as(frame::FORMAT_COMPRESSED, Part::Commit, items, file)
        } else {
            frame::seal(Part::Commit, items, file)
        })
    }

    /// Verifies a commit record's file, then decodes it.
    ///
    /// # Errors
    ///
    /// Which check failed first, and where.
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

/// A name that cannot lead out of the image's directory.
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
