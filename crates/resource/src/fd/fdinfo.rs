//! fdinfo of a duplicate, as one kind needs it.
//!
//! Owns: reading the text inside the pause into a reused buffer, and finding lines in it afterwards.
//! Invariants: the text is read for the duplicate in this process, so it needs no access to the subject's `/proc`. A
//! text that the caller sets is valid for one `take`.
//! Does not: interpret the lines of one kind.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use sys::{Errno, Error};

use crate::error::{ResourceError, Result};

/// The text of fdinfo.
#[derive(Debug, Default)]
pub struct FdInfo {
    raw: Vec<u8>,
    /// `raw` was set by the caller in this pause.
    is_set: bool,
}

impl FdInfo {
    /// Sets the text, which the caller has already read in this pause.
    pub fn set(&mut self, text: &[u8]) {
        self.raw.clear();
        self.raw.extend_from_slice(text);
        self.is_set = true;
    }

    /// Reads the text of a descriptor of this process, unless the caller has just set it.
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

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.raw).unwrap_or_default()
    }

    /// The value of a line `name: value`.
    #[must_use]
    pub fn line(&self, name: &str) -> Option<&str> {
        self.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// The parsed value of a line. Fails if the line is missing or does not parse.
    pub fn parse<Value>(&self, name: &str, parse: impl FnOnce(&str) -> Option<Value>) -> Result<Value> {
        self.line(name).and_then(parse).ok_or_else(|| unparsable(name))
    }
}

/// The error for a line that is missing or does not parse.
#[must_use]
pub fn unparsable(name: &str) -> ResourceError {
    Error::path(format!("parse line {name} of"), "/proc/self/fdinfo", Errno::EINVAL).into()
}
