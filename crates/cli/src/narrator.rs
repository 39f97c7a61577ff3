//! Talk of a guardian on stderr, which never makes it wait.
//!
//! Owns: the lines that have not been written, and the thread that writes them.
//! Invariants: a terminal that was stopped by Ctrl-S, a pager or a logger that hangs holds up this thread alone; lines
//! that find no room are counted, and the count is written in their place.
//! Does not: word anything.

use std::fmt::Arguments;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use crate::print;

/// Lines that wait for a reader at most.
const LINES_MAX: usize = 1024;
/// How long the end of this program waits for a reader.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says what a guardian reports.
#[derive(Default)]
pub(crate) struct Narrator {
    writer: Option<Writer>,
    left_out: u64,
}

/// What waits to be written, and the end of the thread that writes it.
type Writer = (SyncSender<String>, Receiver<()>);

impl Narrator {
    /// Says something, after what was said before. Does not wait until it is written.
    pub(crate) fn say(&mut self, what: Arguments<'_>) {
        // Not earlier: a guardian creates processes that are copies of this one while it has one thread.
        if self.writer.is_none() {
            self.writer = start().ok();
        }
        let Some((lines, _)) = &self.writer else { return print::say(what) };
        let text = match self.left_out {
            0 => what.to_string(),
            count => format!("undying: {count} lines were left out here, since nobody read stderr\n{what}"),
        };
        match lines.try_send(text) {
            Ok(()) => self.left_out = 0,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.left_out += 1,
        }
    }
}

impl Drop for Narrator {
    fn drop(&mut self) {
        if let Some((lines, is_done)) = self.writer.take() {
            drop(lines);
            // An answer or the end of the thread.
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }
}

fn start() -> guardian::Result<Writer> {
    let (lines, waiting) = sync_channel::<String>(LINES_MAX);
    let (done, is_done) = channel::<()>();
    guardian::in_background("undying-talk", move || {
        let _tells_its_end = done;
        waiting.into_iter().for_each(|line| print::say(format_args!("{line}")));
    })?;
    Ok((lines, is_done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_takes_are_counted_and_hold_nobody_up() {
        let (lines, waiting) = sync_channel(2);
        let (_done, is_done) = channel();
        let mut narrator = Narrator { writer: Some((lines, is_done)), left_out: 0 };
        for number in 0..5 {
            narrator.say(format_args!("{number}"));
        }
        assert_eq!(waiting.try_iter().collect::<Vec<_>>(), ["0", "1"]);
        narrator.say(format_args!("5"));
        let text = waiting.try_recv().unwrap();
        assert_eq!(text, "undying: 3 lines were left out here, since nobody read stderr\n5");
        narrator.say(format_args!("6"));
        assert_eq!(waiting.try_recv().unwrap(), "6");
    }
}
