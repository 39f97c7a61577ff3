//! What ends a command early, and how it is reported.
//!
//! Owns: the form `undying: MESSAGE`, `help: ADVICE` on stderr, and the exit code.
//! Does not: classify errors; `guardian` does.

use std::process::ExitCode;

use guardian::GuardianError;

use crate::print;

/// A verb that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library.
    Guardian(GuardianError),
    /// Our own output cannot be written. A reader that has gone away is no failure.
    Output(std::io::Error),
    /// Nothing can be served at this address.
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
    /// Reports to the operator, and gives the code to end with.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Guardian(error) => {
                report(None, &error);
                ExitCode::from(error.exit_code().number())
            }
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Self::Listen(address, error) => {
                print::say(format_args!("undying: cannot listen at {address}: {error}"));
                print::say(format_args!("help: choose another address, or end what listens there"));
                ExitCode::from(guardian::ExitCode::Failure.number())
            }
            Self::Output(error) => {
                print::say(format_args!("undying: cannot write the answer: {error}"));
                print::say(format_args!("help: check where stdout leads to"));
                ExitCode::from(guardian::ExitCode::Failure.number())
            }
        }
    }
}

/// Reports subjects that could not be read, after those that could, and gives the code to end with: that of the first.
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
