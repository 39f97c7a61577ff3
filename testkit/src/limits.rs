//! Every limit of the harness, with its reason.
//!
//! Owns: the names and values, and their stretching for slow machines.
//! Invariants: a limit is far above what a loaded two-core machine needs, so that
//! reaching it means a hang and not a slow machine.

use std::sync::OnceLock;
use std::time::Duration;

/// How many times slower than a usual one this machine is, where it is an emulated one: a whole number.
/// `cargo xtask vm` sets it there; victims stretch their own timeout by it (`victim.h`).
pub const SLOWNESS: &str = "UNDYING_TEST_SLOWNESS";

/// From the start of a victim to its "ready": the slowest one waits about two seconds for its
/// calls with a timeout to go round once.
#[must_use]
pub fn ready() -> Duration {
    seconds(60)
}

/// From SIGTERM to the verdict: a victim waits at most 20 seconds for any single event.
#[must_use]
pub fn judge() -> Duration {
    seconds(90)
}

/// One call of the `undying` binary.
#[must_use]
pub fn command() -> Duration {
    seconds(120)
}

/// From the end of `checkpoint --kill` until the processes are gone.
#[must_use]
pub fn gone() -> Duration {
    seconds(20)
}

/// From the death of a subject until its guardian has it running again.
#[must_use]
pub fn restart() -> Duration {
    seconds(30)
}

/// From the start of `undying run` to the first committed checkpoint, beyond the period asked for.
#[must_use]
pub fn first_checkpoint() -> Duration {
    seconds(20)
}

/// A condition that a test waits for without an event.
#[must_use]
pub fn condition() -> Duration {
    seconds(60)
}

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

fn seconds(seconds: u64) -> Duration {
    static SLOWNESS_HERE: OnceLock<u64> = OnceLock::new();
    let slowness = SLOWNESS_HERE.get_or_init(|| slowness(std::env::var(SLOWNESS).ok().as_deref()));
    Duration::from_secs(seconds.saturating_mul(*slowness))
}

/// A word that is no number would silently leave every limit as it is.
fn slowness(text: Option<&str>) -> u64 {
    let parse = |text: &str| text.parse().ok().filter(|slowness| *slowness > 0);
    text.map_or(1, |text| parse(text).expect("the slowness is a whole number above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_has_more_time() {
        assert_eq!(slowness(None), 1);
        assert_eq!(slowness(Some("7")), 7);
        assert!(std::panic::catch_unwind(|| slowness(Some("very"))).is_err());
        assert!(std::panic::catch_unwind(|| slowness(Some("0"))).is_err());
    }
}
