//! Rule 2: a module for a kernel interface documents the origin of the interface.
//!
//! The rule applies to a file of `crates/sys/src` whose code outside tests calls the kernel. Such a file contains
//! `unsafe`, uses `rustix` beyond its error type, or contains a path below `/proc`, `/sys` or `/dev`.

use super::tokens::{Shape, Token, follows};
use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const FOLDER: &str = "crates/sys/src/";
/// The file that contains the registry of probes.
const REGISTRY: &str = "crates/sys/src/feature.rs";
/// The text of a `Probe:` line whose quoted names are entries of the registry.
const REGISTRY_NAME: &str = "features::REGISTRY";

/// The lines of the header, each with the meaning of the text after the colon.
const LINES: [(&str, &str); 4] = [
    ("Man page:", "the manual pages"),
    ("Since:", "the oldest kernel"),
    ("Probe:", "how its absence is noticed"),
    ("Fallback:", "what happens without it"),
];

pub(super) struct Interfaces;

impl Rule for Interfaces {
    fn number(&self) -> u8 {
        2
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust().filter(|file| file.path.starts_with(FOLDER) && talks_to_kernel(file)) {
            for (name, meaning) in LINES {
                match header_line(file, name) {
                    Some((line, value)) if name == "Probe:" => check_probe(tree, file, line, value, report),
                    Some(_) => {}
                    None => {
                        let what = format!("kernel interface without `//! {name}` in its header");
                        report.add(&file.path, 1, what, format!("add the line with {meaning}"));
                    }
                }
            }
        }
    }
}

fn header_line<'file>(file: &'file SourceFile, name: &str) -> Option<(usize, &'file str)> {
    let header = file.lines().take_while(|(_, text)| text.starts_with("//!"));
    header
        .filter_map(|(line, text)| Some((line, text["//!".len()..].trim().strip_prefix(name)?.trim())))
        .find(|(_, value)| !value.is_empty())
}

/// Checks that the registry contains the probes that a `Probe:` line names.
fn check_probe(tree: &Tree, file: &SourceFile, line: usize, value: &str, report: &mut Report) {
    if !value.contains(REGISTRY_NAME) {
        return;
    }
    for name in value.split('"').skip(1).step_by(2) {
        let literal = format!("\"{name}\"");
        let registered = tree.file(REGISTRY).is_some_and(|registry| {
            registry.product_tokens().any(|index| registry.tokens[index].text == literal)
        });
        if !registered {
            let mend = format!("register it in {REGISTRY}, or say how else the interface is probed");
            report.add(&file.path, line, format!("probe {literal} is not in the registry"), mend);
        }
    }
}

fn talks_to_kernel(file: &SourceFile) -> bool {
    file.product_tokens().any(|index| {
        let token = &file.tokens[index];
        match token.shape {
            Shape::Word => token.text == "unsafe" || uses_rustix(&file.tokens, index),
            Shape::Literal => {
                ["\"/proc/", "\"/sys/", "\"/dev/"].iter().any(|start| token.text.starts_with(start))
            }
            _ => false,
        }
    })
}

fn uses_rustix(tokens: &[Token], index: usize) -> bool {
    follows(tokens, index, &["rustix", ":", ":"])
        && !follows(tokens, index + 3, &["io", ":", ":", "Errno"])
        && !follows(tokens, index + 3, &["io", ":", ":", "Result"])
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    const HEADER: &str = "//! X.\n//!\n//! Man page: x(2)\n//! Since: Linux 5.4\n";

    fn check(rest: &str) -> Vec<String> {
        let registry = "//! f\nconst NAME: &str = \"known\";\n";
        findings(&Interfaces, &[("crates/sys/src/x.rs", &format!("{HEADER}{rest}")), (REGISTRY, registry)])
    }

    #[test]
    fn a_whole_header_is_enough() {
        let rest =
            "//! Probe: `features::REGISTRY` entry \"known\"\n//! Fallback: none\nfn f() { unsafe {} }";
        assert!(check(rest).is_empty());
    }

    #[test]
    fn a_missing_or_empty_line_is_a_finding() {
        let missing = check("//! Probe:\n//! Fallback: none\nuse rustix::fs::open;\n");
        assert_eq!(missing, ["crates/sys/src/x.rs:1: kernel interface without `//! Probe:` in its header"]);
        assert_eq!(check("fn f() -> &'static str { \"/proc/self/maps\" }").len(), 2);
    }

    #[test]
    fn a_probe_must_be_registered() {
        let rest = "//! Probe: `features::REGISTRY` entries \"known\", \"unknown\"\n//! Fallback: none\nfn f() { unsafe {} }";
        assert_eq!(check(rest), ["crates/sys/src/x.rs:5: probe \"unknown\" is not in the registry"]);
    }

    #[test]
    fn a_file_that_does_not_talk_to_the_kernel_owes_nothing() {
        let quiet = "//! X.\nuse rustix::io::Errno;\n#[cfg(test)]\nmod tests { fn f() { unsafe {} } }\n";
        assert!(findings(&Interfaces, &[("crates/sys/src/error.rs", quiet)]).is_empty());
        assert!(findings(&Interfaces, &[("crates/x/src/a.rs", "fn f() { unsafe {} }")]).is_empty());
    }
}
