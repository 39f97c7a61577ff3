//! Rule 12: every kind of kernel object has a small program that checks itself.
//!
//! What lies directly in `crates/resource/src/fd`, `state` or `memory` is a kind, as a file or as a folder, except
//! `mod.rs`; kind `fd/pipe.rs` has the victim `testkit/victims/fd_pipe.c`.

use std::collections::BTreeMap;

use super::tree::Tree;
use super::{Report, Rule};

const KINDS: &str = "crates/resource/src/";
const GROUPS: [&str; 3] = ["fd", "state", "memory"];

pub(super) struct Victims;

impl Rule for Victims {
    fn number(&self) -> u8 {
        12
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let kinds: BTreeMap<_, _> =
            tree.rust().filter_map(|file| Some((victim_of(&file.path)?, &file.path))).collect();
        for (victim, kind) in kinds {
            match tree.file(&victim) {
                None => {
                    let mend = format!("write {victim}, a program that makes one and checks it for ever");
                    report.add(kind, 1, "kind without a victim program", mend);
                }
                Some(program) if !program.text.contains("main(") => {
                    report.add(&victim, 1, "victim without a main function", "make it a whole program");
                }
                Some(_) => {}
            }
        }
    }
}

/// The victim that the kind in this file needs, if a kind is in it.
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

    #[test]
    fn a_kind_has_its_victim() {
        let victim = ("testkit/victims/fd_pipe.c", "int main(void) { return 0; }");
        assert!(findings(&Victims, &[("crates/resource/src/fd/pipe.rs", ""), victim]).is_empty());
        assert!(findings(&Victims, &[("crates/resource/src/fd/pipe/queue.rs", ""), victim]).is_empty());
        for path in ["crates/resource/src/fd/mod.rs", "crates/resource/src/lib.rs"] {
            assert!(findings(&Victims, &[(path, "")]).is_empty(), "{path}");
        }
    }

    #[test]
    fn a_kind_without_a_victim_or_with_an_empty_one_is_a_finding() {
        let kind = ("crates/resource/src/state/signals.rs", "");
        let bad = findings(&Victims, &[kind, ("testkit/victims/fd_signals.c", "main(")]);
        assert_eq!(bad, ["crates/resource/src/state/signals.rs:1: kind without a victim program"]);
        assert_eq!(findings(&Victims, &[kind, ("testkit/victims/state_signals.c", "/* later */")]).len(), 1);
    }
}
