//! The command `undying doctor [--json]`: shows the capabilities of this machine.
//!
//! Owns: the text form of the list of checks.
//! Does not: execute the checks; `guardian` does.

use clap::ArgMatches;
use guardian::{CheckState, ExitCode};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "doctor",
    about: "Test the features of this kernel and this user, and show a fix for each missing feature",
    arguments: |command| command.arg(parse::json()),
    run,
};

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let report = guardian::doctor(&parse::given_store(matches)?);
    if matches.get_flag("json") {
        print::json(&report)?;
    } else {
        for check in &report.checks {
            let state = match check.state {
                CheckState::Ok => "ok",
                CheckState::Degraded => "degraded",
                CheckState::Missing => "missing",
            };
            print::line(format_args!("{state:<9} {:<15} {}", check.name, check.detail))?;
            if !check.fix.is_empty() {
                print::line(format_args!("{:<25} help: {}", "", check.fix))?;
            }
        }
    }
    Ok(if report.ok { ExitCode::Done } else { ExitCode::Missing }.number())
}
