//! The command `undying completions SHELL`: prints shell completions.
//!
//! Owns: the call of `clap_complete`.
//! Does not: contain the name of any verb (subcommand); the completions are generated from the whole command line.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use super::interface::Verb;
use crate::failure::Failure;

/// Returns the verb. `run` prints the completions.
pub(super) const fn verb(run: fn(&ArgMatches) -> Result<u8, Failure>) -> Verb {
    Verb { name: "completions", about: "Print the completions of a shell", arguments, run }
}

fn arguments(command: Command) -> Command {
    command.arg(Arg::new("SHELL").required(true).value_parser(value_parser!(Shell)).help("The shell"))
}

/// Prints the completions of the command line `whole`.
pub(super) fn print(matches: &ArgMatches, whole: &mut Command) -> Result<u8, Failure> {
    if let Some(shell) = matches.get_one::<Shell>("SHELL") {
        let mut text = Vec::new();
        clap_complete::generate(*shell, whole, "undying", &mut text);
        std::io::Write::write_all(&mut std::io::stdout().lock(), &text)?;
    }
    Ok(0)
}
