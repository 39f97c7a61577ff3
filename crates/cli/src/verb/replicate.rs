//! The command `undying replicate [-n N] [--report FILE] -- CMD ARG...`: runs a program as several replicas.
//!
//! Owns: the arguments of the command, and the text about a stopped run.
//! Does not: run the program; `guardian` does.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::interface::Verb;
use crate::failure::Failure;
use crate::print;

pub(super) const VERB: Verb = Verb {
    name: "replicate",
    about: "Run a program as several replicas, and stop it if they differ (silent data corruption)",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(replicas("replicas").short('n'))
        .arg(
            Arg::new("report")
                .long("report")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Write the report as JSON to this file"),
        )
        .arg(program())
        .after_help(
            "Supported are programs with one process and one thread that work with files, pipes and terminals. Exit codes: \
             that of the program; 120 if the replicas differ; 3 if the program makes a call that is not supported.",
        )
}

/// The option for the number of replicas.
pub(super) fn replicas(name: &'static str) -> Arg {
    let known =
        guardian::REPLICAS.map(|count| clap::builder::PossibleValue::new(count.to_string().leak() as &str));
    Arg::new(name).value_name("N").value_parser(known).default_value("2").help("The number of replicas")
}

/// The argument with the program.
pub(super) fn program() -> Arg {
    Arg::new("command")
        .value_name("CMD")
        .num_args(1..)
        .required(true)
        .last(true)
        .value_parser(value_parser!(OsString))
        .help("The program and its arguments")
}

/// Returns the given number of replicas.
pub(super) fn given_replicas(matches: &ArgMatches, name: &str) -> usize {
    matches.get_one::<String>(name).and_then(|count| count.parse().ok()).unwrap_or(guardian::REPLICAS_DEFAULT)
}

/// Returns the given program and its arguments.
pub(super) fn given_program(matches: &ArgMatches) -> Vec<OsString> {
    matches.get_many::<OsString>("command").into_iter().flatten().cloned().collect()
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    // A report that cannot be written ends the command before the program runs.
    let file = matches.get_one::<PathBuf>("report").map(File::create).transpose()?;
    let report = guardian::replicate(&given_program(matches), given_replicas(matches, "replicas"))?;
    if let Some(file) = file {
        serde_json::to_writer_pretty(file, &report)?;
    }
    if let Some(text) = &report.stopped {
        print::say(format_args!("undying: {text}"));
    }
    Ok(report.code)
}
