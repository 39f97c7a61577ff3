//! The commands `undying hold NAME [--for DUR]` and `undying release NAME`: stop a guarded program for a while.
//!
//! Owns: the arguments of the commands.
//! Does not: stop a program; its guardian does.

use std::time::Duration;

use clap::{ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

/// Default time for which a program is held.
const TIME: &str = "1m";

/// Stops a program after a checkpoint of this moment.
pub(super) const HOLD: Verb = Verb {
    name: "hold",
    about: "Stop a guarded program after a checkpoint of this moment, until `release` or a time limit",
    arguments: hold_arguments,
    run: hold,
};

fn hold_arguments(command: Command) -> Command {
    let time = parse::option("for", "DUR", "The time limit, at most 10m").default_value(TIME);
    command
        .arg(parse::name("NAME", "The guarded program, or a group that is checkpointed together"))
        .arg(time.value_parser(parse::hold_time))
        .after_help(
            "All threads of the program stop at one moment, and a checkpoint contains this moment. Connections stay \
             open: peers see a delay.",
        )
}

fn hold(matches: &ArgMatches) -> Result<u8, Failure> {
    let time = matches.get_one::<Duration>("for").copied().unwrap_or_default();
    let name = parse::given(matches, "NAME");
    let image = guardian::hold(&parse::given_store(matches)?, &name, time)?;
    print::say(format_args!("undying: {name} is held at {image}"));
    Ok(0)
}

/// Lets a held program continue.
pub(super) const RELEASE: Verb = Verb {
    name: "release",
    about: "Let a held program continue",
    arguments: |command| command.arg(parse::name("NAME", "The held program")),
    run: release,
};

fn release(matches: &ArgMatches) -> Result<u8, Failure> {
    let name = parse::given(matches, "NAME");
    guardian::release(&parse::given_store(matches)?, &name)?;
    print::say(format_args!("undying: {name} continues"));
    Ok(0)
}
