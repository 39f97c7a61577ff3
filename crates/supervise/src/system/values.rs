//! Values with units in a system file, `system.toml`.
//!
//! Owns: durations, ranges of durations, rates, sizes, percentages and signals, and their text format and JSON schema.
//! Invariants: no value is zero, no duration is longer than `TIME_MAX`, and the start of a range is not above its end.
//! Does not: know the purpose of a value.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use model::{ByteCount, Signal};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use crate::status::{Success, signal_named};

/// The maximum duration. The limit prevents an overflow when a duration is added to a point in time.
const TIME_MAX: Duration = Duration::from_hours(10 * 365 * 24);

/// The highest number of a signal on Linux.
const SIGNAL_MAX: i32 = 64;

/// The error for a text that cannot be parsed as a value.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not of the form {example:?}")]
pub struct Malformed {
    text: String,
    example: &'static str,
}

/// Sets the JSON schema of a type.
macro_rules! schema {
    ($name:ident, $schema:tt) => {
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

/// Declares a type for values that are written as strings.
macro_rules! written {
    ($(#[$about:meta])* $name:ident($($field:ty),+) = $pattern:literal, $example:literal) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name($(pub $field),+);

        schema!($name, { "type": "string", "pattern": $pattern, "examples": [$example] });

        impl TryFrom<String> for $name {
            type Error = Malformed;

            fn try_from(text: String) -> Result<Self, Malformed> {
                Self::parse(&text).ok_or(Malformed { text, example: $example })
            }
        }
    };
}

written! {
    /// A duration: `50ms`, `2s`, `1m`, `1h 30m`.
    Time(Duration) = "^([0-9.]+ ?(ms|s|m|h) ?)+$", "50ms"
}

written! {
    /// A range of durations: `50ms..10s`.
    TimeRange(Duration, Duration) = "^.+\\.\\..+$", "50ms..10s"
}

written! {
    /// A number of events within a duration: `5/1m`.
    Rate(NonZeroU32, Duration) = "^[0-9]+/.+$", "5/1m"
}

written! {
    /// A size: `64KiB`, `1GiB`.
    Size(ByteCount) = "^[0-9]+ ?(B|KiB|MiB|GiB|TiB)$", "512MiB"
}

/// An end that counts as success: an exit code, or the name of a signal like `SIGUSR1`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "NumberOrName")]
pub struct SuccessfulEnd(String);

/// A number, or the name of a signal.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrName {
    Number(i64),
    Name(String),
}

impl NumberOrName {
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name,
        }
    }
}

/// A signal that ends a program: its number, or its name like `SIGINT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "NumberOrName")]
pub struct StopSignal(pub Signal);

impl Default for StopSignal {
    /// Returns SIGTERM.
    fn default() -> Self {
        Self(Signal(15))
    }
}

impl TryFrom<NumberOrName> for StopSignal {
    type Error = Malformed;

    fn try_from(signal: NumberOrName) -> Result<Self, Malformed> {
        let text = signal.text();
        let signal = text.parse().map_or_else(|_| signal_named(&text), |number| Some(Signal(number)));
        let is_signal = |signal: &Signal| (1..=SIGNAL_MAX).contains(&signal.get());
        signal.filter(is_signal).map(Self).ok_or(Malformed { text, example: "SIGINT" })
    }
}

schema!(StopSignal, { "type": ["integer", "string"], "examples": ["SIGINT", 2] });

/// A part of the time, as a fraction. In text form, a number of percent above 0: `10`, `2.5`.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub struct Percent(f64);

impl Percent {
    /// Returns the fraction: 0.1 for 10 percent.
    #[must_use]
    pub fn fraction(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Percent {
    type Error = Malformed;

    fn try_from(percent: f64) -> Result<Self, Malformed> {
        let is_valid = percent.is_finite() && percent > 0.0;
        let malformed = || Malformed { text: percent.to_string(), example: "10 or 2.5" };
        is_valid.then_some(Self(percent / 100.0)).ok_or_else(malformed)
    }
}

/// A limit of a part of the time: a number of percent, or `"off"` for no limit.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(try_from = "PercentOrOff")]
pub enum PercentLimit {
    /// The maximum part.
    Percent(Percent),
    /// There is no limit.
    Off,
}

/// The two forms of [`PercentLimit`] in the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum PercentOrOff {
    Percent(f64),
    Off(String),
}

impl TryFrom<PercentOrOff> for PercentLimit {
    type Error = Malformed;

