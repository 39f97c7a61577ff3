//! The facts about a checkpoint, apart from its pages and records.
//!
//! Owns: `CommitMeta` and its form in a commit record, `WriteTimings`.
//! Does not: write.

use std::time::{Duration, SystemTime};

use image::{Commit, ImageKind, SealedFile, SegmentFile, Timings};
use model::{ByteCount, PageCount, Pid, Sequence};

/// What the caller knows of an image and the commit record repeats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitMeta {
    /// The number of this checkpoint of its subject.
    pub sequence: Sequence,
    /// When the subject was stopped.
    pub time: SystemTime,
    /// The name of the subject.
    pub subject: String,
    /// The processes inside, the root of the tree first.
    pub pids: Vec<Pid>,
    /// The release of the running kernel.
    pub kernel_release: String,
    /// The version of this tool.
    pub tool_version: String,
    /// How long the checkpoint took.
    pub timings: Timings,
}

impl CommitMeta {
    /// What a commit record repeats.
    pub(crate) fn of(commit: Commit) -> Self {
        let Commit { sequence, time, subject, pids, kernel_release, tool_version, timings, .. } = commit;
        Self { sequence, time, subject, pids, kernel_release, tool_version, timings }
    }

    /// The commit record.
    pub(crate) fn record(
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

/// How long the steps of writing took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteTimings {
    /// Finding zero pages and computing checksums, on the worker.
    pub hash: Duration,
    /// Compressing, on all threads that do.
    pub compress: Duration,
    /// Submitting and waiting for the device, on the worker.
    pub write: Duration,
    /// From the call of `finish` to the image being visible and durable.
    pub commit: Duration,
}
