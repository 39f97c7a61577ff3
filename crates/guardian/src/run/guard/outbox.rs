//! Events of a guard on their way to the host.
//!
//! Owns: the events that the host has not collected yet, and the time when people may read them.
//! Invariants: the host learns each event at once. While files of the subject (a protected process tree) are being rolled
//! back, people learn nothing, because their messages may be written to a file that is rolled back.
//! Does not: write messages.

use crate::event::RunEvent;

/// Events that the host has not collected yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// For the director, which decides about other subjects.
    news: Vec<RunEvent>,
    /// For people.
    messages: Vec<RunEvent>,
    /// Whether messages wait.
    holds: bool,
}

impl Outbox {
    /// Adds an event.
    pub(super) fn push(&mut self, event: RunEvent) {
        self.news.push(event.clone());
        self.messages.push(event);
    }

    /// Makes messages wait, or lets them pass again.
    pub(super) fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// Reports whether messages wait.
    pub(super) fn is_holding(&self) -> bool {
        self.holds
    }

    /// Returns the events that the director does not know yet.
    pub(super) fn take_news(&mut self) -> Vec<RunEvent> {
        std::mem::take(&mut self.news)
    }

    /// Returns the messages that people may receive now.
    pub(super) fn take_messages(&mut self) -> Vec<RunEvent> {
        if self.holds { Vec::new() } else { std::mem::take(&mut self.messages) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_and_news_do_not() {
        let mut outbox = Outbox::default();
        let died = [RunEvent::Died { pid: 7, signal: Some(9), exit: None }];
        let restored = [RunEvent::Restored { pid: 7, seq: 1, took_us: 1, age_us: None }];
        outbox.hold(true);
        outbox.push(died[0].clone());
        assert_eq!(outbox.take_news(), died);
        assert_eq!(outbox.take_messages(), []);
        outbox.push(restored[0].clone());
        outbox.hold(false);
        assert_eq!(outbox.take_news(), restored);
        assert_eq!(outbox.take_messages(), [died, restored].concat());
        assert!(outbox.take_news().is_empty() && outbox.take_messages().is_empty());
    }
}
