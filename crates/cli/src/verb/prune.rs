//! The command `undying prune NAME --keep K`: removes old checkpoints.
//!
//! Owns: the arguments of the command, and the list of removed checkpoints.
//! Does not: remove checkpoints; `guardian` does.

use clap::{Arg, ArgMatches, Command, value_parser};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) struct Prune;

impl Verb for Prune {
    fn name(&self) -> &'static str {
        "prune"
    }

    fn about(&self) -> &'static str {
        "Remove all but the newest checkpoints of a subject"
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(Arg::new("NAME").required(true).help("The subject")).arg(
            Arg::new("keep")
                .long("keep")
                .value_name("K")
                .required(true)
                .value_parser(value_parser!(u32))
                .help("How many to keep"),
        )
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let name = matches.get_one::<String>("NAME").map_or("", String::as_str);
        let keep = matches.get_one::<u32>("keep").copied().unwrap_or(u32::MAX);
        let removed = guardian::prune(&parse::given_store(matches)?, name, keep as usize)?;
        for sequence in &removed {
            print::line(format_args!("removed {name}@{sequence}"))?;
        }
        Ok(0)
    }
}
