//! The fdinfo text of one duplicate, as one descriptor kind needs it.
//!
//! Owns: reading the text inside the pause into a reused buffer, and finding lines in it afterwards.
//! Invariants: the text is read for the duplicate in this process, so no access to the subject's `/proc` is needed. A
//! text that the caller sets is valid for one call of [`FdInfo::take`].
//! Does not: interpret the values of the lines; the descriptor kinds do.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use sys::{Errno, Error};

use crate::error::{ResourceError, Result};

/// The text of `/proc/self/fdinfo/N`.
#[derive(Debug, Default)]
pub struct FdInfo {
    raw: Vec<u8>,
    /// Set when the caller has set `raw` in this pause.
    is_set: bool,
}

impl FdInfo {
    /// Sets the text, which the caller has already read in this pause.
    pub fn set(&mut self, text: &[u8]) {
        self.raw.clear();
        self.raw.extend_from_slice(text);
        self.is_set = true;
    }

    /// Reads the text for a descriptor of this process, unless the caller has just set the text.
    pub fn take(&mut self, descriptor: impl AsFd) -> Result<()> {
        if std::mem::take(&mut self.is_set) {
            return Ok(());
        }
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd());
        self.raw.clear();
        File::open(&path)
            .and_then(|mut file| file.read_to_end(&mut self.raw))
            .map_err(|error| Error::path("read", &path, error))?;
        Ok(())
    }

    /// Returns the whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.raw).unwrap_or_default()
    }

    /// Returns the value of a line `name: value`.
    #[must_use]
    pub fn line(&self, name: &str) -> Option<&str> {
        self.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Parses the value of a line. Fails if the line is missing or does not parse.
    pub fn parse<Value>(&self, name: &str, parse: impl FnOnce(&str) -> Option<Value>) -> Result<Value> {
        self.line(name).and_then(parse).ok_or_else(|| unparsable(name))
    }
}

/// Returns the error for a line that is missing or does not parse.
#[must_use]
pub fn unparsable(name: &str) -> ResourceError {
    Error::path(format!("parse line {name} of"), "/proc/self/fdinfo", Errno::EINVAL).into()
}
