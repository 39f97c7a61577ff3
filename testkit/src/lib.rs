//! The test kit: victim programs that judge themselves, and the harness that
//! starts, checkpoints, kills, restores and judges them.
//!
//! Owns: compiling `victims/*.c`, isolating and cleaning up what a test starts,
//! calling the `undying` binary, waiting with a limit on everything, a dump of
//! every thread where a limit is reached, and random numbers with a printed seed.
//! Invariants: no wait is without a limit; nothing is signalled that the harness
//! did not start; a victim's word (PASS, FAIL, UNSUPPORTED) is never guessed.
//! Does not: know what is inside an image, or link any crate under test but `sys`, for one system call.
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

mod command;
mod compile;
mod dump;
mod error;
mod guard;
pub mod limits;
mod paths;
mod process;
mod random;
mod supervised;
mod undying;
mod until;
mod victim;

pub use command::Finished;
pub use compile::{Library, compile, victims};
pub use dump::describe;
pub use error::HarnessError;
pub use guard::Guard;
pub use process::{ProcessId, descendants};
pub use random::{moment, seed, seeded};
pub use supervised::{Supervised, SupervisedOptions};
pub use undying::Undying;
pub use until::{until, within_limit};
pub use victim::{Options, Verdict, Victim};

/// Says on standard error that a test cannot run here and why, in the form that
/// the summary counts: `unsupported: X`.
pub fn unsupported(what: &str) {
    eprintln!("unsupported: {what}");
}
