//! Errors of the test harness and of the programs that it runs.
//!
//! Owns: `HarnessError`.
//! Invariants: every message names the victim (test program), the file or the command that failed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::process::ProcessId;

/// An error of the harness, or of a program that the harness runs.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// The operation that failed.
        operation: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operation.
        source: io::Error,
    },
    /// A process operation failed.
    #[error("cannot {operation} {process}: {source}")]
    Process {
        /// The operation that failed.
        operation: &'static str,
        /// The process.
        process: ProcessId,
        /// The error of the operation.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program with its arguments.
        program: String,
        /// The error of the start.
        source: io::Error,
    },
    /// The victim does not exist.
    #[error("there is no victim named {0}")]
    NoSuchVictim(String),
    /// The compiler rejected a victim.
    #[error("victim {victim} does not compile:\n{output}")]
    Compile {
        /// The victim.
        victim: String,
        /// The output of the compiler.
        output: String,
    },
    /// The victim needs a feature that this kernel or this user does not have.
    #[error("unsupported: {victim}: {reason}")]
    Unsupported {
        /// The victim.
        victim: String,
        /// The reason, as written by the victim.
        reason: String,
    },
    /// The victim ended before the harness requested its verdict.
    #[error("{victim} ended too early ({status}); its verdict: {verdict}\n{output}")]
    Died {
        /// The victim.
        victim: String,
        /// The exit status of the victim.
        status: String,
        /// The verdict that the victim wrote, if any.
        verdict: String,
        /// The end of the output of the victim.
        output: String,
    },
    /// A wait reached its limit.
    #[error("{what}: nothing after {limit:?}; dump in {}\n{summary}", dump.display())]
    Timeout {
        /// The event that did not occur.
        what: String,
        /// The time limit.
        limit: Duration,
        /// The file with the full dump of every thread.
        dump: PathBuf,
        /// A summary with one line for each thread.
        summary: String,
    },
    /// The `undying` binary does not exist at this path.
    #[error("there is no undying binary at {}; build it (cargo build -p undying-cli) or set UNDYING_BIN", .0.display())]
    NoBinary(PathBuf),
    /// A command ended with an unexpected status.
    #[error("{command} ended with {status}, expected {expected}\nstdout: {stdout}\nstderr: {stderr}")]
    Status {
        /// The command line.
        command: String,
        /// The exit status of the command.
        status: String,
        /// The expected exit status.
        expected: i32,
        /// The end of the standard output.
        stdout: String,
        /// The end of the standard error.
        stderr: String,
    },
    /// The output of a command does not have the documented form.
    #[error("{command} printed something unexpected: {detail}")]
    Output {
        /// The command line.
        command: String,
        /// The difference from the documented form.
        detail: String,
    },
    /// Processes that should have ended are still alive.
    #[error("{what}: still alive: {survivors}")]
    Survivors {
        /// The operation after which the processes should have ended.
        what: String,
        /// The processes that are still alive.
        survivors: String,
    },
}
