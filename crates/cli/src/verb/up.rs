//! The command `undying up FILE.toml`: starts and supervises a system.
//!
//! Owns: the arguments of the command, and the form of its reports.
//! Does not: supervise the system; `guardian` does.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use guardian::SystemFile;

use super::interface::Verb;
use crate::failure::Failure;
use crate::narrator::Narrator;
use crate::parse;

pub(super) const VERB: Verb = Verb {
    name: "up",
    about: "Start the components of a system file, and keep them running",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command.arg(
        Arg::new("FILE")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .help("The system file (TOML); `undying check FILE` checks it"),
    )
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let path = matches.get_one::<PathBuf>("FILE").expect("clap requires FILE");
    let named = parse::named_store(matches);
    let file = SystemFile::read(path)?;
    let mut narrator = Narrator::of_system(file.name());
    guardian::up(file, named, &mut |name, event| narrator.tell(Some(name), event))?;
    Ok(0)
}
