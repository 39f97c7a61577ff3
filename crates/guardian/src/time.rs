//! Times in the form in which commands and files show them.
//!
//! Owns: conversion between system time and RFC 3339 in UTC, and the microseconds of a duration.
//! Does not: write local time.

use std::time::{Duration, SystemTime};

/// Formats a time as RFC 3339 in UTC, to the microsecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let timestamp = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format!("{timestamp:.6}")
}

/// Parses an RFC 3339 time. Returns `None` if the text is not a time.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    text.parse::<jiff::Timestamp>().ok().map(SystemTime::from)
}

/// Returns the whole microseconds of a duration.
pub(crate) fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_survives_as_text() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        assert_eq!(rfc3339(time), "2023-11-14T22:13:20.123456Z");
        assert_eq!(parse(&rfc3339(time)), Some(time));
        assert_eq!(parse("yesterday"), None);
    }
}
