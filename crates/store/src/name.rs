//! Names of subjects, and names of images on a command line.
//!
//! Owns: the rules for valid names and for names of new subjects; the form `NAME@SEQ`.
//! Invariants: a valid name is the name of one directory of the store, and this directory is not hidden.
//! Does not: check whether the subject exists.

use std::fmt;
use std::str::FromStr;

use model::Sequence;

use crate::error::{Error, Result};

/// The maximum length of a name in bytes. The limit leaves room for the longer names of temporary directories.
const NAME_BYTES_MAX: usize = 200;

/// The name of a subject in a store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubjectName(String);

impl SubjectName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the name of a new subject. In addition to the rules for valid names, the name contains only letters,
    /// digits, `-`, `_`, `.` and `+`. Stores of earlier versions can contain names with other characters. Fails with
    /// `InvalidName`.
    pub fn chosen(name: &str) -> Result<Self> {
        let is_plain = |letter: char| letter.is_alphanumeric() || "-_.+".contains(letter);
        let parsed: Self = name.parse()?;
        if name.chars().all(is_plain) {
            return Ok(parsed);
        }
        let why = "it contains a space or another character that names do not have";
        Err(Error::InvalidName { name: name.to_owned(), why })
    }
}

impl FromStr for SubjectName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let why = if name.is_empty() {
            "it is empty"
        } else if name.starts_with('.') {
            "it begins with a dot"
        } else if name.contains('/') {
            "it contains a slash"
        } else if name.contains('@') {
            "it contains an @, which separates the sequence number"
        } else if name.chars().any(char::is_control) {
            "it contains a control character"
        } else if name.len() > NAME_BYTES_MAX {
            "it is longer than 200 bytes"
        } else {
            return Ok(Self(name.to_owned()));
        };
        Err(Error::InvalidName { name: name.to_owned(), why })
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses `NAME` or `NAME@SEQ`.
pub(crate) fn parse_spec(spec: &str) -> Result<(SubjectName, Option<Sequence>)> {
    let Some((name, sequence)) = spec.split_once('@') else { return Ok((spec.parse()?, None)) };
    let why = "what follows the @ is not a sequence number";
    let sequence =
        parse_sequence(sequence).ok_or_else(|| Error::InvalidName { name: spec.to_owned(), why })?;
    Ok((name.parse()?, Some(sequence)))
}

/// Parses a sequence number in the form that the store writes: digits without a leading zero.
pub(crate) fn parse_sequence(text: &str) -> Option<Sequence> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    canonical.then(|| text.parse().ok()).flatten().map(Sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_visible_directory() {
        for good in ["redis", "a", "job-7_x.y", "π", "..a".trim_start_matches('.')] {
            assert_eq!(good.parse::<SubjectName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/", "a@1", "a\nb", "a\0", &"x".repeat(201)] {
            assert!(matches!(bad.parse::<SubjectName>(), Err(Error::InvalidName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn what_is_new_has_a_plain_name() {
        for good in ["redis", "job-7_x.y", "g++", "π"] {
            assert_eq!(SubjectName::chosen(good).unwrap().as_str(), good);
        }
        for bad in ["x y", "a:b", "a\\b", "$x", "*", ".hidden", ""] {
            assert!(SubjectName::chosen(bad).is_err(), "{bad:?}");
        }
        assert!("x y".parse::<SubjectName>().is_ok(), "an earlier version has made such names");
    }

    #[test]
    fn a_sequence_has_one_spelling() {
        assert_eq!(parse_sequence("120"), Some(Sequence(120)));
        for bad in ["", "007", "-1", "+1", "1a", "99999999999999999999"] {
            assert_eq!(parse_sequence(bad), None, "{bad:?}");
        }
        assert!(parse_spec("redis@x").is_err());
        assert_eq!(parse_spec("redis@3").unwrap().1, Some(Sequence(3)));
    }
}
