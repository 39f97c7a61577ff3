//! The interface of a verb.
//!
//! Does not: contain the name of any verb.

use clap::{ArgMatches, Command};

use crate::failure::Failure;

/// A verb of the command line.
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    /// One line of help.
    pub(crate) about: &'static str,
    /// Adds the arguments of the verb to the command.
    pub(crate) arguments: fn(Command) -> Command,
    /// Executes the verb. Returns the exit code.
    pub(crate) run: fn(&ArgMatches) -> Result<u8, Failure>,
}
