//! Untrusted text, escaped for output.
//!
//! Owns: `Escaped`, the only function through which messages, tables and log lines print untrusted text; `Word`, for
//! commands that messages advise.
//! Invariants: the output contains no character that moves the cursor, ends a line, or changes the order of displayed
//! text. All other characters are unchanged.
//! Does not: add quotes, except in `Word`. A name may still look like words of the surrounding message.

use std::fmt::{self, Write as _};

/// Displays a text with its control characters escaped: `\n`, `\t`, `\u{1b}`.
///
/// The subject chooses names of files and programs. If such a name is printed unescaped, an escape sequence or a line
/// break in the name can forge lines of a terminal or a log. Escaped are C0, DEL and C1 controls, line and paragraph
/// separators, and the controls of bidirectional text (Unicode 16, chapter 23.2, and UAX
/// #9).
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, |_| false)
    }
}

/// Displays a text like [`Escaped`], but keeps line breaks: for a whole message with already escaped parts.
#[derive(Clone, Copy, Debug)]
pub struct EscapedLines<'a>(pub &'a str);

impl fmt::Display for EscapedLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.0, |character| character == '\n')
    }
}

/// Displays a text as one word of a shell command, so that a user can copy the command. Unsafe characters are escaped as
/// bash, ksh and zsh read them (`$'\x1b'`).
#[derive(Clone, Copy, Debug)]
pub struct Word<'a>(pub &'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |character: char| character.is_alphanumeric() || "_./@%+=:,-".contains(character);
        if self.0.contains(is_unsafe) {
            f.write_str("$'")?;
            for character in self.0.chars() {
                match character {
                    '\'' | '\\' => write!(f, "\\{character}")?,
                    _ if is_unsafe(character) => {
                        let bytes = character.encode_utf8(&mut [0; 4]).as_bytes().to_vec();
                        bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                    }
                    _ => f.write_char(character)?,
                }
            }
            f.write_char('\'')
        } else if !self.0.is_empty() && self.0.chars().all(is_plain) {
            f.write_str(self.0)
        } else {
            write!(f, "'{}'", self.0.replace('\'', "'\\''"))
        }
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str, is_kept: impl Fn(char) -> bool) -> fmt::Result {
    let mut rest = text;
    while let Some((place, character)) =
        rest.char_indices().find(|(_, character)| is_unsafe(*character) && !is_kept(*character))
    {
        f.write_str(&rest[..place])?;
        for escaped in character.escape_default() {
            f.write_char(escaped)?;
        }
        rest = &rest[place + character.len_utf8()..];
    }
    f.write_str(rest)
}

/// Reports whether a terminal may interpret a character instead of displaying it.
fn is_unsafe(character: char) -> bool {
    let is_separator = matches!(character, '\u{2028}' | '\u{2029}');
    let is_bidi = matches!(
        character,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || is_separator || is_bidi
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_escaped_and_text_is_unchanged() {
        for (text, shown) in [
            ("", ""),
            ("/tmp/größe 漢字 \\x", "/tmp/größe 漢字 \\x"),
            ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
            ("\x1b[2Jx\x07\0\x7f", "\\u{1b}[2Jx\\u{7}\\u{0}\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}txt.exe\u{2066}\u{200f}\u{61c}", "\\u{202e}txt.exe\\u{2066}\\u{200f}\\u{61c}"),
            ("one\u{2028}two", "one\\u{2028}two"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
        assert_eq!(EscapedLines("a\x1b\nb").to_string(), "a\\u{1b}\nb");
    }

    #[test]
    fn a_shell_reads_each_word_as_the_text() {
        let all: String = (1..0x300).filter_map(char::from_u32).collect();
        for text in [
            "",
            "plain/@1.0",
            "with space",
            "it's $HOME `id` \\",
            "line\nbreak's \x1b[2J\\",
            "größe",
            "\u{202e}",
            &all,
        ] {
            let command = format!("printf %s {}", Word(text));
            let Ok(said) = std::process::Command::new("bash").args(["-c", &command]).output() else {
                return println!("unsupported: bash");
            };
            assert_eq!(String::from_utf8_lossy(&said.stdout), text, "{command}");
            assert!(!command.contains(is_unsafe), "{command:?}");
        }
        assert_eq!(Word("/var/lib/undying").to_string(), "/var/lib/undying");
    }
}
