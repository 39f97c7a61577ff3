//! Arguments that several verbs (subcommands) share, and values with units.
//!
//! Owns: the forms of pids, images, names, durations and rates on the command line.
//! Does not: check that the named objects exist.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use guardian::{
    CODECS, Codec, CostMax, EVERY_MIN, GuardianError, MAX_PAUSE_MIN, Percent, RestartLimit, SizeLimit,
    StoreLocation, Success,
};
use model::{ByteCount, Pid};

const STORE: &str = "store";

/// Defines `--store`, which every verb has.
pub(crate) fn store() -> Arg {
    Arg::new(STORE).long("store").value_name("DIR").value_parser(value_parser!(PathBuf)).global(true).help(
        "The directory of the checkpoints [default: $XDG_STATE_HOME/undying, for root /var/lib/undying]",
    )
}

/// Returns the store from the command line, or the default store.
pub(crate) fn given_store(matches: &ArgMatches) -> Result<StoreLocation, GuardianError> {
    let named = matches.get_one::<PathBuf>(STORE);
    StoreLocation::new(named.map(PathBuf::as_path))
}

/// Returns the store from the command line; `None` if no store was given.
pub(crate) fn named_store(matches: &ArgMatches) -> Option<&Path> {
    matches.get_one::<PathBuf>(STORE).map(PathBuf::as_path)
}

/// Defines the option `--NAME` without a value.
pub(crate) fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// Defines the option `--NAME VALUE`.
pub(crate) fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// Defines a positional argument PID.
pub(crate) fn pid(help: &'static str) -> Arg {
    Arg::new("PID").value_parser(parse_pid).help(help)
}

/// Returns the PID from the command line.
pub(crate) fn given_pid(matches: &ArgMatches) -> Pid {
    matches.get_one::<Pid>("PID").copied().unwrap_or_default()
}

/// Defines a positional argument IMAGE.
pub(crate) fn image() -> Arg {
    Arg::new("IMAGE").required(true).help("A directory, NAME (its newest checkpoint) or NAME@SEQ")
}

/// Returns the IMAGE from the command line.
pub(crate) fn given_image(matches: &ArgMatches) -> String {
    matches.get_one::<String>("IMAGE").cloned().unwrap_or_default()
}

/// Defines a positional argument that is a name.
pub(crate) fn name(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).required(true).help(help)
}

/// Returns the name from the command line.
pub(crate) fn given(matches: &ArgMatches, id: &str) -> String {
    matches.get_one::<String>(id).cloned().unwrap_or_default()
}

const ON_RESTORE: &str = "Run a shell command after each restore, before the program goes on";

const ON_RESTORE_LONG: &str = "\
Run a shell command (sh -c) after each restore, before the program goes on.
The environment has UNDYING_NAME (the subject), UNDYING_IMAGE (NAME@SEQ, or the directory of the image), UNDYING_SEQ and \
UNDYING_PID (the root process, which is stopped). A command that fails, or takes more than 60 s, is reported, and the \
program goes on";

pub(crate) fn on_restore() -> Arg {
    option("on-restore", "CMD", ON_RESTORE).value_parser(value_parser!(OsString)).long_help(ON_RESTORE_LONG)
}

pub(crate) fn given_on_restore(matches: &ArgMatches) -> Option<OsString> {
    matches.get_one::<OsString>("on-restore").cloned()
}

pub(crate) fn lose_connections() -> Arg {
    flag(
        "lose-connections",
        "Accept that connections to other programs (sockets, pipes) are restored as closed by the peer",
    )
}

pub(crate) fn json() -> Arg {
    flag("json", "Print JSON")
}

/// The beginning of the help text of `--compress`, for commands that write an image.
pub(crate) const COMPRESS_PAGES: &str = "Compress the pages";

