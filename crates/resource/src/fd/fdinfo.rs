//! fdinfo of a duplicate, as one kind needs it.
//!
//! Owns: taking the text inside the pause into memory that is kept, and finding lines in it afterwards.
//! Invariants: the text that is read is that of the duplicate in this process, so it needs no right to the subject's
//! `/proc`; one that is told holds for one `take`.
//! Does not: understand the lines of one kind.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use sys::{Errno, Error};

use crate::error::{ResourceError, Result};

/// The text of fdinfo.
#[derive(Debug, Default)]
pub struct FdInfo {
    raw: Vec<u8>,
    /// `raw` is the text of this pause.
    is_told: bool,
}

impl FdInfo {
    /// Takes the text that somebody else has read in this pause.
    pub fn tell(&mut self, text: &[u8]) {
        self.raw.clear();
        self.raw.extend_from_slice(text);
        self.is_told = true;
    }

    /// Reads the text of a descriptor of this process, over what was taken before, unless it was just told.
    pub fn take(&mut self, descriptor: impl AsFd) -> Result<()> {
        if std::mem::take(&mut self.is_told) {
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

    /// The value of a line that must be there and must be understood.
    pub fn parse<Value>(&self, name: &str, parse: impl FnOnce(&str) -> Option<Value>) -> Result<Value> {
        self.line(name).and_then(parse).ok_or_else(|| not_understood(name))
    }
}

/// The error for a line that is missing or not as expected.
#[must_use]
pub fn not_understood(name: &str) -> ResourceError {
    Error::path(format!("understand line {name} of"), "/proc/self/fdinfo", Errno::EINVAL).into()
}
