//! The text of reasons, which events and errors state.
//!
//! Owns: the wording of the reasons that several places state, and the conversion of a reason with several lines to one line.
//! Does not: print.

use std::time::Duration;

use crate::error::GuardianError;

/// Returns a time in seconds.
pub(super) fn seconds(us: u64) -> String {
    format!("{:.1} s", Duration::from_micros(us).as_secs_f64())
}

/// Returns the reason that the newest checkpoint to which files can be rolled back is too old. The number 0 means the
/// beginning of the program.
pub(crate) fn too_old(seq: u64, age_us: u64, reason: &str) -> String {
    let from = if seq == 0 { "the beginning of the program".to_owned() } else { format!("checkpoint {seq}") };
    let age = seconds(age_us);
    format!("files cannot be rolled back since {from}, {age} ago, because {}", headline(reason))
}

/// Returns the reason that peers have received output that the newest checkpoint with file rollback does not contain.
pub(crate) fn output_sent(seq: u64, reason: &str) -> String {
    let from = if seq == 0 { "its beginning".to_owned() } else { format!("checkpoint {seq}") };
    format!("peers have received output that the program sent after {from}; {}", headline(reason))
}

/// Returns the reason that the program has made later data durable than the newest checkpoint with file rollback
/// contains, and that a peer may rely on this data.
pub(crate) fn told(seq: u64) -> String {
    let from = if seq == 0 { "its beginning".to_owned() } else { format!("checkpoint {seq}") };
    format!(
        "it has synced files after {from}, and has then sent data to a peer, which may rely on these files"
    )
}

/// Returns the reason that the program has changed files after its newest checkpoint.
pub(crate) fn changed_since(seq: u64) -> String {
    format!(
        "it has changed files after checkpoint {seq}, its newest, and its memory is not restored beside changed files"
    )
}

/// Joins the lines of a reason into one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // A line that ends with a colon introduces the next line. Other lines are items of a list.
        let between = if joined.is_empty() {
            ""
        } else if joined.ends_with(':') {
            " "
        } else {
            "; "
        };
        joined.push_str(between);
        joined.push_str(line);
    }
    joined
}

/// Returns a reason without its help and list: the first line, and the second line if the first line ends with a colon.
#[must_use]
pub fn headline(reason: &str) -> String {
    let count = if reason.lines().next().is_some_and(|line| line.trim_end().ends_with(':')) { 2 } else { 1 };
    one_line(&reason.lines().take(count).collect::<Vec<_>>().join("\n"))
}

/// Returns the message of an error without its advice.
pub(crate) fn headline_of(error: &GuardianError) -> String {
    parts_of(error).0
}

/// Returns the message of an error without its help text, and the help text.
pub(crate) fn parts_of(error: &GuardianError) -> (String, Option<String>) {
    let text = error.to_string();
    match text.split_once("\nhelp:") {
        Some((headline, help)) => (headline.to_owned(), Some(help.trim().to_owned())),
        None => (text, None),
    }
}
