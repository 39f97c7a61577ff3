//! The test kit: victims (test programs that check their own state), and the harness. The harness starts, checkpoints,
//! kills and restores victims, and then requests their verdict.
//!
//! Owns: the compilation of `victims/*.c`, the isolation and cleanup of processes, and the calls of the `undying`
//! binary. Also owns waits with a time limit, the dump of every thread at a time limit, and random numbers with a
//! printed seed.
//! Invariants: every wait has a time limit. The harness signals only processes that it has started. The verdict of a
//! victim (PASS, FAIL, UNSUPPORTED) is never guessed.
//! Does not: read images, or link a crate under test. The exception is `sys`, for one system call.
//!
//! ```no_run
//! # fn main() -> Result<(), undying_testkit::HarnessError> {
//! use undying_testkit::{Undying, Verdict, Victim};
//! let undying = Undying::find()?;
//! let mut victim = Victim::start("fd_pipe")?;
//! victim.checkpoint_and_kill(&undying)?.expect_status(0)?;
//! victim.restore(&undying)?;
//! assert_eq!(victim.judge()?, Verdict::Pass);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod alone;
mod command;
mod compile;
mod dump;
mod error;
mod guard;
pub mod limits;
mod paths;
mod port;
mod process;
mod random;
mod supervised;
mod undying;
mod until;
mod victim;

pub use alone::alone;
pub use command::Finished;
pub use compile::{Library, compile, compiled, compiled_source, victims};
pub use dump::describe;
pub use error::HarnessError;
pub use guard::Guard;
pub use limits::{Rounds, rounds};
pub use port::free_port;
pub use process::{ProcessId, descendants};
pub use random::{moment, seed, seeded};
pub use supervised::{Supervised, SupervisedOptions};
pub use undying::Undying;
pub use until::{SetAtEnd, until, within_limit};
pub use victim::{Options, Verdict, Victim};

/// Prints on standard error that a test cannot run on this machine, and the reason. The summary of a test run counts
/// lines of this form: `unsupported: X`.
pub fn unsupported(what: &str) {
    eprintln!("unsupported: {what}");
}
