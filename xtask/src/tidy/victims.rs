//! Rule 12, first half: every kind of kernel object has a victim (a small program that checks its own state).
//!
//! A file or directory in `crates/resource/src/fd`, `state` or `memory` is a kind if it implements a trait whose name
//! ends in `Kind`, for example `FdKind`. Other files are helpers. The kind `fd/pipe.rs` has the victim
//! `testkit/victims/fd_pipe.c`. A table of kinds contains their names, for example `"state/umask"`. Each of them has a
//! victim.

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
            .flat_map(|file| victims_of(file).into_iter().map(move |victim| (victim, &file.path)))
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

/// Returns the paths of the victims for the kinds in this file. Returns nothing if the file cannot contain a kind.
fn victims_of(file: &SourceFile) -> Vec<String> {
    let Some((group, rest)) = file.path.strip_prefix(KINDS).and_then(|path| path.split_once('/')) else {
        return Vec::new();
    };
    let own = rest.split('/').next().unwrap_or(rest);
    let own = own.strip_suffix(".rs").unwrap_or(own);
    if !GROUPS.contains(&group) || own == "mod" {
        return Vec::new();
    }
    let literals = file.product_tokens().map(|index| file.tokens[index].text.trim_matches('"'));
    let is_name = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let mut names: Vec<&str> =
        literals.filter_map(|text| text.strip_prefix(group)?.strip_prefix('/')).filter(is_name).collect();
    if names.is_empty() || names.contains(&own) {
        names = vec![own];
    }
    names.iter().map(|name| format!("testkit/victims/{group}_{name}.c")).collect()
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
    fn each_row_of_a_table_has_its_victim() {
        let table = (
            "crates/resource/src/state/values.rs",
            "impl StateKind for Value {}\nconst A: &str = \"state/a\";",
        );
        let bad = findings(&Victims, &[table]);
        assert_eq!(bad, ["crates/resource/src/state/values.rs:1: kind without a victim program"]);
        assert!(findings(&Victims, &[table, ("testkit/victims/state_a.c", "main(")]).is_empty());
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
