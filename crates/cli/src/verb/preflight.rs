//! The command `undying preflight PID [--kill] [--lose-connections] [--json]`: lists obstacles to a checkpoint.
//!
//! Owns: the arguments of the command, and the text form of the list.
//! Does not: search for obstacles; `guardian` does.

use clap::{Arg, ArgAction, ArgMatches, Command};
use guardian::PreflightMode;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) struct Preflight;

impl Verb for Preflight {
    fn name(&self) -> &'static str {
        "preflight"
    }

    fn about(&self) -> &'static str {
        "List everything that would stop a checkpoint of a process tree; changes nothing"
    }

    fn arguments(&self, command: Command) -> Command {
        command
            .arg(parse::pid("The root of the tree").required(true))
            .arg(
                Arg::new("kill").long("kill").action(ArgAction::SetTrue).help(
                    "Answer for `checkpoint --kill`, which ends the tree and takes its connections over",
                ),
            )
            .arg(parse::lose_connections())
            .arg(parse::json())
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
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
                print::say(format_args!(
                    "a restore compares these files and does not roll them back: {named}"
                ));
            }
        }
        Ok(report.code.number())
    }
}