    fn try_from(limit: PercentOrOff) -> Result<Self, Malformed> {
        match limit {
            PercentOrOff::Percent(percent) => Percent::try_from(percent).map(Self::Percent),
            PercentOrOff::Off(text) if text == "off" => Ok(Self::Off),
            PercentOrOff::Off(text) => Err(Malformed { text, example: "off" }),
        }
    }
}

/// A limit of a size: a size like `"4GiB"`, or `"off"` for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum SizeLimit {
    /// The maximum size.
    Size(Size),
    /// There is no limit.
    Off,
}

impl TryFrom<String> for SizeLimit {
    type Error = Malformed;

    fn try_from(text: String) -> Result<Self, Malformed> {
        match text.as_str() {
            "off" => Ok(Self::Off),
            _ => Size::try_from(text).map(Self::Size),
        }
    }
}

schema!(SizeLimit, { "type": "string", "examples": ["4GiB", "off"] });
schema!(PercentLimit, { "type": ["number", "string"], "examples": [10, "off"] });
schema!(Percent, { "type": "number", "exclusiveMinimum": 0, "examples": [10, 2.5] });

impl SuccessfulEnd {
    /// Adds this end to the ends that count as success.
    pub(super) fn added_to(&self, success: Success) -> Success {
        success.with(&self.0).unwrap_or(success)
    }
}

impl TryFrom<NumberOrName> for SuccessfulEnd {
    type Error = Malformed;

    fn try_from(end: NumberOrName) -> Result<Self, Malformed> {
        let text = end.text();
        match Success::default().with(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(Malformed { text, example: "10 or SIGUSR1" }),
        }
    }
}

schema!(SuccessfulEnd, { "type": ["integer", "string"], "examples": [10, "SIGUSR1"] });

impl Time {
    fn parse(text: &str) -> Option<Self> {
        let parsed: jiff::SignedDuration = text.parse().ok()?;
        Duration::try_from(parsed).ok().filter(|time| !time.is_zero() && *time <= TIME_MAX).map(Self)
    }
}

impl TimeRange {
    fn parse(text: &str) -> Option<Self> {
        let (least, most) = text.split_once("..")?;
        let (least, most) = (Time::parse(least)?.0, Time::parse(most)?.0);
        (least <= most).then_some(Self(least, most))
    }
}

impl Rate {
    fn parse(text: &str) -> Option<Self> {
        let (count, window) = text.split_once('/')?;
        Some(Self(count.trim().parse().ok()?, Time::parse(window.trim())?.0))
    }
}

impl Size {
    fn parse(text: &str) -> Option<Self> {
        const UNITS: [(&str, u32); 5] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0)];
        let (count, shift) =
            UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))?;
        let count: u64 = count.trim_end().parse().ok()?;
        let bytes = count.checked_mul(1 << shift).filter(|bytes| *bytes > 0)?;
        Some(Self(ByteCount(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_units() {
        assert_eq!(Time::parse("1m 30s"), Some(Time(Duration::from_secs(90))));
        let range = TimeRange::parse("50ms..10s");
        assert_eq!(range, Some(TimeRange(Duration::from_millis(50), Duration::from_secs(10))));
        let rate = Rate::parse("5/1m").map(|rate| (rate.0.get(), rate.1));
        assert_eq!(rate, Some((5, Duration::from_secs(60))));
        assert_eq!(Size::parse("64 KiB"), Some(Size(ByteCount(65_536))));
        assert_eq!(Size::parse("7B"), Some(Size(ByteCount(7))));
    }

    #[test]
    fn signals_are_read_by_name_and_by_number() {
        let read = |signal| StopSignal::try_from(signal).map(|signal| signal.0.get()).ok();
        let name = |name: &str| read(NumberOrName::Name(name.to_owned()));
        assert_eq!([name("SIGINT"), name("INT"), name("2"), read(NumberOrName::Number(2))], [Some(2); 4]);
        assert_eq!([name("SIGNONE"), name(""), name("0"), read(NumberOrName::Number(65))], [None; 4]);
    }

    #[test]
    fn nothing_else_is_read() {
        for text in ["", "0s", "5", "-1s", "1 fortnight", "100000h"] {
            assert_eq!(Time::parse(text), None, "{text}");
        }
        for text in ["10s..50ms", "1s", "..", "1s..", "0s..1s"] {
            assert_eq!(TimeRange::parse(text), None, "{text}");
        }
        for text in ["0/1m", "5", "5/", "/1m", "-1/1m"] {
            assert_eq!(Rate::parse(text), None, "{text}");
        }
        for text in ["", "0B", "5", "5 KB", "99999999999TiB", "-1B"] {
            assert_eq!(Size::parse(text), None, "{text}");
        }
    }
}
