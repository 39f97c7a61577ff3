//! All time limits and size limits of the harness, with their reasons.
//!
//! Owns: the names and values of the limits, and their increase on slow machines.
//! Invariants: a limit is much longer than a loaded machine with two cores needs. A reached limit therefore means a
//! hang.

use std::sync::OnceLock;
use std::time::Duration;

/// The variable with the slowness factor of an emulated machine: a whole number. `cargo xtask vm` sets the variable.
/// Victims multiply their own time limits with it (`victim.h`).
pub const SLOWNESS: &str = "UNDYING_TEST_SLOWNESS";

/// Returns the maximum time from the start of a victim to its "ready". The slowest victim needs about two seconds,
/// because each of its calls with a timeout must complete once.
#[must_use]
pub fn ready() -> Duration {
    seconds(60)
}

/// Returns the maximum time from SIGTERM to the verdict. A victim waits at most 20 seconds for a single event.
#[must_use]
pub fn judge() -> Duration {
    seconds(90)
}

/// Returns the maximum time for one call of the `undying` binary.
#[must_use]
pub fn command() -> Duration {
    seconds(120)
}

/// Returns the maximum time from the end of `checkpoint --kill` until the processes are gone.
#[must_use]
pub fn gone() -> Duration {
    seconds(20)
}

/// Returns the maximum time from the death of a subject (a supervised process tree) until its guardian has restarted
/// it.
#[must_use]
pub fn restart() -> Duration {
    seconds(30)
}

/// Returns the maximum time from the start of `undying run` to the first committed checkpoint, in addition to the
/// checkpoint interval.
#[must_use]
pub fn first_checkpoint() -> Duration {
    seconds(20)
}

/// Returns the maximum time for a condition that a test polls.
#[must_use]
pub fn condition() -> Duration {
    seconds(60)
}

/// Poll interval for a condition without an event.
pub const POLL: Duration = Duration::from_millis(2);

/// Maximum of the poll interval. Up to it, the interval depends on the time that a check takes.
pub const POLL_MAX: Duration = Duration::from_millis(100);

/// Poll interval for a condition that is checked with a call of the binary. Each call starts a process.
pub const POLL_BY_COMMAND: Duration = Duration::from_millis(50);

/// Maximum number of cleanup rounds. Each round kills the processes that have appeared during the previous round.
pub const CLEANUP_ROUNDS_MAX: u32 = 500;

/// Maximum number of bytes of a file in a dump. The maps of a large program are smaller.
pub const DUMP_FILE_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of bytes of a program's output in an error message.
pub const OUTPUT_TAIL_BYTES_MAX: usize = 4096;

/// Returns `short`, or `long` if the environment variable `UNDYING_LONG_TESTS` is set.
pub fn rounds<T>(short: T, long: T) -> T {
    if std::env::var_os("UNDYING_LONG_TESTS").is_some() { long } else { short }
}

/// A loop that does something at a random moment, and needs each of some outcomes at least once. On a loaded machine, the
/// usual rounds can all have one outcome.
#[derive(Debug)]
pub struct Rounds {
    usual: usize,
    next: usize,
}

impl Rounds {
    /// Maximum number of rounds, as a multiple of the usual number.
    const MORE: usize = 10;

    /// Creates a loop with `short` usual rounds, or `long` ones as with [`rounds`].
    #[must_use]
    pub fn new(short: usize, long: usize) -> Self {
        Self { usual: rounds(short, long), next: 0 }
    }

    /// Returns the number of the next round. After the usual rounds, the loop goes on until `has_all` outcomes were seen.
    pub fn next(&mut self, has_all: bool) -> Option<usize> {
        let most = if has_all { self.usual } else { self.usual * Self::MORE };
        let round = self.next;
        self.next += 1;
        (round < most).then_some(round)
    }

    /// Returns `limit` in the usual rounds, and twice, three times as much and so on in as many further ones.
    #[must_use]
    pub fn stretched(&self, limit: Duration) -> Duration {
        let times = self.next.saturating_sub(1) / self.usual.max(1) + 1;
        limit * u32::try_from(times).unwrap_or(u32::MAX)
    }
}

fn seconds(seconds: u64) -> Duration {
    static SLOWNESS_HERE: OnceLock<u64> = OnceLock::new();
    let slowness = SLOWNESS_HERE.get_or_init(|| slowness(std::env::var(SLOWNESS).ok().as_deref()));
    Duration::from_secs(seconds.saturating_mul(*slowness))
}

/// Parses the slowness factor. An invalid factor causes a panic, because the limits would otherwise silently stay the
/// same.
fn slowness(text: Option<&str>) -> u64 {
    let parse = |text: &str| text.parse().ok().filter(|slowness| *slowness > 0);
    text.map_or(1, |text| parse(text).expect("the slowness is a whole number above zero"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_go_on_until_all_outcomes_were_seen() {
        let limit = Duration::from_millis(8);
        let mut seen = Rounds { usual: 2, next: 0 };
        assert_eq!([true, true, true].map(|has_all| seen.next(has_all)), [Some(0), Some(1), None]);
        let mut unseen = Rounds { usual: 2, next: 0 };
        let mut lengths = Vec::new();
        while unseen.next(false).is_some() {
            lengths.push(unseen.stretched(limit) / limit.as_millis() as u32);
        }
        assert_eq!(lengths.len(), 2 * Rounds::MORE);
        assert_eq!(lengths[..5], [1, 1, 2, 2, 3].map(Duration::from_millis));
    }

    #[test]
    fn a_slow_machine_has_more_time() {
        assert_eq!(slowness(None), 1);
        assert_eq!(slowness(Some("7")), 7);
        assert!(std::panic::catch_unwind(|| slowness(Some("very"))).is_err());
        assert!(std::panic::catch_unwind(|| slowness(Some("0"))).is_err());
    }
}
