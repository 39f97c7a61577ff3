//! `undying preflight PID [--json]`
//!
//! Owns: its arguments and the list of obstacles as text.
//! Does not: look for obstacles.

use clap::{ArgMatches, Command};
use guardian::ExitCode;

use super::Verb;
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
        command.arg(parse::pid("The root of the tree").required(true)).arg(parse::json())
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let pid = parse::given_pid(matches);
        let report = guardian::preflight(pid)?;
        if matches.get_flag("json") {
            print::json(&report)?;
        } else {
            if report.ok {
                print::line(format_args!("pid {pid} can be checkpointed"))?;
            }
            for group in &report.groups {
                print::lines(group)?;
            }
        }
        Ok(if report.ok { ExitCode::Done } else { ExitCode::Refused }.number())
    }
}
