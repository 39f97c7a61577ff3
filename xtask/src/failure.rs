//! Why a chore could not even be tried.
//!
//! Owns: the one error type of this program.
//! Does not: describe a check that ran and found something; that is a finding, not a failure.

use std::path::PathBuf;

/// A chore that could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// `cargo metadata` did not answer.
    #[error("cannot learn the workspace's layout: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    /// The tree could not be listed.
    #[error("cannot list the tree: {0}")]
    Walk(#[from] ignore::Error),
    /// A file of the tree could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Rows of a bench cannot be used.
    #[error("cannot use the rows of {path}: {what}")]
    Rows {
        /// Which file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// A command could not be started, or its output not be read.
    #[error("cannot run `{command}`: {source}")]
    Command {
        /// The command line.
        command: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A file could not be written, copied or listed.
    #[error("cannot use {path}: {source}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A command ended badly.
    #[error("`{command}` ended with {status}: {said}")]
    Status {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it said on standard error.
        said: String,
    },
    /// A program is not installed.
    #[error("`{program}` is not here; the Debian package {package} brings it")]
    MissingProgram {
        /// Which program.
        program: &'static str,
        /// What brings it.
        package: &'static str,
    },
    /// The package lists have no kernel of the series.
    #[error(
        "no package of kernel {series} for virtual machines is known; renew the package lists, or name a file with --package"
    )]
    NoKernel {
        /// Which series, or package.
        series: String,
    },
    /// A word of a command line names no test.
    #[error("no test is called `{name}`; name it PACKAGE/TEST, such as track/soak or sys/lib")]
    NoSuchTest {
        /// What was asked for.
        name: String,
    },
}
