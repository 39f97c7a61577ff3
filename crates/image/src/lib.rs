//! What an image is made of, as bytes: records, the page index, the commit record.
//!
//! Owns: the on-disk format (`docs/format.md`), its checksums, its versions, its bounds checks.
//! Invariants: magic, checksum and version are verified before anything is decoded; no input makes a
//! decoder panic or allocate more than a small multiple of the input's own length.
//! Does not: see a process, open a file, or know which kinds of records exist.
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
mod page_map;
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
pub use log_root::{LogKept, LogPartRef, LogRoot};
pub use page_index::{EXTENT_PAGES_MAX, Extent, PageIndex, SegmentId, Source, SpaceId};
pub use page_map::PageMap;
pub use record::{Owner, Record};
pub use record_set::RecordSet;
