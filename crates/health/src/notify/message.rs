//! The lines of a message of sd_notify(3).
//!
//! Owns: the known assignments and their values.
//! Invariants: an unknown or invalid assignment is ignored. The other assignments of the message are still used.
//! Does not: check the sender.

use std::time::Duration;

use sys::Errno;

/// Maximum number of stored bytes of a status text. A line of a terminal is shorter.
const STATUS_BYTES_MAX: usize = 1024;

/// A report of a program about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sign {
    /// `READY=1`: the program has started, or has reloaded its configuration.
    Ready,
    /// `RELOADING=1`: the program reloads its configuration. `READY=1` follows.
    Reloading,
    /// `STOPPING=1`: the program is about to exit.
    Stopping,
    /// `WATCHDOG=1`: the program is alive.
    Watchdog,
    /// `WATCHDOG=trigger`: the program has detected an internal error. The receiver acts like after a missed keep-alive
    /// message.
    WatchdogTrigger,
    /// `WATCHDOG_USEC=`: the new maximum time between two `WATCHDOG=1`. Zero means that no keep-alive messages are
    /// expected.
    WatchdogInterval(Duration),
    /// `STATUS=`: a human-readable text of at most 1024 bytes. The text may contain control characters.
    Status(String),
    /// `ERRNO=`: the error with which the program exits.
    Errno(Errno),
}

/// Returns the reports in a message, in the order of the lines.
pub(super) fn parse(message: &[u8]) -> Vec<Sign> {
    message.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Sign> {
    let equals = memchr::memchr(b'=', line)?;
    let (name, value) = (&line[..equals], &line[equals + 1..]);
    match (name, value) {
        (b"READY", b"1") => Some(Sign::Ready),
        (b"RELOADING", b"1") => Some(Sign::Reloading),
        (b"STOPPING", b"1") => Some(Sign::Stopping),
        (b"WATCHDOG", b"1") => Some(Sign::Watchdog),
        (b"WATCHDOG", b"trigger") => Some(Sign::WatchdogTrigger),
        (b"WATCHDOG_USEC", _) => number(value).map(Duration::from_micros).map(Sign::WatchdogInterval),
        (b"STATUS", _) => {
            let kept = &value[..value.len().min(STATUS_BYTES_MAX)];
            Some(Sign::Status(String::from_utf8_lossy(kept).into_owned()))
        }
        (b"ERRNO", _) => {
            number(value).and_then(|errno| i32::try_from(errno).ok()).map(Errno).map(Sign::Errno)
        }
        _ => None,
    }
}

/// Parses a number that consists of decimal digits only, without a sign.
fn number(value: &[u8]) -> Option<u64> {
    let is_plain = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_are_read_in_their_order_and_others_are_left_out() {
        let text = b"READY=1\nSTATUS=so far = good\nMAINPID=1\nX_OWN=2\n\nWATCHDOG_USEC=2500000\nERRNO=2\nWATCHDOG=1";
        let expected = [
            Sign::Ready,
            Sign::Status("so far = good".to_owned()),
            Sign::WatchdogInterval(Duration::from_millis(2500)),
            Sign::Errno(Errno::ENOENT),
            Sign::Watchdog,
        ];
        assert_eq!(parse(text), expected);
        assert_eq!(parse(b"WATCHDOG=trigger\nSTOPPING=1\nRELOADING=1").len(), 3);
    }

    #[test]
    fn values_that_are_none_are_left_out() {
        let none = b"READY=0\nREADY=1 \nready=1\nWATCHDOG=2\nWATCHDOG_USEC=-1\nWATCHDOG_USEC=\n=\n\xff=1\nERRNO=+1\nERRNO=99999999999\n";
        assert_eq!(parse(none), []);
        assert_eq!(parse(b""), []);
    }

    #[test]
    fn a_status_is_cut_and_made_text() {
        let long = [b"STATUS=\xff".to_vec(), vec![b'a'; 4000]].concat();
        let [Sign::Status(text)] = &parse(&long)[..] else { panic!("no status") };
        assert!(text.starts_with('\u{fffd}') && text.chars().count() == STATUS_BYTES_MAX);
    }
}
