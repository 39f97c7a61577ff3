//! The commands `undying down`, `reload`, `start NAME`, `stop NAME`, `restart NAME` and `complain NAME --why TEXT`.
//! Each command sends an order to the guardian of a system.
//!
//! Owns: the arguments of the commands.
//! Does not: execute the orders; the guardian does.

use std::num::NonZeroU32;

use clap::{Arg, ArgMatches, Command, value_parser};
use guardian::SystemOrder;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const DOWN: Verb = Verb {
    name: "down",
    about: "End all components of the system of a store, in reverse order of their start",
    arguments: |command| command,
    run: |matches| give(matches, SystemOrder::Down),
};

pub(super) const RELOAD: Verb = Verb {
    name: "reload",
    about: "Read the system file again; components without changes are not touched",
    arguments: |command| command,
    run: |matches| give(matches, SystemOrder::Reload),
};

pub(super) const START: Verb = Verb {
    name: "start",
    about: "Start a component and its dependencies; the command exits when the component is ready",
    arguments: |command| command.arg(component()),
    run: |matches| give(matches, SystemOrder::Start { component: parse::given(matches, "NAME") }),
};

pub(super) const STOP: Verb = Verb {
    name: "stop",
    about: "End a component; nothing restarts it until `start`",
    arguments: |command| command.arg(component()),
    run: |matches| give(matches, SystemOrder::Stop { component: parse::given(matches, "NAME") }),
};

fn component() -> Arg {
    parse::name("NAME", "The component")
}

fn give(matches: &ArgMatches, order: SystemOrder) -> Result<u8, Failure> {
    let done = guardian::order(&parse::given_store(matches)?, &order)?;
    print::say(format_args!("undying: {done}"));
    Ok(0)
}

/// A restart of components from their beginning, or of subjects with their state.
pub(super) const RESTART: Verb = Verb {
    name: "restart",
    about: "End a component and start it from its beginning, or restart any subject with its state",
    arguments: restart_arguments,
    run: restart,
};

fn restart_arguments(command: Command) -> Command {
    let restore = "Keep the state: take a checkpoint of the stopped program, and restore it";
    command
        .arg(component().num_args(1..).help("The components; with --restore, any guarded subjects"))
        .arg(parse::flag("restore", restore))
}

fn restart(matches: &ArgMatches) -> Result<u8, Failure> {
    let names = matches.get_many::<String>("NAME").into_iter().flatten().cloned();
    for name in names {
        if !matches.get_flag("restore") {
            give(matches, SystemOrder::Restart { component: name })?;
            continue;
        }
        let image = guardian::restart_with_state(&parse::given_store(matches)?, &name)?;
        print::say(format_args!("undying: {name} continues from {image}"));
    }
    Ok(0)
}

/// A complaint about a component. The guardian restarts the component when the complaints reach its quorum.
pub(super) const COMPLAIN: Verb = Verb {
    name: "complain",
    about: "Complain about a component; the component is restarted when the complaints reach its quorum",
    arguments: complain_arguments,
    run: complain,
};

fn complain_arguments(command: Command) -> Command {
    let weight = parse::option("weight", "N", "What it counts [default: 1]");
    command
        .arg(component())
        .arg(parse::option("why", "TEXT", "The reason, for the events").required(true))
        .arg(weight.value_parser(value_parser!(NonZeroU32)))
}

fn complain(matches: &ArgMatches) -> Result<u8, Failure> {
    let (component, why) = (parse::given(matches, "NAME"), parse::given(matches, "why"));
    let weight = matches.get_one("weight").copied().unwrap_or(NonZeroU32::MIN);
    give(matches, SystemOrder::Complain { component, why, weight })
}
