//! The command `undying top [NAME] [--interval DUR] [--once]`: shows subjects (protected process trees) live.
//!
//! Owns: the arguments of the command.
//! Does not: read or draw data; `crate::top` does.

use std::io::IsTerminal;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, top};

/// Default interval between two samples.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

pub(super) const VERB: Verb = Verb {
    name: "top",
    about: "Watch guarded subjects: rates, pauses, dirty pages, the store",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(Arg::new("NAME").help("The subject"))
        .arg(
            parse::option("interval", "DUR", "Time between two samples [default: 1s]")
                .value_parser(parse::duration),
        )
        .arg(parse::flag("once", "Print one table and end"))
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("NAME").map(String::as_str);
    let store = parse::given_store(matches)?;
    let interval = matches.get_one("interval").copied().unwrap_or(INTERVAL_DEFAULT);
    if std::io::stdout().is_terminal() && !matches.get_flag("once") {
        top::live(store, name, interval)
    } else {
        top::once(store, name)
    }
}
