//! What a verb is.
//!
//! Does not: know any verb.

use clap::{ArgMatches, Command};

use crate::failure::Failure;

/// One verb of the command line.
pub(crate) trait Verb: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// One line of help.
    fn about(&self) -> &'static str;
    /// Adds its arguments.
    fn arguments(&self, command: Command) -> Command;
    /// Does it; gives the code to exit with.
    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure>;
}
