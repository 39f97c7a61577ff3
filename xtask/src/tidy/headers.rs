//! Rule 5, second half: every Rust file begins with a header that describes the content of the file.

use super::tree::Tree;
use super::{Report, Rule};

pub(super) struct Headers;

impl Rule for Headers {
    fn number(&self) -> u8 {
        5
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust() {
            let title = file.text.lines().next().and_then(|line| line.strip_prefix("//!"));
            if title.is_none_or(|title| title.trim().is_empty()) {
                let mend = "say what it owns, its invariants, what it deliberately does not do";
                report.add(&file.path, 1, "file does not open with a `//!` header", mend);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn a_file_opens_with_its_header() {
        assert!(findings(&Headers, &[("crates/x/src/a.rs", "//! Owns a.\n")]).is_empty());
        for text in ["", "use a;\n", "//!\n", "// Owns a.\n", "#![allow(x)]\n//! Owns a.\n"] {
            let bad = findings(&Headers, &[("crates/x/tests/a.rs", text)]);
            assert_eq!(bad, ["crates/x/tests/a.rs:1: file does not open with a `//!` header"], "{text}");
        }
    }
}
