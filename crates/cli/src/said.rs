//! Recent messages of this program in a file that a rollback of the program's files can cut off.
//!
//! If standard error of a guarded program is a file, it is rolled back with the other files of the program. The messages
//! about earlier restarts are then cut off, although they are not output of the program.
//!
//! Owns: the recent messages, and their positions in the file.
//! Invariants: a message is written again only if the file no longer contains it at its position. The total size and the
//! age of the messages are limited.
//! Does not: decide when messages may have been cut off; the caller does.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use guardian::Clock;

/// Maximum total size of the messages in bytes.
const BYTES_MAX: usize = 64 << 10;
/// Maximum age of the messages. Automatic rollbacks are bounded by `--files-back-max`.
const AGE_MAX: Duration = Duration::from_secs(600);

/// A regular file to which messages are written.
#[derive(Debug)]
pub(crate) struct Said {
    output: File,
    /// The same file, open for reading.
    input: File,
    recent: VecDeque<Written>,
    clock: Clock,
}

#[derive(Debug)]
struct Written {
    at: u64,
    text: String,
    time: Instant,
}

impl Said {
    /// Returns `None` if standard error is no regular file, or cannot be read.
    pub(crate) fn of_stderr() -> Option<Self> {
        Self::of(std::io::stderr().as_fd().try_clone_to_owned().ok()?.into())
    }

    fn of(output: File) -> Option<Self> {
        if !output.metadata().ok()?.is_file() {
            return None;
        }
        let input = File::open(format!("/proc/self/fd/{}", output.as_raw_fd())).ok()?;
        Some(Self { output, input, recent: VecDeque::new(), clock: Clock::default() })
    }

    /// Writes a message. An error is ignored, because the guardian must continue without a reader.
    pub(crate) fn write(&mut self, text: String) {
        let now = self.clock.now();
        self.write_of(text, now);
    }

    /// Writes a message that was first written at `time`.
    fn write_of(&mut self, text: String, time: Instant) {
        let before = self.length();
        // A single write prevents a mix with the lines of another program.
        if self.output.write_all(text.as_bytes()).is_err() {
            return;
        }
        let Some(at) = self.position_of(&text, before) else { return };
        self.recent.push_back(Written { at, text, time });
        let mut bytes: usize = self.recent.iter().map(|one| one.text.len()).sum();
        while let Some(oldest) = self.recent.front()
            && (bytes > BYTES_MAX || self.clock.now() - oldest.time > AGE_MAX)
        {
            bytes -= oldest.text.len();
            self.recent.pop_front();
        }
    }

    /// Writes the messages again that the file no longer contains.
    pub(crate) fn write_cut(&mut self) {
        let recent = std::mem::take(&mut self.recent);
        let (kept, cut): (VecDeque<_>, VecDeque<_>) =
            recent.into_iter().partition(|one| self.has(&one.text, one.at));
        self.recent = kept;
        for one in cut {
            self.write_of(one.text, one.time);
        }
    }

    fn length(&self) -> u64 {
        self.input.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Returns the position of a message that was just written. The program can write at the same time.
    fn position_of(&mut self, text: &str, before: u64) -> Option<u64> {
        let length = text.len() as u64;
        let end = self.output.stream_position().unwrap_or(0);
        let guesses = [end.checked_sub(length), self.length().checked_sub(length), Some(before)];
        guesses.into_iter().flatten().find(|at| self.has(text, *at))
    }

    fn has(&self, text: &str, at: u64) -> bool {
        let mut found = vec![0; text.len()];
        self.input.read_exact_at(&mut found, at).is_ok() && found == text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::NamedTempFile, Said) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let output = File::options().append(true).open(file.path()).unwrap();
        let said = Said::of(output).unwrap();
        (file, said)
    }

    fn read(file: &tempfile::NamedTempFile) -> String {
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn messages_that_were_cut_off_are_written_again_in_their_order() {
        let (file, mut said) = file();
        said.write("one\n".to_owned());
        let program =
            |text: &str| File::options().append(true).open(file.path()).unwrap().write_all(text.as_bytes());
        program("output\n").unwrap();
        let checkpoint = said.length();
        program("lost output\n").unwrap();
        said.write("two\n".to_owned());
        said.write("three\n".to_owned());
        said.write_cut();
        assert_eq!(read(&file), "one\noutput\nlost output\ntwo\nthree\n");
        for _ in 0..3 {
            file.as_file().set_len(checkpoint).unwrap();
            program("new output, longer than the lost output\n").unwrap();
            said.write_cut();
            assert_eq!(read(&file), "one\noutput\nnew output, longer than the lost output\ntwo\nthree\n");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let (file, mut said) = file();
        for number in 0..2000 {
            said.write(format!("{number} {}\n", "x".repeat(100)));
        }
        file.as_file().set_len(0).unwrap();
        said.write_cut();
        let text = read(&file);
        assert!(
            text.len() <= BYTES_MAX && text.contains("1999 ") && !text.contains("\n10 "),
            "{}",
            text.len()
        );
    }

    #[test]
    fn a_pipe_keeps_nothing() {
        let (_reader, writer) = std::io::pipe().unwrap();
        assert!(Said::of(File::from(std::os::fd::OwnedFd::from(writer))).is_none());
    }
}
