//! The commands `undying down`, `reload`, `start NAME`, `stop NAME`, `restart NAME` and `complain NAME --why TEXT`.
//! Each command sends an order to the guardian of a system.
//!
//! Owns: the arguments of the commands.
//! Does not: execute the orders; the guardian does.

use std::num::NonZeroU32;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
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

/// A restart of components from their beginning, or of subjects with their state.
pub(super) struct Restart;

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

impl Verb for Restart {
    fn name(&self) -> &'static str {
        "restart"
    }

    fn about(&self) -> &'static str {
        "End a component and start it from its beginning, or restart any subject with its state"
    }

    fn arguments(&self, command: Command) -> Command {
        let restore = Arg::new("restore").long("restore").action(ArgAction::SetTrue);
        let restore =
            restore.help("Keep the state: take a checkpoint of the stopped program, and restore it");
        command
            .arg(component().num_args(1..).help("The components; with --restore, any guarded subjects"))
            .arg(restore)
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
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
