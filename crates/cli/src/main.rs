//! The command line of `undying`: parses arguments, calls `guardian`, and prints results.
//!
//! Owns: the exit codes of the process, and the division of output into standard output and standard error.
//! Invariants: data goes to standard output, messages go to standard error. A program that links `guardian` can do
//! everything that this program does.
//! Does not: contain logic. No code runs before the verb (subcommand) is known, so that a small checkpoint stays fast.
#![forbid(unsafe_code)]

mod above;
mod failure;
mod journald;
mod metrics;
mod narrator;
mod parse;
mod print;
mod said;
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
        // Help and version count as results, and all other errors as mistakes. clap chooses the stream and the exit
        // code.
        Err(error) => error.exit(),
    };
    let Some((name, arguments)) = matches.subcommand() else { return Ok(0) };
    match verb::named(name) {
        Some(verb) => (verb.run)(arguments),
        None => Ok(guardian::ExitCode::Usage.number()),
    }
}
