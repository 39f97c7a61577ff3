//! Messages on a terminal that a program uses at the same time.
//!
//! Owns: the control sequences that insert a message above the line of the cursor. The line, for example a prompt or a
//! progress bar, moves down, and the cursor keeps its place in the line. The program therefore need not draw its line
//! again.
//! Invariants: one message is one text, so that a single write contains it. Terminals without control sequences get only
//! spaces and a carriage return before the message.
//! Does not: write.

use std::io::IsTerminal as _;

use ratatui::crossterm::terminal;

/// What is known about the terminal on standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Screen {
    columns: u16,
    /// Whether the terminal moves its cursor and inserts lines as a VT102 does.
    has_sequences: bool,
}

/// Returns the text that shows a message on standard error. `message` ends with a line break.
pub(crate) fn shown(message: String) -> String {
    if !std::io::stderr().is_terminal() {
        return message;
    }
    let columns = terminal::size().map_or(0, |(columns, _)| columns);
    let has_sequences = std::env::var("TERM").is_ok_and(|name| !name.is_empty() && name != "dumb");
    on(Screen { columns, has_sequences }, message)
}

fn on(screen: Screen, message: String) -> String {
    match screen {
        Screen { columns: 0, .. } => message,
        // As zsh does before its prompt (PROMPT_SP): in an empty line, the cursor stays in this line. Otherwise the
        // spaces reach into the next line.
        Screen { columns, has_sequences: false } => {
            format!("{}\r{message}", " ".repeat(usize::from(columns)))
        }
        Screen { columns, .. } => {
            let lines: Vec<&str> = message.trim_end_matches('\n').split('\n').collect();
            let rows_of = |line: &&str| line.chars().count().div_ceil(usize::from(columns)).max(1);
            let rows: usize = lines.iter().map(rows_of).sum();
            // Makes room below the cursor, and inserts the rows above its line.
            let room = "\x1bD".repeat(rows);
            let text = lines.join("\r\n");
            format!("{room}\x1b[{rows}A\x1b7\x1b[{rows}L\r{text}\x1b8\x1b[{rows}B")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 10;
    const ROWS: usize = 4;

    /// A terminal with the control sequences that this module uses.
    #[derive(Default)]
    struct Emulated {
        rows: Vec<String>,
        at: (usize, usize),
        saved: (usize, usize),
    }

    impl Emulated {
        /// Creates a terminal with `text` in a row, and the cursor behind the text.
        fn with(row: usize, text: &str) -> Self {
            let mut rows = vec![String::new(); ROWS];
            text.clone_into(&mut rows[row]);
            Self { rows, at: (row, text.len()), saved: (0, 0) }
        }

        fn down(&mut self) {
            if self.at.0 + 1 == ROWS {
                self.rows.remove(0);
                self.rows.push(String::new());
            } else {
                self.at.0 += 1;
            }
        }

        fn put(&mut self, letter: char) {
            if self.at.1 == COLUMNS {
                self.at.1 = 0;
                self.down();
            }
            let (row, column) = self.at;
            let mut letters: Vec<char> = self.rows[row].chars().collect();
            letters.resize(letters.len().max(column + 1), ' ');
            letters[column] = letter;
            self.rows[row] = letters.into_iter().collect();
            self.at.1 += 1;
        }

        fn write(&mut self, text: &str) {
            let mut rest = text;
            while let Some(letter) = rest.chars().next() {
                rest = &rest[letter.len_utf8()..];
                match letter {
                    '\r' => self.at.1 = 0,
                    '\n' => self.down(),
                    '\x1b' => rest = self.sequence(rest),
                    letter => self.put(letter),
                }
            }
        }

        fn sequence<'a>(&mut self, text: &'a str) -> &'a str {
            let (kind, rest) = text.split_at(1);
            match kind {
                "D" => self.down(),
                "7" => self.saved = self.at,
                "8" => self.at = self.saved,
                "[" => {
                    let end = rest.find(|letter: char| letter.is_ascii_alphabetic()).unwrap();
                    let count: usize = rest[..end].parse().unwrap();
                    match &rest[end..=end] {
                        "A" => self.at.0 -= count,
                        "B" => self.at.0 = (self.at.0 + count).min(ROWS - 1),
                        "L" => (0..count).for_each(|_| {
                            self.rows.insert(self.at.0, String::new());
                            self.rows.truncate(ROWS);
                        }),
                        other => panic!("{other}"),
                    }
                    return &rest[end + 1..];
                }
                other => panic!("{other}"),
            }
            rest
        }
    }

    #[test]
    fn a_message_is_above_the_line_of_the_cursor() {
        let screen = Screen { columns: COLUMNS as u16, has_sequences: true };
        for row in 0..ROWS {
            for (message, shown) in [
                ("killed\n", &["killed"][..]),
                ("a long message\n", &["a long mes", "sage"]),
                ("a\nb\n", &["a", "b"]),
            ] {
                let mut terminal = Emulated::with(row, "$ vi");
                terminal.write(&on(screen, message.to_owned()));
                let (row, column) = terminal.at;
                assert_eq!((terminal.rows[row].as_str(), column), ("$ vi", 4), "{:?}", terminal.rows);
                assert_eq!(terminal.rows[row - shown.len()..row], *shown, "{:?}", terminal.rows);
            }
        }
    }

    #[test]
    fn without_sequences_a_message_begins_a_line() {
        let screen = Screen { columns: COLUMNS as u16, has_sequences: false };
        for (text, row) in [("", 1), ("$ vi", 2)] {
            let mut terminal = Emulated::with(1, text);
            terminal.write(&on(screen, "killed\r\n".to_owned()));
            assert_eq!(terminal.rows[row].trim_end(), "killed    ".trim_end(), "{:?}", terminal.rows);
        }
        let unknown = Screen { columns: 0, has_sequences: true };
        assert_eq!(on(unknown, "killed\n".to_owned()), "killed\n");
    }
}
