//! The byte format of an image: records, the page index and the commit record.
//!
//! An image is the on-disk form of one checkpoint. A *log* contains the checkpoints of a continuously protected
//! program, and consists of segment files. A *segment* is a file with the content of pages. A *space* ([`SpaceId`]) is
//! an address space or a shared memory object. A *zero page* contains only zeros, and its content is not stored. An
//! *extent* is a sequence of consecutive pages of one space with one checksum; a *run* is such a sequence in a log. A
//! *slot* is a block of a log that names a commit, which makes one checkpoint valid.
//!
//! Owns: the on-disk format (`docs/format.md`), its checksums, its versions and its bounds checks.
//! Invariants: a decoder verifies magic, checksum and version before it decodes anything. No input makes a decoder
//! panic. A decoder allocates at most a small multiple of the input's length.
//! Does not: read a process, open a file, or know which kinds of records exist.
#![forbid(unsafe_code)]

mod checksum;
mod chunk_table;
mod commit;
mod error;
mod frame;
mod log_block;
mod log_part;
mod log_place;
mod log_root;
mod page_index;
mod record;
mod record_set;

pub use checksum::{Checksum, PageChecksum};
pub use chunk_table::{CHUNK_BYTES, ChunkTable, StoredChunk};
pub use commit::{Commit, ImageKind, Packing, SealedFile, SegmentFile, Timings};
pub use error::{Error, Part, Result};
pub use frame::FORMAT_VERSION;
pub use log_block::{LogHeader, LogId, LogSlot};
pub use log_part::{LogPart, LogPartEncoder, LogRun, RecordKey};
pub use log_place::{Blob, BlobPiece, LOG_BLOCK_BYTES, LogPlace, LogSegment};
pub use log_root::{LogFeature, LogKept, LogPartRef, LogRoot};
pub use page_index::{EXTENT_PAGES_MAX, Extent, PageIndex, SegmentId, Source, SpaceId};
pub use record::{Owner, Record};
pub use record_set::RecordSet;
