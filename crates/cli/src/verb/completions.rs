//! The command `undying completions SHELL`: prints shell completions.
//!
//! Owns: the call of `clap_complete`.
//! Does not: contain the name of any verb (subcommand); the completions are generated from the whole command line.

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use super::interface::Verb;
use crate::failure::Failure;

pub(super) struct Completions {
    /// Creates the whole command line.
    pub(super) command: fn() -> Command,
}

impl Verb for Completions {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn about(&self) -> &'static str {
        "Print the completions of a shell"
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(Arg::new("SHELL").required(true).value_parser(value_parser!(Shell)).help("The shell"))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        if let Some(shell) = matches.get_one::<Shell>("SHELL") {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut (self.command)(), "undying", &mut text);
            std::io::Write::write_all(&mut std::io::stdout().lock(), &text)?;
        }
        Ok(0)
    }
}
