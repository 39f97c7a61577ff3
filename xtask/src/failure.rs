//! The errors that prevent the execution of a chore (a subcommand of `cargo xtask`).
//!
//! Owns: the single error type of this program.
//! Does not: describe the result of a check. A rule violation is a finding, not a failure.

use std::path::PathBuf;

/// The reason why a chore could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// `cargo metadata` failed.
    #[error("cannot read the metadata of the workspace: {0}")]
    Metadata(#[from] cargo_metadata::Error),
    /// The files of the workspace cannot be listed.
    #[error("cannot list the files: {0}")]
    Walk(#[from] ignore::Error),
    /// A file of the workspace cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the read.
        source: std::io::Error,
    },
    /// The rows of a benchmark are not usable.
    #[error("cannot use the rows of {path}: {what}")]
    Rows {
        /// The file.
        path: PathBuf,
        /// The defect of the rows.
        what: String,
    },
    /// A command cannot be started, or its output cannot be read.
    #[error("cannot run `{command}`: {source}")]
    Command {
        /// The command line.
        command: String,
        /// The error of the command.
        source: std::io::Error,
    },
    /// A file cannot be written, copied or listed.
    #[error("cannot use {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operation.
        source: std::io::Error,
    },
    /// A command failed.
    #[error("`{command}` ended with {status}: {said}")]
    Status {
        /// The command line.
        command: String,
        /// The exit status of the command.
        status: String,
        /// The standard error of the command.
        said: String,
    },
    /// A program is not installed.
    #[error("`{program}` is not installed; install the Debian package {package}")]
    MissingProgram {
        /// The name of the program.
        program: &'static str,
        /// The Debian package that contains the program.
        package: &'static str,
    },
    /// The package lists contain no kernel of the series.
    #[error(
        "no Debian package of kernel {series} for virtual machines is known; update the package lists, or give a file with --package"
    )]
    NoKernel {
        /// The series or the package.
        series: String,
    },
    /// A word of a command line is not the name of a test.
    #[error("no test is called `{name}`; name it PACKAGE/TEST, such as track/all or sys/lib")]
    NoSuchTest {
        /// The requested name.
        name: String,
    },
}
