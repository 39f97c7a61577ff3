//! The command line: parses, calls `guardian`, prints.
//!
//! Owns: exit codes as the process ends with them, what goes to stdout and what to stderr.
//! Invariants: data goes to stdout, talk to stderr; nothing is done that a program linking `guardian` could not do.
//! Does not: hold logic; nothing runs before the verb is known, so that a small checkpoint stays fast.
#![forbid(unsafe_code)]

mod failure;
mod journald;
mod metrics;
mod narrator;
mod parse;
mod print;
mod shown;
mod top;
mod verb;

use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

fn run() -> Result<u8, failure::Failure> {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let matches = match verb::command().try_get_matches_from(&words) {
        Ok(matches) => matches,
        // Help and version are answers, all else is a mistake; clap knows which stream and code each has.
        Err(error) => error.exit(),
    };
    let Some((name, arguments)) = matches.subcommand() else { return Ok(0) };
    match verb::named(name) {
        Some(verb) => verb.run(arguments),
        None => Ok(guardian::ExitCode::Usage.number()),
    }
}
