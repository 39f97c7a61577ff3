//! The interface of a verb.
//!
//! Does not: contain the name of any verb.

use clap::{ArgMatches, Command};

use crate::failure::Failure;

/// A verb of the command line.
pub(crate) trait Verb: Sync {
    /// Returns the name of the verb.
    fn name(&self) -> &'static str;
    /// Returns one line of help.
    fn about(&self) -> &'static str;
    /// Adds the arguments of the verb to the command.
    fn arguments(&self, command: Command) -> Command;
    /// Executes the verb. Returns the exit code.
    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure>;
}
