//! How a log is written.
//!
//! Owns: the choices of whoever opens one.
//! Does not: write.

use std::num::NonZeroUsize;
use std::time::Duration;

use model::{ByteCount, PageCount};
use sys::clock::Clock;

use super::keep::Keep;
use crate::codec::Codec;

/// Who does the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogThreads {
    /// Two threads of the writer's own: one writes, one makes segments and reads what is moved.
    Own,
    /// The caller, whenever it waits: for tools, and for tests that must go the same way twice.
    Caller,
}

/// How a log is written.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Buffers in circulation; all are made when the log is opened. Those that an epoch reserves for what it copies
    /// while its subject is stopped come on top.
    pub buffers: NonZeroUsize,
    /// Pages that a buffer holds.
    pub buffer_pages: PageCount,
    /// Size of a segment of a new log.
    pub segment: ByteCount,
    /// Which checkpoints stay restorable.
    pub keep: Keep,
    /// Whether segments are compressed, and which.
    pub cold: Option<ColdSegments>,
    /// Who does the work.
    pub threads: LogThreads,
}

/// Segments that are compressed: those that have been full for a while, and have lost little of what lived in them.
#[derive(Clone, Debug)]
pub struct ColdSegments {
    /// How.
    pub codec: &'static dyn Codec,
    /// How long a segment is watched, from when it is full.
    pub after: Duration,
    /// Tells how long that is.
    pub clock: Clock,
}

impl ColdSegments {
    /// By the clock of the kernel.
    #[must_use]
    pub fn new(codec: &'static dyn Codec, after: Duration) -> Self {
        Self { codec, after, clock: Clock::default() }
    }
}

impl Default for LogOptions {
    /// 8 buffers of 2 MiB and segments of 16 MiB: a segment lasts 40 ms at the highest rate asked for, and
    /// cleaning by segments of that size keeps a subject of 64 MiB on twice its size.
    fn default() -> Self {
        const BUFFERS: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");
        Self {
            buffers: BUFFERS,
            buffer_pages: PageCount(512),
            segment: ByteCount(16 << 20),
            keep: Keep::default(),
            cold: None,
            threads: LogThreads::Own,
        }
    }
}
