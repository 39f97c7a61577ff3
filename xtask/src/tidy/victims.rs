//! Rule 12, first half: every kind of kernel object has a victim (a small program that checks its own state).
//!
//! A file or directory in `crates/resource/src/fd`, `state` or `memory` is a kind if it implements a trait whose name
//! ends in `Kind`, for example `FdKind`. Other files are helpers. The kind `fd/pipe.rs` has the victim
//! `testkit/victims/fd_pipe.c`.

use std::collections::BTreeMap;

use super::tokens::Shape;
use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const KINDS: &str = "crates/resource/src/";
const GROUPS: [&str; 3] = ["fd", "state", "memory"];

pub(super) struct Victims;

impl Rule for Victims {
    fn number(&self) -> u8 {
        12
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let kinds: BTreeMap<_, _> = tree
            .rust()
            .filter(|file| implements_kind(file))
            .filter_map(|file| Some((victim_of(&file.path)?, &file.path)))
            .collect();
        for (victim, kind) in kinds {
            match tree.file(&victim) {
                None => {
                    let mend = format!("write {victim}, a program that makes one and checks it for ever");
                    report.add(kind, 1, "kind without a victim program", mend);
                }
                Some(program)
                    if !["main(", "VICTIM_MAIN("].iter().any(|entry| program.text.contains(entry)) =>
                {
                    report.add(&victim, 1, "victim without a main function", "make it a whole program");
                }
                Some(_) => {}
            }
        }
    }
}

/// Reports whether a file contains an `impl FdKind for …`, even inside a macro.
fn implements_kind(file: &SourceFile) -> bool {
    file.product_tokens().any(|index| {
        let token = &file.tokens[index];
        let is_trait = token.shape == Shape::Word && token.text.ends_with("Kind");
        is_trait && file.tokens.get(index + 1).is_some_and(|next| next.text == "for")
    })
}

/// Returns the path of the victim for the kind in this file. Returns `None` if the file cannot contain a kind.
fn victim_of(path: &str) -> Option<String> {
    let (group, rest) = path.strip_prefix(KINDS)?.split_once('/')?;
    let kind = rest.split('/').next()?;
    let kind = kind.strip_suffix(".rs").unwrap_or(kind);
    (GROUPS.contains(&group) && kind != "mod").then(|| format!("testkit/victims/{group}_{kind}.c"))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    const KIND: &str = "impl super::FdKind for Pipe {}\n";

    #[test]
    fn a_kind_has_its_victim() {
        let victim = ("testkit/victims/fd_pipe.c", "int main(void) { return 0; }");
        assert!(findings(&Victims, &[("crates/resource/src/fd/pipe.rs", KIND), victim]).is_empty());
        assert!(findings(&Victims, &[("crates/resource/src/fd/pipe/queue.rs", KIND), victim]).is_empty());
    }

    #[test]
    fn a_registry_or_a_helper_needs_none() {
        for path in ["crates/resource/src/fd/mod.rs", "crates/resource/src/lib.rs", "crates/x/src/fd/y.rs"] {
            assert!(findings(&Victims, &[(path, KIND)]).is_empty(), "{path}");
        }
        let helper = "pub trait FdKind {}\nfn find(kind: &dyn FdKind) {}\n";
        assert!(findings(&Victims, &[("crates/resource/src/fd/helper.rs", helper)]).is_empty());
    }

    #[test]
    fn a_kind_without_a_victim_or_with_an_empty_one_is_a_finding() {
        let kind = ("crates/resource/src/state/signals.rs", KIND);
        let bad = findings(&Victims, &[kind, ("testkit/victims/fd_signals.c", "main(")]);
        assert_eq!(bad, ["crates/resource/src/state/signals.rs:1: kind without a victim program"]);
        assert_eq!(findings(&Victims, &[kind, ("testkit/victims/state_signals.c", "/* later */")]).len(), 1);
    }
}
