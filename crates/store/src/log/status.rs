//! What a log's writer tells of itself.
//!
//! Owns: `LogStatus`.
//! Does not: measure; the writer's thread fills it in after each commit.

use model::{ByteCount, PageCount, Sequence};

/// The state of a log after its newest commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogStatus {
    /// Checkpoints that can be restored, rising.
    pub kept: Vec<Sequence>,
    /// Pages of the newest one, zero pages included.
    pub pages: PageCount,
    /// Of these, pages that are stored.
    pub stored: PageCount,
    /// Segments that something refers to, the one being written included.
    pub segments: usize,
    /// Of these, segments that are compressed.
    pub compressed: usize,
    /// Bytes that they take on the device.
    pub disk: ByteCount,
    /// Bytes written since the writer was opened.
    pub written: ByteCount,
    /// Pages moved since then, to keep the log short.
    pub moved: PageCount,
    /// Syncs since then.
    pub syncs: u64,
    /// Full indexes written since then.
    pub full_indexes: u64,
}
