//! Every limit of the harness, with its reason.
//!
//! Owns: the names and values.
//! Invariants: a limit is far above what a loaded two-core machine needs, so that
//! reaching it means a hang and not a slow machine.

use std::time::Duration;

/// From the start of a victim to its "ready": the slowest one waits about two seconds for its
/// calls with a timeout to go round once.
pub const READY: Duration = Duration::from_secs(60);

/// From SIGTERM to the verdict: a victim waits at most 20 seconds for any single event.
pub const JUDGE: Duration = Duration::from_secs(90);

/// One call of the `undying` binary.
pub const COMMAND: Duration = Duration::from_secs(120);

/// From the end of `checkpoint --kill` until the processes are gone.
pub const GONE: Duration = Duration::from_secs(20);

/// From the death of a subject until its guardian has it running again.
pub const RESTART: Duration = Duration::from_secs(30);

/// From the start of `undying run` to the first committed checkpoint, beyond the period asked for.
pub const FIRST_CHECKPOINT: Duration = Duration::from_secs(20);

/// Between two looks at something that has no event to wait for.
pub const POLL: Duration = Duration::from_millis(2);

/// Between two calls of the binary that only ask: each one costs a process.
pub const POLL_BY_COMMAND: Duration = Duration::from_millis(50);

/// How often the cleanup looks again for processes that appeared while it was killing others.
pub const CLEANUP_ROUNDS_MAX: u32 = 500;

/// How much of a file goes into a dump; maps of a large program stay below this.
pub const DUMP_FILE_BYTES_MAX: usize = 256 * 1024;

/// How much of a program's output goes into an error message.
pub const OUTPUT_TAIL_BYTES_MAX: usize = 4096;
