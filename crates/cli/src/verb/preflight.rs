//! The command `undying preflight PID [--kill] [--lose-connections] [--json]`: lists obstacles to a checkpoint.
//!
//! Owns: the arguments of the command, and the text form of the list.
//! Does not: search for obstacles; `guardian` does.

use clap::{ArgMatches, Command};
use guardian::PreflightMode;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "preflight",
    about: "List everything that would stop a checkpoint of a process tree; changes nothing",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(parse::pid("The root of the tree").required(true))
        .arg(parse::flag(
            "kill",
            "Answer for `checkpoint --kill`, which ends the tree and takes its connections over",
        ))
        .arg(parse::lose_connections())
        .arg(parse::json())
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let pid = parse::given_pid(matches);
    let mode = PreflightMode {
        kill: matches.get_flag("kill"),
        lose_connections: matches.get_flag("lose-connections"),
    };
    let report = guardian::preflight(pid, mode)?;
    if matches.get_flag("json") {
        print::json(&report)?;
    } else {
        if report.ok {
            let with = if mode.kill { " with --kill" } else { "" };
            print::line(format_args!("pid {pid} can be checkpointed{with}"))?;
        }
        for group in &report.groups {
            print::lines(group)?;
        }
        if !report.compared.is_empty() {
            let named = report.compared.join(", ");
            print::say(format_args!("a restore compares these files and does not roll them back: {named}"));
        }
    }
    Ok(report.code.number())
}
