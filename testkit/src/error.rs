//! What can go wrong in the harness itself or in what it drives.
//!
//! Owns: `HarnessError`.
//! Invariants: every message names the victim, file or command it is about.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::process::ProcessId;

/// An error of the harness or of something it drives.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A process operation failed.
    #[error("cannot {operation} {process}: {source}")]
    Process {
        /// What was tried.
        operation: &'static str,
        /// On which process.
        process: ProcessId,
        /// Why it failed.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program with its arguments.
        program: String,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no such victim.
    #[error("there is no victim named {0}")]
    NoSuchVictim(String),
    /// The compiler rejected a victim.
    #[error("victim {victim} does not compile:\n{output}")]
    Compile {
        /// The victim.
        victim: String,
        /// What the compiler said.
        output: String,
    },
    /// The victim needs something that this kernel or this user does not have.
    #[error("unsupported: {victim}: {reason}")]
    Unsupported {
        /// The victim.
        victim: String,
        /// Its own words.
        reason: String,
    },
    /// The victim ended before it was asked for its verdict.
    #[error("{victim} ended too early ({status}); its verdict: {verdict}\n{output}")]
    Died {
        /// The victim.
        victim: String,
        /// How it ended.
        status: String,
        /// What it wrote as its verdict, if anything.
        verdict: String,
        /// The end of what it printed.
        output: String,
    },
    /// A wait reached its limit.
    #[error("{what}: nothing after {limit:?}; dump in {}\n{summary}", dump.display())]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// The full dump of every thread.
        dump: PathBuf,
        /// One line a thread.
        summary: String,
    },
    /// The `undying` binary is not there.
    #[error("there is no undying binary at {}; build it (cargo build -p undying-cli) or set UNDYING_BIN", .0.display())]
    NoBinary(PathBuf),
    /// A command ended with another status than expected.
    #[error("{command} ended with {status}, expected {expected}\nstdout: {stdout}\nstderr: {stderr}")]
    Status {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The exit status that was expected.
        expected: i32,
        /// The end of its standard output.
        stdout: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// A command did not print what it promises.
    #[error("{command} printed something unexpected: {detail}")]
    Output {
        /// The command line.
        command: String,
        /// What was wrong.
        detail: String,
    },
    /// Processes are left that should be gone.
    #[error("{what}: still alive: {survivors}")]
    Survivors {
        /// After what.
        what: String,
        /// Which ones.
        survivors: String,
    },
}
