//! Starting the program of a subject.
//!
//! Owns: what it inherits.
//! Does not: restore it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use model::Pid;

use super::requests;
use super::shared::Shared;
use super::watching::Watching;
use crate::error::{GuardianError, Result};
use crate::subject::Subject;

/// Starts the program as a child that knows where to ask for checkpoints and inherits streams, environment, directory,
/// process group, signal mask and actions.
pub(super) fn spawn(
    words: &[OsString],
    host: &Shared,
    requests: &str,
    watching: Option<&Watching>,
) -> Result<Subject> {
    let (program, arguments) = words.split_first().ok_or_else(|| no_command(OsString::new()))?;
    let mut command = Command::new(program);
    command.env(requests::VARIABLE, requests);
    sys::signal::start_with(command.args(arguments), host.blocked_before, host.defaults);
    let failed = |error: std::io::Error| {
        let source = sys::Error::path("execute", Path::new(program), error);
        GuardianError::Command { command: program.clone(), source }
    };
    match watching {
        Some(watching) => Subject::child(watching.spawn(&mut command, failed)?),
        None => Subject::child(Pid(command.spawn().map_err(failed)?.id() as i32)),
    }
}

fn no_command(command: OsString) -> GuardianError {
    GuardianError::Command { command, source: sys::Error::new("execute nothing", sys::Errno::ENOENT) }
}
