//! Rule 22: each walk through the code in ARCHITECTURE.md is short, and names modules that exist.
//!
//! A walk is a code block below a heading `### The way of …`. Each of its lines has a number, one or more modules below
//! `crates/`, and what happens there. A part of a line that contains a space is no module.

use super::tree::Tree;
use super::{Report, Rule};

const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "### The way of ";
/// The headings that must exist: the walk of a page, a pid, a restore, a death and a change of a file.
const WALKS: usize = 5;
/// Maximum number of modules of one walk.
const MODULES_MAX: usize = 12;

pub(super) struct Walks;

impl Rule for Walks {
    fn number(&self) -> u8 {
        22
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let Some(document) = tree.file(DOCUMENT) else { return };
        let mut walks = 0;
        let mut seen: Option<Vec<String>> = None;
        for (number, line) in document.text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
            if line.starts_with(HEADING) {
                walks += 1;
                seen = Some(Vec::new());
            } else if line.starts_with('#') {
                seen = None;
            }
            let Some(known) = seen.as_mut().filter(|_| is_step(line)) else { continue };
            for module in modules(line) {
                if !exists(tree, &module) {
                    report.add(
                        DOCUMENT,
                        number,
                        format!("there is no module `{module}`"),
                        "name what is there",
                    );
                }
                if known.contains(&module) {
                    let what = format!("the walk visits `{module}` twice");
                    report.add(
                        DOCUMENT,
                        number,
                        what,
                        "move the code that belongs together, or join the steps",
                    );
                }
                known.push(module);
                if known.len() == MODULES_MAX + 1 {
                    let what = format!("a walk with more than {MODULES_MAX} modules");
                    report.add(DOCUMENT, number, what, "shorten the way through the code");
                }
            }
        }
        if walks < WALKS {
            report.add(DOCUMENT, 1, format!("{walks} walks instead of {WALKS}"), "add the missing walk");
        }
    }
}

/// Reports whether a line is a step: a number, a space and a text.
fn is_step(line: &str) -> bool {
    let step = line.trim_start();
    step.split_once(' ').is_some_and(|(number, _)| number.parse::<u8>().is_ok())
}

/// Returns the modules of a step. A module behind a comma can leave out the crate of the module before.
fn modules(line: &str) -> Vec<String> {
    let step = line.trim_start().split_once(' ').map_or("", |(_, rest)| rest);
    let named = step.split("  ").next().unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    for part in named.split(", ").map(|part| part.trim().trim_end_matches("/*")) {
        if part.is_empty() || part.contains(' ') {
            continue;
        }
        let own = found.last().and_then(|module| module.split('/').next());
        found.push(own.map_or_else(|| part.to_owned(), |own| format!("{own}/{part}")));
    }
    found
}

/// Reports whether a crate, a folder or a file has this name.
fn exists(tree: &Tree, module: &str) -> bool {
    let (own, rest) = module.split_once('/').unwrap_or((module, ""));
    let path = format!("crates/{own}/src/{rest}");
    let (file, folder) =
        (format!("{}.rs", path.trim_end_matches('/')), format!("{}/", path.trim_end_matches('/')));
    tree.files.iter().any(|found| found.path == file || found.path.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn check(steps: &str) -> Vec<String> {
        let walk = format!("### The way of x\n\n```text\n{steps}\n```\n");
        let others = "### The way of y\n".repeat(WALKS - 1);
        let document = format!("{walk}\n## Levels\n\n 1 no/module here\n{others}");
        findings(
            &Walks,
            &[(DOCUMENT, &document), ("crates/a/src/b.rs", "//! b\n"), ("crates/a/src/c/mod.rs", "//! c\n")],
        )
    }

    #[test]
    fn a_walk_names_existing_modules_once() {
        assert_eq!(check(" 1 a/b, c        first\n 2 the program writes   nothing"), Vec::<String>::new());
        assert!(check(" 1 a/d    first")[0].contains("there is no module `a/d`"));
        assert!(check(" 1 a/b    first\n 2 a/b    again")[0].contains("twice"));
        let long: String = (1..=MODULES_MAX + 1).map(|step| format!("{step:2} a/b{step}  x\n")).collect();
        assert!(check(&long).iter().any(|finding| finding.contains("more than 12")));
    }

    #[test]
    fn a_missing_walk_is_found() {
        assert!(findings(&Walks, &[(DOCUMENT, "### The way of x\n")])[0].contains("1 walks instead of 5"));
    }
}
