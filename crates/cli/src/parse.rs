//! Arguments that several verbs have, and values with units.
//!
//! Owns: pids, images, names, durations and rates as they are written on the command line.
//! Does not: check that what they name exists.

use clap::{Arg, ArgAction, ArgMatches};
use model::Pid;

/// A positional PID.
pub(crate) fn pid(help: &'static str) -> Arg {
    Arg::new("PID").value_parser(parse_pid).help(help)
}

/// The PID that was given.
pub(crate) fn given_pid(matches: &ArgMatches) -> Pid {
    matches.get_one::<Pid>("PID").copied().unwrap_or_default()
}

/// A positional IMAGE.
pub(crate) fn image() -> Arg {
    Arg::new("IMAGE").required(true).help("A directory, NAME (its newest checkpoint) or NAME@SEQ")
}

/// The IMAGE that was given.
pub(crate) fn given_image(matches: &ArgMatches) -> String {
    matches.get_one::<String>("IMAGE").cloned().unwrap_or_default()
}

/// `--json`.
pub(crate) fn json() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON")
}

/// A value that is not what its argument wants.
#[derive(Debug)]
pub(crate) struct Malformed(&'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

fn parse_pid(text: &str) -> Result<Pid, Malformed> {
    let number = text.parse().ok().filter(|number: &i32| *number > 0);
    number.map(Pid).ok_or(Malformed("a pid is a number above 0"))
}
