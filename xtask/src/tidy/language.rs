//! Rule 18: plain technical English.
//!
//! Owns: the length of sentences in doc comments, and words that the field has another term for.
//! Does not: judge what needs a reader. A word is listed here once the tree is free of it.

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

/// Words of a sentence in a doc comment, at most. New text aims at 25.
const WORDS_MAX: usize = 40;

/// Words that are not written, and the term instead.
const WORDS: [(&str, &str); 2] = [("in vain", "aborted, wasted"), ("robbed", "steal time")];

pub(super) struct Language;

impl Rule for Language {
    fn number(&self) -> u8 {
        18
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust() {
            for (line, block) in doc_blocks(file) {
                for sentence in sentences(&block) {
                    let words = sentence.split_whitespace().count();
                    if words > WORDS_MAX {
                        let what = format!("a sentence of {words} words in a doc comment");
                        report.add(&file.path, line, what, "make it two; one idea a sentence");
                    }
                }
            }
            // This file names the words.
            if file.path.ends_with("tidy/language.rs") {
                continue;
            }
            for (line, text) in file.lines().filter(|(_, text)| text.trim_start().starts_with("//")) {
                for (word, term) in WORDS.iter().filter(|(word, _)| text.to_lowercase().contains(word)) {
                    report.add(&file.path, line, format!("`{word}`"), format!("write: {term}"));
                }
            }
        }
    }
}

/// The doc comments of a file, each with its first line; code blocks are left out.
fn doc_blocks(file: &SourceFile) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut last = None;
    let mut is_code = false;
    for (line, text) in file.lines() {
        let trimmed = text.trim_start();
        let Some(doc) = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!")) else { continue };
        if last != Some(line - 1) {
            blocks.push((line, String::new()));
            is_code = false;
        }
        last = Some(line);
        if doc.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if let Some((_, block)) = blocks.last_mut().filter(|_| !is_code) {
            block.push_str(doc);
            block.push('\n');
        }
    }
    blocks
}

/// Sentences end with a mark, at an empty line, and where a list item, a heading or a table row begins.
fn sentences(block: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in block.lines() {
        let is_new = line.trim().is_empty() || line.trim_start().starts_with(['-', '*', '#', '|']);
        if is_new {
            found.push(String::new());
        }
        for word in line.split_whitespace() {
            if let Some(sentence) = found.last_mut() {
                sentence.push_str(word);
                sentence.push(' ');
            }
            if word.ends_with(['.', ';', ':', '!', '?']) {
                found.push(String::new());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn found(text: &str) -> Vec<String> {
        findings(&Language, &[("crates/x/src/lib.rs", text)])
    }

    #[test]
    fn a_long_sentence_is_found_and_several_short_ones_are_not() {
        let long = format!("//! {}.\n", vec!["word"; 41].join(" "));
        assert_eq!(found(&long).len(), 1);
        let short = format!("//! {}. {}.\n", vec!["word"; 40].join(" "), vec!["word"; 40].join(" "));
        assert_eq!(found(&short), Vec::<String>::new());
        let code = format!("//! ```text\n//! {}\n//! ```\n", vec!["word"; 90].join(" "));
        assert_eq!(found(&code), Vec::<String>::new());
        let items = format!("//! - {}\n//! - {}\n", vec!["word"; 30].join(" "), vec!["word"; 30].join(" "));
        assert_eq!(found(&items), Vec::<String>::new());
    }

    #[test]
    fn a_word_that_has_a_term_is_found_in_comments_only() {
        assert_eq!(found("//! Copied in vain.\n").len(), 1);
        assert_eq!(found("//! x\n// Robbed of its processor.\n").len(), 1);
        assert_eq!(found("//! x\nconst S: &str = \"in vain\";\n"), Vec::<String>::new());
    }
}
