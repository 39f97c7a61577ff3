//! Reasons why checkpoints were not taken. Each reason is reported once and counted.
//!
//! Owns: the comparison of messages. Messages that differ only in numbers have the same reason.
//! Invariants: the memory for reasons is bounded, whatever a subject does.
//! Does not: write the messages.

use crate::record::RefusalReport;

/// Maximum number of distinct reasons. A longer list would not help to find the problem of a subject with more reasons.
const REASONS_MAX: usize = 32;
/// The reason under which all further reasons are counted.
const OTHERS: &str = "other reasons";

/// The reasons so far, each with its message without numbers.
#[derive(Debug, Default)]
pub(super) struct Reasons(Vec<(String, RefusalReport)>);

impl Reasons {
    /// Counts a message. Returns true if its reason is new.
    pub(super) fn note(&mut self, message: &str) -> bool {
        self.note_many(message, 1)
    }

    /// Counts a message `count` times. Returns true if its reason is new.
    pub(super) fn note_many(&mut self, message: &str, count: u32) -> bool {
        let (count, key) = (u64::from(count), without_numbers(message));
        let is_new = self.0.iter().all(|(known, _)| *known != key);
        let has_room = self.0.len() < REASONS_MAX;
        let (key, reason) = if is_new && !has_room { (OTHERS.to_owned(), OTHERS) } else { (key, message) };
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => known.count += count,
            None => self.0.push((key, RefusalReport { reason: reason.to_owned(), count })),
        }
        is_new && has_room
    }

    /// Returns every reason with its count, in the order of first appearance.
    pub(super) fn counts(&self) -> Vec<RefusalReport> {
        self.0.iter().map(|(_, count)| count.clone()).collect()
    }
}

/// Returns the message without the words that contain a digit (pids, addresses, inodes).
pub(crate) fn without_numbers(message: &str) -> String {
    let words = message.split(|letter: char| !letter.is_ascii_alphanumeric());
    let plain: Vec<&str> =
        words.filter(|word| !word.is_empty() && !word.bytes().any(|byte| byte.is_ascii_digit())).collect();
    plain.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_same_whatever_its_numbers() {
        let mut reasons = Reasons::default();
        assert!(reasons.note("pid 7: fd 3 (pipe) at 0x7f12: no"));
        assert!(!reasons.note("pid 12: fd 44 (pipe) at 0xab00: no"));
        assert!(reasons.note("pid 7: fd 3 (socket) at 0x7f12: no"));
        let counts: Vec<u64> = reasons.counts().iter().map(|one| one.count).collect();
        assert_eq!(counts, [2, 1]);
        assert_eq!(reasons.counts()[0].reason, "pid 7: fd 3 (pipe) at 0x7f12: no");
    }

    #[test]
    fn there_is_an_end_to_reasons() {
        let mut reasons = Reasons::default();
        for length in 1..200 {
            reasons.note(&"x".repeat(length));
        }
        assert_eq!(reasons.counts().len(), REASONS_MAX + 1);
        assert_eq!(reasons.counts().last().unwrap().count, 199 - REASONS_MAX as u64);
    }
}
