//! The metadata of a checkpoint: everything except pages and records.
//!
//! Owns: `CommitMeta` and the commit record that contains it; `WriteTimings`.
//! Does not: write files.

use std::time::{Duration, SystemTime};

use image::{Commit, ImageKind, SealedFile, SegmentFile, Timings};
use model::{ByteCount, PageCount, Pid, Sequence};

/// The metadata of an image that the caller supplies and the commit record contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitMeta {
    /// The sequence number of this checkpoint.
    pub sequence: Sequence,
    /// The time at which the subject was stopped.
    pub time: SystemTime,
    /// The name of the subject.
    pub subject: String,
    /// The pids of the subject's processes, the root of the process tree first.
    pub pids: Vec<Pid>,
    /// The release of the running kernel.
    pub kernel_release: String,
    /// The version of `undying`.
    pub tool_version: String,
    /// How long the steps of the checkpoint took.
    pub timings: Timings,
}

impl CommitMeta {
    /// Returns the metadata that a commit record contains.
    pub(crate) fn of(commit: Commit) -> Self {
        let Commit { sequence, time, subject, pids, kernel_release, tool_version, timings, .. } = commit;
        Self { sequence, time, subject, pids, kernel_release, tool_version, timings }
    }

    /// Returns the commit record with this metadata.
    #[must_use]
    pub fn record(
        self,
        kind: ImageKind,
        pages: PageCount,
        bytes: ByteCount,
        records: SealedFile,
        index: SealedFile,
        segments: Vec<SegmentFile>,
    ) -> Commit {
        let Self { sequence, time, subject, pids, kernel_release, tool_version, timings } = self;
        Commit {
            sequence,
            time,
            subject,
            kind,
            pids,
            kernel_release,
            tool_version,
            timings,
            pages,
            bytes,
            records,
            index,
            segments,
        }
    }
}

/// The duration of each step of writing a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteTimings {
    /// The time for finding zero pages and computing checksums, in the writer thread.
    pub hash: Duration,
    /// The time for compression, summed over all compressing threads.
    pub compress: Duration,
    /// The time for submitting writes and waiting for the device, in the writer thread.
    pub write: Duration,
    /// The time from the call of `finish` until the image is visible and durable.
    pub commit: Duration,
}
