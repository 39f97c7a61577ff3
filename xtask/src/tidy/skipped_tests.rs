//! Rule 11: no test is disabled.
//!
//! A test may not be disabled by an attribute, in a doc test, or by a list of names for the test runner in a script.

use super::tokens::follows;
use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const MEND: &str = "let it run; a test that lacks a kernel feature prints `unsupported: FEATURE` and returns";

pub(super) struct SkippedTests;

impl Rule for SkippedTests {
    fn number(&self) -> u8 {
        11
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in &tree.files {
            if file.is_rust() {
                check_attributes(file, report);
                check_doc_tests(file, report);
            } else if runs_tests(&file.path) {
                check_script(file, report);
            }
        }
    }
}

fn check_attributes(file: &SourceFile, report: &mut Report) {
    for index in 0..file.tokens.len() {
        let tokens = &file.tokens;
        let behind_condition = || {
            let end = tokens[index..].iter().position(|token| token.text == "]").unwrap_or(0);
            (index..index + end).any(|inner| follows(tokens, inner, &[",", "ignore"]))
        };
        let ignored = follows(tokens, index, &["#", "[", "ignore"])
            || follows(tokens, index, &["#", "[", "cfg_attr"]) && behind_condition();
        if ignored {
            report.add(&file.path, tokens[index].line, "test with `ignore`", MEND);
        }
    }
}

fn check_doc_tests(file: &SourceFile, report: &mut Report) {
    for (line, text) in file.lines() {
        let text = text.trim_start();
        let fence = text.strip_prefix("///").or(text.strip_prefix("//!")).unwrap_or_default().trim_start();
        let words = fence.strip_prefix("```").unwrap_or_default();
        if words.split(',').any(|word| word.trim().starts_with("ignore")) {
            report.add(&file.path, line, "doc test with `ignore`", MEND);
        }
    }
}

fn runs_tests(path: &str) -> bool {
    path.starts_with(".ci/") || path.ends_with("Makefile") || path.ends_with(".sh") || path.ends_with(".toml")
}

fn check_script(file: &SourceFile, report: &mut Report) {
    for (line, text) in file.lines() {
        if text.split_whitespace().any(|word| word == "--skip" || word.starts_with("--skip=")) {
            report.add(&file.path, line, "a list of tests to skip", MEND);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn a_switched_off_test_is_found_whatever_the_way() {
        for text in [
            "#[test]\n#[ignore]\nfn f() {}",
            "#[test]\n#[ignore = \"slow\"]\nfn f() {}",
            "#[cfg_attr(not(root), ignore)]\nfn f() {}",
            "macro_rules! m { () => { #[ignore] fn f() {} } }",
            "/// X.\n///\n/// ```ignore\n/// f();\n/// ```\nfn f() {}",
            "//! ```rust,ignore\n//! f();\n//! ```\n",
        ] {
            assert_eq!(findings(&SkippedTests, &[("crates/x/tests/a.rs", text)]).len(), 1, "{text}");
        }
        let script = "set -e\ncargo test -- --skip slow\n";
        assert_eq!(findings(&SkippedTests, &[(".ci/run", script)]), [".ci/run:2: a list of tests to skip"]);
    }

    #[test]
    fn other_uses_of_the_words_are_fine() {
        let text = "/// ```text\n/// ignore\n/// ```\n#[cfg_attr(unix, must_use)]\nfn ignore() { skip(); }";
        assert!(findings(&SkippedTests, &[("crates/x/src/a.rs", text)]).is_empty());
        assert!(
            findings(&SkippedTests, &[("docs/a.md", "rpm --skip x"), ("Makefile", "test:\n")]).is_empty()
        );
    }
}