/// Defines `--compress`. `what` is the beginning of the help text.
pub(crate) fn compress(what: &str) -> Arg {
    let ways = CODECS.iter().map(|codec| format!("{} ({})", codec.name(), codec.summary()));
    let help = format!("{what}: {}", ways.collect::<Vec<_>>().join(" or "));
    let names: Vec<&str> = CODECS.iter().map(|codec| codec.name()).collect();
    Arg::new("compress")
        .long("compress")
        .value_name("CODEC")
        .hide_possible_values(true)
        .value_parser(PossibleValuesParser::new(names))
        .help(help)
}

/// Returns the codec from the command line.
pub(crate) fn given_compress(matches: &ArgMatches) -> Option<&'static dyn Codec> {
    guardian::codec(matches.get_one::<String>("compress")?)
}

/// The error for a value that an argument does not accept.
#[derive(Debug)]
pub(crate) struct Malformed(&'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

pub(crate) fn parse_pid(text: &str) -> Result<Pid, Malformed> {
    let number = text.parse().ok().filter(|number: &i32| *number > 0);
    number.map(Pid).ok_or(Malformed("a pid is a number above 0"))
}

/// Parses a duration: `10ms`, `2s`, `1m`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, Malformed> {
    const MALFORMED: Malformed = Malformed("a duration is a number with ms, s, m or h behind it");
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| MALFORMED)?;
    Duration::try_from(parsed).map_err(|_| MALFORMED)
}

/// Parses the time between two checkpoints.
pub(crate) fn every(text: &str) -> Result<Duration, Malformed> {
    match duration(text)? {
        every if every >= EVERY_MIN => Ok(every),
        _ => Err(Malformed("checkpoints can be taken every 10ms at most")),
    }
}

pub(crate) fn max_pause(text: &str) -> Result<Duration, Malformed> {
    match duration(text)? {
        limit if limit >= MAX_PAUSE_MIN => Ok(limit),
        _ => Err(Malformed("a pause budget is 1ms at least")),
    }
}

/// Parses a limit on restarts: `5/1m`.
/// Parses the time limit of a hold.
pub(crate) fn hold_time(text: &str) -> Result<Duration, Malformed> {
    let time = duration(text)?;
    if time > guardian::HELD_MAX {
        return Err(Malformed("at most 10m; a longer stop is a `checkpoint --kill` and a `restore`"));
    }
    Ok(time)
}

pub(crate) fn limit(text: &str) -> Result<RestartLimit, Malformed> {
    const MALFORMED: Malformed = Malformed("a limit is a number, a slash and a duration, like 5/1m");
    let (count, window) = text.split_once('/').ok_or(MALFORMED)?;
    let count = count.parse().map_err(|_| MALFORMED)?;
    Ok(RestartLimit { count, window: duration(window)? })
}

/// Parses the ends that count as success: exit codes and names of signals, separated by commas.
pub(crate) fn success(text: &str) -> Result<Success, Malformed> {
    const MALFORMED: Malformed =
        Malformed("the ends are exit codes up to 255 and names of signals, like 0,10,SIGUSR1");
    text.split(',').try_fold(Success::default(), |own, end| own.with(end.trim())).ok_or(MALFORMED)
}

/// Parses a size: `4096`, `500MiB`, `2GiB`. `500M` and `2G` mean the same sizes as `500MiB` and `2GiB`.
pub(crate) fn size(text: &str) -> Result<ByteCount, Malformed> {
    const MALFORMED: Malformed =
        Malformed("a size is a number above 0 with KiB, MiB, GiB or TiB behind it, or of bytes");
    const UNITS: [(&str, u32); 5] = [("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix("iB").unwrap_or(unit);
    // `iB` without a prefix is not a unit.
    let is_bare = unit.is_empty() && digits < text.len();
    let (_, shift) = UNITS.iter().find(|(name, _)| *name == unit && !is_bare).ok_or(MALFORMED)?;
    let number: u64 = number.parse().map_err(|_| MALFORMED)?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0);
    bytes.map(ByteCount).ok_or(MALFORMED)
}

/// Parses a percentage, `10`, `2.5` or `10%`, and returns a fraction. The value may exceed 100 %, because the undo log
/// of files can cost more time than the program itself needs.
pub(crate) fn percent(text: &str) -> Result<f64, Malformed> {
    const MALFORMED: Malformed = Malformed("a part of time is a number of percent above 0, like 10 or 2.5");
    let number: f64 = text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| MALFORMED)?;
    Percent::try_from(number).map(Percent::fraction).map_err(|_| MALFORMED)
}

