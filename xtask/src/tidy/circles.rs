//! Rule 19: no cycle of imports inside a crate.
//!
//! Owns: the imports between the files of a crate, and the search for cycles ("circles").
//! Does not: check paths inside macros, or imports of tests.
//!
//! A crate is added to the list when it has no cycle.

use std::collections::{BTreeMap, BTreeSet};

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{ItemUse, Path, UseTree};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

/// The crates without a cycle.
const FREE: &[&str] = &[
    "channel",
    "cli",
    "engine",
    "guardian",
    "health",
    "image",
    "model",
    "resource",
    "store",
    "supervise",
    "sys",
    "tracee",
    "track",
    "undo",
];

pub(super) struct Circles;

impl Rule for Circles {
    fn number(&self) -> u8 {
        19
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for name in FREE {
            check_crate(tree, &format!("crates/{name}/src"), report);
        }
    }
}

/// For each file, the files that it imports, with the line of the import.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

fn check_crate(tree: &Tree, folder: &str, report: &mut Report) {
    let files: Vec<&SourceFile> =
        tree.rust().filter(|file| file.path.starts_with(&format!("{folder}/"))).collect();
    let modules: BTreeMap<Vec<&str>, &str> =
        files.iter().map(|file| (module_of(&file.path[folder.len() + 1..]), file.path.as_str())).collect();
    let mut imports = Imports::new();
    for file in &files {
        let module = module_of(&file.path[folder.len() + 1..]);
        let mut finder = Finder { file, paths: Vec::new() };
        file.syntax.iter().for_each(|syntax| finder.visit_file(syntax));
        for (path, line) in &finder.paths {
            if let Some(target) = resolve(path, &module, &modules).filter(|target| *target != file.path) {
                imports.entry(&file.path).or_default().entry(target).or_insert(*line);
            }
        }
    }
    let mut told = BTreeSet::new();
    for file in imports.keys() {
        let Some(circle) = circle_of(file, &imports).filter(|_| !told.contains(file)) else { continue };
        let line = imports[circle[0]][circle[1]];
        let what = format!("import circle: {}", circle.join(" -> "));
        report.add(circle[0], line, what, "move what both need into a module of its own");
        told.extend(circle);
    }
}

/// Returns the module names on the path from the root of the crate to a file.
fn module_of(path: &str) -> Vec<&str> {
    let mut names: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    names.pop_if(|last| matches!(*last, "lib" | "main" | "mod"));
    names
}

/// Returns the file of the innermost module in a path.
fn resolve<'a>(path: &[String], from: &[&str], modules: &BTreeMap<Vec<&str>, &'a str>) -> Option<&'a str> {
    let mut place = from.to_vec();
    let mut names = path.iter().map(String::as_str).peekable();
    match names.peek().copied()? {
        "crate" => {
            names.next();
            place.clear();
        }
        "self" => drop(names.next()),
        "super" => {}
        first => {
            // Otherwise the first name is that of another crate or of an item.
            place.push(first);
            modules.get(&place)?;
            place.pop();
        }
    }
    while names.next_if(|name| *name == "super").is_some() {
        place.pop()?;
    }
    let mut found = modules.get(&place).copied();
    for name in names {
        place.push(name);
        match modules.get(&place) {
            Some(file) => found = Some(*file),
            None => break,
        }
    }
    found
}

/// Returns the shortest cycle of imports that begins and ends with a file.
fn circle_of<'a>(start: &'a str, imports: &Imports<'a>) -> Option<Vec<&'a str>> {
    let mut ways = vec![vec![start]];
    let mut seen = BTreeSet::new();
    let mut next = 0;
    while let Some(way) = ways.get(next).cloned() {
        next += 1;
        for target in way.last().and_then(|last| imports.get(last)).into_iter().flat_map(BTreeMap::keys) {
            let longer = [way.as_slice(), &[*target]].concat();
            if *target == start {
                return Some(longer);
            }
            if seen.insert(*target) {
                ways.push(longer);
            }
        }
    }
    None
}

/// Collects the paths in a file. Paths in tests are left out.
struct Finder<'a> {
    file: &'a SourceFile,
    paths: Vec<(Vec<String>, usize)>,
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let line = item.span().start().line;
        if item.leading_colon.is_none() && !self.file.is_test(line) {
            let mut leaves = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut leaves);
            self.paths.extend(leaves.into_iter().map(|path| (path, line)));
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let line = path.span().start().line;
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 && path.leading_colon.is_none() && !self.file.is_test(line) {
            self.paths.push((names, line));
        }
        visit::visit_path(self, path);
    }
}

fn flatten(tree: &UseTree, names: &mut Vec<String>, leaves: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            names.push(path.ident.to_string());
            flatten(&path.tree, names, leaves);
            names.pop();
        }
        UseTree::Name(name) => leaves.push([names.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => leaves.push([names.as_slice(), &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => leaves.push(names.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|item| flatten(item, names, leaves)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let mut report = Report::default();
        check_crate(&Tree::of(files), "crates/x/src", &mut report);
        report.findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_circle_is_told_once_with_its_files() {
        let found = check(&[
            ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            ("crates/x/src/a.rs", "use crate::b::{B, C};\npub struct A;\n"),
            ("crates/x/src/b/mod.rs", "mod c;\npub use self::c::C;\npub struct B;\n"),
            ("crates/x/src/b/c.rs", "pub struct C(super::super::a::A);\n"),
        ]);
        let (a, b, c) = ("crates/x/src/a.rs", "crates/x/src/b/mod.rs", "crates/x/src/b/c.rs");
        assert_eq!(found, [format!("import circle: {a} -> {b} -> {c} -> {a}")]);
    }

    #[test]
    fn imports_down_and_those_of_tests_are_none() {
        let found = check(&[
            ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            ("crates/x/src/a.rs", "use std::fmt;\nuse crate::b::B;\nuse other::a::Z;\npub struct A;\n"),
            (
                "crates/x/src/b.rs",
                "pub struct B;\n#[cfg(test)]\nmod tests {\n use super::*;\n use crate::a::A;\n}\n",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
