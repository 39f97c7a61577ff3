//! Rule 18: plain technical English.
//!
//! Owns: the maximum length of sentences in doc comments and documents, and the list of words to replace.
//! Does not: check the meaning of a text. A word is added to the list when the workspace no longer contains it.

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

/// Maximum number of words in a sentence. New text should have at most 25.
const WORDS_MAX: usize = 40;

/// Terms that must not appear in comments and documents, each with its replacement. A term is a whole word or phrase.
const TERMS: [(&str, &str); 13] = [
    ("in vain", "aborted, wasted"),
    ("robbed", "steal time"),
    ("household", "process reaper"),
    ("crew", "worker pool"),
    ("scribe", "writer thread"),
    ("escort", "post-restore tracer"),
    ("keeper", "fd holder"),
    ("whoever", "the noun of the party"),
    ("somebody", "the noun of the party"),
    ("anybody", "the noun of the party"),
    ("nobody", "no, with the noun of the party"),
    ("let go", "resumed, detached"),
    ("put off", "deferred, skipped in pre-copy"),
];
pub(super) struct Language;

impl Rule for Language {
    fn number(&self) -> u8 {
        18
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in &tree.files {
            // This file contains the terms itself.
            let is_own = file.path.ends_with("tidy/language.rs");
            let (blocks, is_prose): (_, fn(&str) -> bool) = match file.path.rsplit('.').next() {
                Some("rs") if !is_own => (doc_blocks(file), is_comment),
                Some("md") => (paragraphs(file), |_| true),
                _ => continue,
            };
            for (line, block) in blocks {
                for sentence in sentences(&block) {
                    let words = sentence.split_whitespace().count();
                    if words > WORDS_MAX {
                        report.add(
                            &file.path,
                            line,
                            format!("a sentence of {words} words"),
                            "make it two; one idea a sentence",
                        );
                    }
                }
            }
            for (line, text) in file.lines().filter(|(_, text)| is_prose(text)) {
                for (term, instead) in TERMS.iter().filter(|(term, _)| has_term(text, term)) {
                    report.add(&file.path, line, format!("`{term}`"), format!("write: {instead}"));
                }
            }
        }
    }
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// Reports whether a line contains a term as whole words, outside of code spans.
fn has_term(line: &str, term: &str) -> bool {
    let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`").to_lowercase();
    let is_edge =
        |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_');
    text.match_indices(term).any(|(at, _)| {
        is_edge(text[..at].chars().next_back()) && is_edge(text[at + term.len()..].chars().next())
    })
}

/// Splits a document into blocks of text, without code and headings. In a table, each cell ends a sentence.
fn paragraphs(file: &SourceFile) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_code = false;
    for (line, text) in file.lines() {
        let trimmed = text.trim();
        if trimmed.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !trimmed.starts_with(['#', '<']) {
            // Each line is a block, so that a finding has a line number.
            let text = if trimmed.starts_with('|') { trimmed.replace('|', ". ") } else { trimmed.to_owned() };
            blocks.push((line, text));
        }
    }
    blocks
}

/// Returns the doc comments of a file, each with its first line number. Code blocks are left out.
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

/// Splits a block into sentences. A sentence ends with a punctuation mark, at an empty line, or before a list item, a
/// heading or a table row.
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
    fn documents_have_the_same_rule_and_code_in_them_has_none() {
        let long = vec!["word"; 41].join(" ");
        let findings = |text: &str| super::super::findings(&Language, &[("docs/a.md", text)]).len();
        assert_eq!(findings(&format!("{long}.\n")), 1);
        assert_eq!(findings(&format!("```text\n{long}\n```\n")), 0);
        assert_eq!(findings(&format!("| {} | {} |\n", &long[..100], &long[..100])), 0);
        assert_eq!(findings("Whoever reads this.\n"), 1);
        assert_eq!(findings("The option `--whoever`, and whoeverish.\n"), 0);
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
        let text = "//! It waits for nobody; `nobody` is a user.\n";
        assert_eq!(findings(&Language, &[("crates/guardian/src/lib.rs", text)]).len(), 1);
    }
}
