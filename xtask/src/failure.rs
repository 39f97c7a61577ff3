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
    /// A command could not be started, or its output not be read.
    #[error("cannot run `{command}`: {source}")]
    Command {
        /// The command line.
        command: String,
        /// Why not.
        source: std::io::Error,
    },
}
