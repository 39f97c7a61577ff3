//! Talk of a guardian on stderr, which never makes it wait for long.
//!
//! Owns: the lines that have not been written, and the thread that writes them.
//! Invariants: a terminal that was stopped by Ctrl-S, a pager or a logger that hangs holds up this thread, and the
//! guardian once, for a moment; lines that find no room are counted, and the count is written in their place.
//! Does not: word anything.

use std::fmt::Arguments;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::time::Duration;

use crate::print;

/// Lines that wait for a reader at most.
const LINES_MAX: usize = 1024;
/// How long the guardian waits until a line is written, if all before it are: with a reader that reads, lines keep their
/// place between those of the program.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How long the end of this program waits for a reader.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// Says what a guardian reports.
#[derive(Default)]
pub(crate) struct Narrator {
    writer: Option<Writer>,
    left_out: u64,
}

/// The thread that writes, as the guardian sees it.
struct Writer {
    lines: SyncSender<String>,
    /// One for each line that was written.
    written: Receiver<()>,
    waiting: usize,
}

impl Narrator {
    /// Writes a message, after the earlier ones.
    pub(crate) fn say(&mut self, what: Arguments<'_>) {
        // Not earlier: a guardian creates processes that are copies of this one while it has one thread.
        if self.writer.is_none() {
            self.writer = Writer::start().ok();
        }
        let Some(writer) = &mut self.writer else { return print::say(what) };
        let text = match self.left_out {
            0 => what.to_string(),
            count => {
                format!("undying: {count} messages were dropped here, since stderr was not read\n{what}")
            }
        };
        if writer.write(text) {
            self.left_out = 0;
        } else {
            self.left_out += 1;
        }
    }
}

impl Writer {
    fn start() -> guardian::Result<Self> {
        let (lines, queue) = sync_channel::<String>(LINES_MAX);
        let (tell, written) = channel::<()>();
        guardian::in_background("undying-talk", move || {
            for line in queue {
                print::say(format_args!("{line}"));
                // At the end the receiver is gone.
                let _ = tell.send(());
            }
        })?;
        Ok(Self { lines, written, waiting: 0 })
    }

    /// Whether there was room for a line.
    fn write(&mut self, line: String) -> bool {
        self.waiting -= self.written.try_iter().count();
        if self.lines.try_send(line).is_err() {
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
        let Some(Writer { lines, written, .. }) = self.writer.take() else { return };
        drop(lines);
        let begun = guardian::Clock::default().now();
        let left = || LAST_TIMEOUT.saturating_sub(begun.elapsed());
        // Until the thread has ended, and with it the sender.
        while written.recv_timeout(left()).is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_messages_are_counted_and_do_not_block() {
        let (lines, queue) = sync_channel(2);
        let (_tell, written) = channel();
        let mut narrator = Narrator { writer: Some(Writer { lines, written, waiting: 1 }), left_out: 0 };
        for number in 0..5 {
            narrator.say(format_args!("{number}"));
        }
        assert_eq!(queue.try_iter().collect::<Vec<_>>(), ["0", "1"]);
        narrator.say(format_args!("5"));
        let text = queue.try_recv().unwrap();
        assert_eq!(text, "undying: 3 messages were dropped here, since stderr was not read\n5");
        narrator.say(format_args!("6"));
        assert_eq!(queue.try_recv().unwrap(), "6");
    }
}