/// Parses the maximum size of the checkpoints in the store: a size, or `off`.
pub(crate) fn store_max(text: &str) -> Result<SizeLimit, Malformed> {
    match text {
        "off" => Ok(SizeLimit::None),
        _ => size(text).map(SizeLimit::Bytes),
    }
}

/// Parses a limit of the costs of checkpoints: a number of per cent, or `off`.
pub(crate) fn cost_max(text: &str) -> Result<CostMax, Malformed> {
    match text {
        "off" => Ok(CostMax::Off),
        _ => percent(text).map(CostMax::Share),
    }
}

/// A set of CPUs.
#[derive(Clone, Debug)]
pub(crate) struct Processors(pub(crate) Vec<u64>);

/// Parses a set of CPUs like `0,2-3`. Each CPU is one bit.
pub(crate) fn processors(text: &str) -> Result<Processors, Malformed> {
    const MALFORMED: Malformed = Malformed("processors are numbers below 8192 and ranges, like 0,2-3");
    /// Maximum number of CPUs that Linux can be configured for.
    const PROCESSORS_MAX: usize = 8192;
    let mut words = vec![0_u64; PROCESSORS_MAX / 64];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number =
            |text: &str| text.parse().ok().filter(|number| *number < PROCESSORS_MAX).ok_or(MALFORMED);
        let (first, last): (usize, usize) = (number(first)?, number(last)?);
        if first > last {
            return Err(MALFORMED);
        }
        (first..=last).for_each(|number| words[number / 64] |= 1 << (number % 64));
    }
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    words.truncate(used);
    Ok(Processors(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("10ms").unwrap(), Duration::from_millis(10));
        assert_eq!(duration("2s").unwrap(), Duration::from_secs(2));
        assert_eq!(duration("1m").unwrap(), Duration::from_secs(60));
        assert_eq!(duration("1h 30m").unwrap(), Duration::from_secs(5400));
        for bad in ["", "10", "ms", "-1s", "1 parsec", "99999999999999999999s", "9999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pause_budget_leaves_room_for_a_stop() {
        assert_eq!(max_pause("20ms").unwrap(), Duration::from_millis(20));
        for bad in ["0.5ms", "999us", "5", "0s"] {
            assert!(max_pause(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn processors_are_numbers_and_ranges() {
        assert_eq!(processors("0,2-3").unwrap().0, [0b1101]);
        assert_eq!(processors("64").unwrap().0, [0, 1]);
        for bad in ["", "a", "3-2", "-1", "8192", "1,,2", "1-"] {
            assert!(processors(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("4096").unwrap(), ByteCount(4096));
        assert_eq!(size("500MiB").unwrap(), ByteCount(500 << 20));
        assert_eq!(size("2G").unwrap(), ByteCount(2 << 30));
        for bad in ["", "0", "iB", "GiB", "1MB", "-1", "1.5G", "5iB", "99999999999999999999", "99999999T"] {
            assert!(size(bad).is_err(), "{bad}");
            assert!(store_max(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_are_in_percent() {
        assert_eq!((percent("10").unwrap(), percent("2.5%").unwrap()), (0.1, 0.025));
        for bad in ["", "%", "0", "-1", "NaN", "inf", "ten"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_of_the_contract_hold() {
        assert!(every("10ms").is_ok() && every("9ms").is_err());
        assert_eq!(limit("5/1m").unwrap(), RestartLimit::default());
        assert!(limit("5").is_err() && limit("x/1m").is_err() && limit("5/1").is_err());
        assert!(parse_pid("0").is_err() && parse_pid("-3").is_err() && parse_pid("7").is_ok());
    }
}
