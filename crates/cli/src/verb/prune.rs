//! The command `undying prune NAME --keep K`: removes old checkpoints.
//!
//! Owns: the arguments of the command, and the list of removed checkpoints.
//! Does not: remove checkpoints; `guardian` does.

use clap::{Arg, ArgMatches, Command, value_parser};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb =
    Verb { name: "prune", about: "Remove all but the newest checkpoints of a subject", arguments, run };

fn arguments(command: Command) -> Command {
    command
        .arg(Arg::new("NAME").required(true).help("The subject"))
        .arg(parse::option("keep", "K", "How many to keep").required(true).value_parser(value_parser!(u32)))
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("NAME").map_or("", String::as_str);
    let keep = matches.get_one::<u32>("keep").copied().unwrap_or(u32::MAX);
    let removed = guardian::prune(&parse::given_store(matches)?, name, keep as usize)?;
    for sequence in &removed {
        print::line(format_args!("removed {name}@{sequence}"))?;
    }
    Ok(0)
}
