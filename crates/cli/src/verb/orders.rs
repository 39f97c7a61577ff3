//! The commands `undying down`, `reload`, `start NAME`, `stop NAME`, `restart NAME` and `complain NAME --why TEXT`.
//! Each command sends an order to the guardian (the supervising process) of a system.
//!
//! Owns: the arguments of the commands.
//! Does not: execute the orders; the guardian does.

use std::num::NonZeroU32;

use clap::{Arg, ArgMatches, Command, value_parser};
use guardian::SystemOrder;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

/// An order for the whole system.
pub(super) struct OfSystem {
    name: &'static str,
    about: &'static str,
    order: SystemOrder,
}

/// An order for one component.
pub(super) struct OfComponent {
    name: &'static str,
    about: &'static str,
    order: fn(String) -> SystemOrder,
}

/// A complaint about a component. The guardian restarts the component when the complaints reach its quorum.
pub(super) struct Complain;

pub(super) const DOWN: OfSystem = OfSystem {
    name: "down",
    about: "End all components of the system of a store, in reverse order of their start",
    order: SystemOrder::Down,
};

pub(super) const RELOAD: OfSystem = OfSystem {
    name: "reload",
    about: "Read the system file again; components without changes are not touched",
    order: SystemOrder::Reload,
};

pub(super) const START: OfComponent = OfComponent {
    name: "start",
    about: "Start a component and its dependencies; the command exits when the component is ready",
    order: |component| SystemOrder::Start { component },
};

pub(super) const STOP: OfComponent = OfComponent {
    name: "stop",
    about: "End a component; nothing restarts it until `start`",
    order: |component| SystemOrder::Stop { component },
};

pub(super) const RESTART: OfComponent = OfComponent {
    name: "restart",
    about: "End a component and start it from its beginning; ends when it is ready",
    order: |component| SystemOrder::Restart { component },
};

fn component() -> Arg {
    parse::name("NAME", "The component")
}

fn give(matches: &ArgMatches, order: SystemOrder) -> Result<u8, Failure> {
    let done = guardian::order(&parse::given_store(matches)?, &order)?;
    print::say(format_args!("undying: {done}"));
    Ok(0)
}

impl Verb for OfSystem {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn arguments(&self, command: Command) -> Command {
        command
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        give(matches, self.order.clone())
    }
}

impl Verb for OfComponent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(component())
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        give(matches, (self.order)(parse::given(matches, "NAME")))
    }
}

impl Verb for Complain {
    fn name(&self) -> &'static str {
        "complain"
    }

    fn about(&self) -> &'static str {
        "Complain about a component; the component is restarted when the complaints reach its quorum"
    }

    fn arguments(&self, command: Command) -> Command {
        let why = Arg::new("why").long("why").value_name("TEXT").required(true);
        let weight = Arg::new("weight").long("weight").value_name("N");
        command
            .arg(component())
            .arg(why.help("The reason, for the events"))
            .arg(weight.value_parser(value_parser!(NonZeroU32)).help("What it counts [default: 1]"))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let (component, why) = (parse::given(matches, "NAME"), parse::given(matches, "why"));
        let weight = matches.get_one("weight").copied().unwrap_or(NonZeroU32::MIN);
        give(matches, SystemOrder::Complain { component, why, weight })
    }
}
