//! Rule 7: crates depend on each other as the table in `edges` allows. ARCHITECTURE.md contains this table.

use super::tree::{Package, Tree};
use super::{Report, Rule};
use crate::edges::{self, Allowed, TESTS_ONLY};

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(super) struct Edges;

impl Rule for Edges {
    fn number(&self) -> u8 {
        7
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for package in &tree.packages {
            check_package(package, report);
        }
        match tree.file(DOCUMENT) {
            Some(document) if document.text.contains(&edges::table()) => {}
            _ => {
                let mend = "paste the output of `cargo xtask edges`";
                report.add(DOCUMENT, 1, "the table of edges is missing or differs from the data", mend);
            }
        }
    }
}

fn check_package(package: &Package, report: &mut Report) {
    let Package { name, path, dependencies } = package;
    let Some(row) = edges::find(name) else {
        report.add(path, 1, format!("crate `{name}` has no row"), "give it a level in xtask/src/edges.rs");
        return;
    };
    for (dependency, only_in_tests) in dependencies {
        let allowed = match row.allowed {
            Allowed::Anything => true,
            Allowed::Only(_) if dependency == TESTS_ONLY => *only_in_tests,
            Allowed::Only(names) => names.contains(&dependency.as_str()),
        };
        if !allowed {
            let what = format!("`{name}` may not depend on `{dependency}`");
            report.add(
                path,
                1,
                what,
                "move the code to the level that may, or change the table with a reason",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check as check_tree;
    use super::*;

    fn check(name: &str, dependency: &str, only_in_tests: bool) -> usize {
        let document = format!("# A\n\n{}\nend\n", edges::table());
        let mut tree = Tree::of(&[(DOCUMENT, &document)]);
        let dependencies = vec![(dependency.to_owned(), only_in_tests)];
        tree.packages.push(Package { name: name.to_owned(), path: "Cargo.toml".to_owned(), dependencies });
        check_tree(&tree, &[&Edges], &[]).len()
    }

    #[test]
    fn edges_of_the_table_are_allowed_and_others_are_not() {
        assert_eq!(check("engine", "store", false), 0);
        assert_eq!(check("image", "sys", false), 1);
        assert_eq!(check("store", "engine", false), 1);
        assert_eq!(check("cli", "engine", true), 1);
        assert_eq!(check("novelty", "model", false), 1);
    }

    #[test]
    fn the_testkit_is_for_tests() {
        assert_eq!(check("engine", TESTS_ONLY, true), 0);
        assert_eq!(check("engine", TESTS_ONLY, false), 1);
        assert_eq!(check(TESTS_ONLY, "engine", false), 0);
    }

    #[test]
    fn the_document_prints_the_table() {
        let stale = edges::table().replace("no crate of this workspace", "something");
        let tree = Tree::of(&[(DOCUMENT, &stale)]);
        assert_eq!(check_tree(&tree, &[&Edges], &[]).len(), 1);
        assert_eq!(check_tree(&Tree::of(&[]), &[&Edges], &[]).len(), 1);
    }
}
