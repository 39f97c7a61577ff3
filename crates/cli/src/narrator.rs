//! The reports of a guardian on standard error or in the journal of systemd.
//!
//! Owns: the queue of messages, and the thread that writes the messages.
//! Invariants: a reader that hangs (a terminal after Ctrl-S, a pager, a logger) blocks the thread. It delays the
//! guardian only once, for at most `TIMEOUT`. Messages that do not fit into the queue are counted, and the count is
//! written in their place.
//! Does not: choose the text of messages.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use guardian::RunEvent;

use crate::journald::{self, Journal};
use crate::print;
use crate::said::Said;

/// Maximum length of the queue, in messages.
const MESSAGES_MAX: usize = 1024;
/// Maximum time for which the guardian waits until a message is written, if all earlier messages are written. If the
/// reader does not hang, messages therefore keep their place between the lines of the program.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum time for which the end of this program waits for the reader.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes the reports of a guardian.
#[derive(Default)]
pub(crate) struct Narrator {
    /// The name of the system whose components the guardian protects.
    system: Option<String>,
    writer: Option<Writer>,
    dropped: u64,
}

/// A report of the guardian.
#[derive(Default)]
struct Message {
    /// Number of messages that were dropped before this message.
    dropped: u64,
    text: String,
    fields: Vec<(String, String)>,
    /// Whether a rollback may have cut off earlier messages.
    follows_cut: bool,
}

/// The interface of the guardian to the writing thread.
struct Writer {
    messages: SyncSender<Message>,
    /// Receives one value for each message that was written.
    written: Receiver<()>,
    waiting: usize,
    /// Whether the thread writes to the journal, so that messages need fields.
    has_journal: bool,
}

impl Narrator {
    pub(crate) fn of_system(name: &str) -> Self {
        Self { system: Some(name.to_owned()), writer: None, dropped: 0 }
    }

    /// Writes an event of a subject after the earlier messages.
    pub(crate) fn tell(&mut self, subject: Option<&str>, event: &RunEvent) {
        // The thread is not started earlier, because the guardian copies this process while it has only one thread.
        if self.writer.is_none() {
            self.writer = Writer::start(Journal::of_stderr()).ok();
        }
        let text = match subject {
            Some(name) => format!("{name}: {event:#}"),
            None => format!("{event:#}"),
        };
        let mut message = Message { dropped: self.dropped, text, ..Message::default() };
        // The messages about a death are written after the rollback.
        message.follows_cut = matches!(
            event,
            RunEvent::Died { .. }
                | RunEvent::ChildDied { .. }
                | RunEvent::Faulted { .. }
                | RunEvent::FilesWentBack { .. }
        );
        let Some(writer) = &mut self.writer else { return message.print(&mut None) };
        if writer.has_journal {
            message.fields = journald::fields((self.system.as_deref(), subject), event);
        }
        self.write(message);
    }

    fn write(&mut self, message: Message) {
        let is_queued = self.writer.as_mut().is_some_and(|writer| writer.write(message));
        self.dropped = if is_queued { 0 } else { self.dropped + 1 };
    }
}

impl Message {
    /// Returns the message, preceded by the number of dropped messages.
    fn whole(&self, start: &str) -> String {
        let Self { dropped, text, .. } = self;
        match dropped {
            0 => format!("{start}{text}"),
            _ => {
                format!(
                    "{start}{dropped} messages were dropped here, since stderr was not read\n{start}{text}"
                )
            }
        }
    }

    fn print(&self, said: &mut Option<Said>) {
        let text = self.whole("undying: ");
        let Some(said) = said else { return print::say_beside_program(&text) };
        if self.follows_cut {
            said.write_cut();
        }
        said.write(print::message(&text));
    }
}

impl Writer {
    fn start(journal: Option<Journal>) -> guardian::Result<Self> {
        let (messages, queue) = sync_channel::<Message>(MESSAGES_MAX);
        let (tell, written) = channel::<()>();
        let has_journal = journal.is_some();
        guardian::in_background("undying-talk", move || {
            let mut said = Said::of_stderr();
            for message in queue {
                let is_sent = journal
                    .as_ref()
                    .is_some_and(|journal| journal.send(&message.whole(""), &message.fields).is_ok());
                if !is_sent {
                    message.print(&mut said);
                }
                // At the end of the program, the receiver is already dropped.
                let _ = tell.send(());
            }
        })?;
        Ok(Self { messages, written, waiting: 0, has_journal })
    }

    /// Queues a message. Returns whether the message fits into the queue.
    fn write(&mut self, message: Message) -> bool {
        self.waiting -= self.written.try_iter().count();
        if self.messages.try_send(message).is_err() {
            return false;
        }
        if self.waiting == 0 && self.written.recv_timeout(TIMEOUT).is_ok() {
            return true;
        }
        self.waiting += 1;
        true
    }
}

impl Drop for Narrator {
    fn drop(&mut self) {
        let Some(Writer { messages, written, .. }) = self.writer.take() else { return };
        drop(messages);
        let begun = guardian::Clock::default().now();
        let left = || LAST_TIMEOUT.saturating_sub(begun.elapsed());
        // An error means that the thread has ended.
        while written.recv_timeout(left()).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_messages_are_counted_and_do_not_block() {
        let (messages, queue) = sync_channel(2);
        let (_tell, written) = channel();
        let writer = Writer { messages, written, waiting: 1, has_journal: false };
        let mut narrator = Narrator { system: None, writer: Some(writer), dropped: 0 };
        let write = |narrator: &mut Narrator, number: u32| {
            let message =
                Message { dropped: narrator.dropped, text: number.to_string(), ..Message::default() };
            narrator.write(message);
        };
        for number in 0..5 {
            write(&mut narrator, number);
        }
        let received: Vec<_> = queue.try_iter().map(|message| message.text).collect();
        assert_eq!(received, ["0", "1"]);
        write(&mut narrator, 5);
        assert_eq!(
            queue.try_recv().unwrap().whole("undying: "),
            "undying: 3 messages were dropped here, since stderr was not read\nundying: 5"
        );
        write(&mut narrator, 6);
        assert_eq!(queue.try_recv().unwrap().whole("undying: "), "undying: 6");
    }
}
