//! How `undying run` has started a program. The status file contains this, so that the same command can find the program
//! after the death of its guardian.
//!
//! Owns: the recorded form.
//! Does not: search for the program; `run::earlier` does.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How a program was started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct StartedAs {
    /// The program and its arguments. Bytes that are not UTF-8 are replaced.
    words: Vec<String>,
    directory: PathBuf,
    /// Whether the operator has chosen the name of the subject.
    pub(crate) is_named: bool,
}

impl StartedAs {
    pub(crate) fn new(words: &[OsString], directory: PathBuf, is_named: bool) -> Self {
        let words = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Self { words, directory, is_named }
    }

    pub(crate) fn is_same_command(&self, other: &Self) -> bool {
        (&self.words, &self.directory) == (&other.words, &other.directory)
    }
}
