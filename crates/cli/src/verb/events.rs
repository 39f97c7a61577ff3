//! The command `undying events [NAME] [-f] [--only KINDS] [--json] [--trace FILE]`: prints recorded events.
//!
//! Owns: events as lines of text and as JSON, and the file of a trace.
//! Does not: interpret events.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgMatches, Command, value_parser};
use guardian::{EventKind, EventRow, History};

use super::interface::Verb;
use crate::failure::{Failure, report_left_out};
use crate::{parse, print};

/// Poll interval for new events. Guardians write events at the same interval.
const PERIOD: Duration = Duration::from_millis(200);

pub(super) const VERB: Verb = Verb {
    name: "events",
    about: "List the events of subjects: checkpoints with the time of each phase, deaths, restores",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(Arg::new("NAME").help("The subject"))
        .arg(parse::flag("follow", "Also print later events").short('f'))
        .arg(
            parse::option("only", "KINDS", "Print only events of these kinds, like deaths,restores")
                .value_delimiter(',')
                .value_parser(PossibleValuesParser::new(
                    EventKind::ALL.map(|(kind, about)| PossibleValue::new(kind.name()).help(about)),
                )),
        )
        .arg(
            parse::option("trace", "FILE", "Write them to FILE for Perfetto or Chrome's trace viewer")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with_all(["follow", "json"]),
        )
        .arg(parse::json().help("Print one JSON object a line"))
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("NAME").map(String::as_str);
    let only: Vec<&String> = matches.get_many("only").into_iter().flatten().collect();
    let is_wanted =
        |row: &EventRow| only.is_empty() || only.iter().any(|kind| *kind == row.what.kind().name());
    let mut history = History::open(&parse::given_store(matches)?, name)?;
    if let Some(path) = matches.get_one::<PathBuf>("trace") {
        let mut rows = history.read()?;
        rows.retain(is_wanted);
        guardian::write_trace(path, &rows)?;
        print::say(format_args!("{} events written to {}", rows.len(), path.display()));
        return Ok(report_left_out(&history.take_failed()));
    }
    loop {
        for row in history.read()?.iter().filter(|row| is_wanted(row)) {
            tell(row, matches.get_flag("json"))?;
        }
        let code = report_left_out(&history.take_failed());
        if !matches.get_flag("follow") {
            return Ok(code);
        }
        std::thread::sleep(PERIOD);
    }
}

fn tell(row: &EventRow, json: bool) -> Result<(), Failure> {
    if json {
        writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(row)?)?;
    } else {
        print::line(format_args!("{} {}: {}", row.time, row.name, row.what))?;
    }
    Ok(std::io::stdout().lock().flush()?)
}
