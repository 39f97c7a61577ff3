//! Failures that end a command early, and their messages.
//!
//! Owns: the form `undying: MESSAGE`, `help: ADVICE` on standard error, and the exit code.
//! Does not: classify errors; `guardian` does.

use std::process::ExitCode;

use guardian::GuardianError;

use crate::print;

#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the crate `guardian`.
    Guardian(GuardianError),
    /// The output of this program cannot be written. If the reader has closed its end, the command still succeeds.
    Output(std::io::Error),
    /// The metrics cannot be served at this address.
    Listen(String, std::io::Error),
}

impl From<GuardianError> for Failure {
    fn from(error: GuardianError) -> Self {
        Self::Guardian(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Output(error.into())
    }
}

impl Failure {
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Guardian(error) => {
                report(None, &error);
                ExitCode::from(error.exit_code().number())
            }
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Listen(address, error) => {
                print::say(format_args!("undying: cannot listen at {address}: {error}"));
                print::say(format_args!(
                    "help: choose another address, or stop the program that listens at this address"
                ));
                ExitCode::from(guardian::ExitCode::Failure.number())
            }
            Self::Output(error) => {
                print::say(format_args!("undying: cannot write the output: {error}"));
                print::say(format_args!("help: check the target of standard output"));
                ExitCode::from(guardian::ExitCode::Failure.number())
            }
        }
    }
}

/// Prints the errors of subjects (protected process trees) that could not be read. Returns the exit code of the first
/// error.
pub(crate) fn report_left_out(failed: &[(String, GuardianError)]) -> u8 {
    for (name, error) in failed {
        report(Some(name), error);
    }
    failed.first().map_or(guardian::ExitCode::Done, |(_, error)| error.exit_code()).number()
}

fn report(subject: Option<&str>, error: &GuardianError) {
    match subject {
        Some(name) => print::say(format_args!("undying: {name}: {error}")),
        None => print::say(format_args!("undying: {error}")),
    }
    if let Some(advice) = error.advice() {
        print::say(format_args!("help: {advice}"));
    }
}
