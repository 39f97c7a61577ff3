//! The command line as a whole, made from the registry of verbs.
//!
//! Owns: the program's name, version and the options that every verb has.
//! Invariants: help, completions and manual pages are all made from this.
//! Does not: know any verb.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use guardian::StoreLocation;

use crate::failure::Failure;
use crate::verb;

const STORE: &str = "store";

/// The whole command line.
pub(crate) fn command() -> Command {
    let store = Arg::new(STORE)
        .long("store")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .global(true)
        .help("Where images live [default: $XDG_STATE_HOME/undying, for root /var/lib/undying]");
    Command::new("undying")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Keeps unmodified Linux programs alive: checkpoint, restore, restart")
        .after_help(AFTER)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .arg(store)
        .subcommands(
            verb::REGISTRY.iter().map(|verb| verb.arguments(Command::new(verb.name()).about(verb.about()))),
        )
}

/// The store that the command line names, or the default one.
pub(crate) fn store(matches: &ArgMatches) -> Result<StoreLocation, Failure> {
    let named = matches.get_one::<PathBuf>(STORE);
    Ok(StoreLocation::new(named.map(PathBuf::as_path))?)
}

const AFTER: &str = "\
An IMAGE is a directory, NAME (its newest committed checkpoint) or NAME@SEQ. DUR is 10ms, 2s, 1m.

Exit codes: 0 done, 2 usage, 3 refused (nothing was changed), 4 missing permission or kernel feature,
5 image damaged or not committed, 125 any other failure. `run` and `restore` end with the program's own
status, 128 + the signal's number if it was killed; `run` with 127 if there is no such program, with 126
if it cannot be executed.";
