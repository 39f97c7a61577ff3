//! The command `undying gc [--dry-run] [--json]`: removes unreferenced data from the store.
//!
//! Owns: the arguments of the command, and the list of removed items.
//! Does not: choose the items; `guardian` does.

use clap::{ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb =
    Verb { name: "gc", about: "Remove unreferenced data from the store", arguments, run };

fn arguments(command: Command) -> Command {
    command.arg(parse::flag("dry-run", "List the data and remove nothing")).arg(parse::json())
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let report = guardian::gc(&parse::given_store(matches)?, matches.get_flag("dry-run"))?;
    if matches.get_flag("json") {
        print::json(&report)?;
        return Ok(report.code.number());
    }
    let verb = if report.removed { "removed" } else { "would remove" };
    for item in &report.found {
        print::line(format_args!("{verb} {} ({})", item.path, print::bytes(item.bytes)))?;
    }
    for name in &report.busy {
        print::say(format_args!("{name}: its log is being written, and tidied by its writer"));
    }
    for (name, why) in &report.damaged {
        print::say(format_args!("{name}: left as it is: {why}"));
    }
    let total = report.found.iter().map(|item| item.bytes).sum();
    print::line(format_args!("{} found, {}", report.found.len(), print::bytes(total)))?;
    Ok(report.code.number())
}
