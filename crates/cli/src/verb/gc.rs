//! The command `undying gc [--dry-run] [--json]`: removes unreferenced data from the store.
//!
//! Owns: the arguments of the command, and the list of removed items.
//! Does not: choose the items; `guardian` does.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) struct Gc;

impl Verb for Gc {
    fn name(&self) -> &'static str {
        "gc"
    }

    fn about(&self) -> &'static str {
        "Remove unreferenced data from the store"
    }

    fn arguments(&self, command: Command) -> Command {
        let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
        command.arg(dry_run.help("List the data and remove nothing")).arg(parse::json())
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
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
}
