//! The house rules (coding rules) that a program can check.
//!
//! Owns: the registry of rules, and the form of a report.
//! Invariants: a rule has no list of exceptions. A file is exempt only because of a property of the file itself.
//! Does not: correct a violation.
//!
//! A new rule is a file in this directory and a line in [`RULES`].

mod bare_numbers;
mod circles;
mod clocks;
mod edges;
mod error_rows;
mod errors;
mod headers;
mod interfaces;
mod kernel_structs;
mod language;
mod limits;
mod names;
mod sizes;
mod skipped_tests;
mod structs;
mod tokens;
mod tree;
mod unsafe_code;
mod victims;
mod walks;
mod workplace;

use std::fmt;

use crate::failure::Failure;
use tree::Tree;

/// A house rule, or a part of a house rule.
trait Rule {
    /// Returns the number of the rule in CONTRIBUTING.md.
    fn number(&self) -> u8;
    /// Checks all files, and reports every violation.
    fn check(&self, tree: &Tree, report: &mut Report);
}

/// All rules, in the order of their numbers.
const RULES: &[&dyn Rule] = &[
    &unsafe_code::UnsafeCode,
    &interfaces::Interfaces,
    &kernel_structs::KernelStructs,
    &bare_numbers::BareNumbers,
    &sizes::Sizes,
    &headers::Headers,
    &errors::Errors,
    &error_rows::ErrorRows,
    &edges::Edges,
    &skipped_tests::SkippedTests,
    &victims::Victims,
    &limits::Limits,
    &workplace::Workplace,
    &names::Names,
    &language::Language,
    &circles::Circles,
    &clocks::Clocks,
    &structs::Structs,
    &walks::Walks,
];

/// The rule number for a file that cannot be parsed.
const UNREADABLE: u8 = 0;

/// A violation with its place and a correction.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Finding {
    path: String,
    line: usize,
    rule: u8,
    what: String,
    mend: String,
}

/// The violations that were found until now.
#[derive(Default)]
struct Report {
    rule: u8,
    findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, path: &str, line: usize, what: impl Into<String>, mend: impl Into<String>) {
        let (what, mend) = (what.into(), mend.into());
        self.findings.push(Finding { path: path.to_owned(), line, rule: self.rule, what, mend });
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: rule {}: {}; {}", self.path, self.line, self.rule, self.what, self.mend)
    }
}

/// Checks the rules with these numbers, or all rules if `only` is empty. Returns whether the rules hold.
pub(crate) fn run(only: &[u8]) -> Result<bool, Failure> {
    let tree = Tree::load()?;
    let findings = check(&tree, RULES, only);
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} files, {} findings", tree.files.len(), findings.len());
    Ok(findings.is_empty())
}

fn check(tree: &Tree, rules: &[&dyn Rule], only: &[u8]) -> Vec<Finding> {
    let mut report = Report { rule: UNREADABLE, findings: Vec::new() };
    for file in &tree.files {
        if let Some((line, error)) = &file.parse_error {
            report.add(&file.path, *line, format!("cannot be parsed: {error}"), "mend the syntax");
        }
    }
    for rule in rules.iter().filter(|rule| only.is_empty() || only.contains(&rule.number())) {
        report.rule = rule.number();
        rule.check(tree, &mut report);
    }
    report.findings.sort();
    report.findings.dedup();
    report.findings
}

/// Returns the findings of a rule for a simulated tree, each as `path:line: what`. The tests of the rules use this
/// function.
#[cfg(test)]
fn findings(rule: &dyn Rule, files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::of(files);
    let describe = |finding: &Finding| format!("{}:{}: {}", finding.path, finding.line, finding.what);
    check(&tree, &[rule], &[]).iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_does_not_parse_is_a_finding_of_its_own() {
        let tree = Tree::of(&[("crates/x/src/lib.rs", "//! x\nfn broken( {}\n")]);
        let findings = check(&tree, &[], &[]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].to_string().starts_with("crates/x/src/lib.rs:2: rule 0: cannot be parsed: "));
    }

    #[test]
    fn rules_stand_in_the_order_of_their_numbers() {
        assert!(RULES.is_sorted_by_key(|rule| rule.number()));
    }
}
