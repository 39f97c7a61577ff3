//! Rule 5, first half: functions and files have a limited length.
//!
//! The length of a function is counted from its signature to its closing brace. The length of a Rust file excludes code
//! that is compiled only for tests. The whole of a C file is counted.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, ItemFn, Signature, TraitItemFn};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

/// Maximum number of lines in a function, which fit on one screen.
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum number of lines in a file, which a reader can read at once.
const FILE_LINES_MAX: usize = 500;

pub(super) struct Sizes;

impl Rule for Sizes {
    fn number(&self) -> u8 {
        5
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in &tree.files {
            if file.is_rust() || file.path.ends_with(".c") || file.path.ends_with(".h") {
                check_file(file, report);
            }
            if let Some(syntax) = &file.syntax {
                Functions { file, report }.visit_file(syntax);
            }
        }
    }
}

fn check_file(file: &SourceFile, report: &mut Report) {
    let count = file.lines().filter(|(line, _)| !file.is_test(*line)).count();
    if count > FILE_LINES_MAX {
        let what = format!("file of {count} lines, more than {FILE_LINES_MAX}");
        report.add(&file.path, 1, what, "split it by what its parts own");
    }
}

struct Functions<'run> {
    file: &'run SourceFile,
    report: &'run mut Report,
}

impl Functions<'_> {
    fn check(&mut self, signature: &Signature, body: &Block) {
        let first = signature.span().start().line;
        let count = body.span().end().line - first + 1;
        if count > FUNCTION_LINES_MAX && !self.file.is_test(first) {
            let what =
                format!("function `{}` of {count} lines, more than {FUNCTION_LINES_MAX}", signature.ident);
            self.report.add(&self.file.path, first, what, "give its steps names of their own");
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.check(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.check(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.check(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn function(lines: usize) -> String {
        format!("//! x\n#[inline]\npub fn long() {{\n{}}}\n", "f();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_may_have_just_so_many_lines() {
        let check = |lines| findings(&Sizes, &[("crates/x/src/a.rs", &function(lines))]);
        assert!(check(FUNCTION_LINES_MAX).is_empty());
        assert_eq!(
            check(FUNCTION_LINES_MAX + 1),
            ["crates/x/src/a.rs:3: function `long` of 71 lines, more than 70"]
        );
    }

    #[test]
    fn methods_count_and_tests_do_not() {
        let body = function(71);
        let method = format!("impl X {{\n{}}}", body.trim_start_matches("//! x\n"));
        assert_eq!(findings(&Sizes, &[("crates/x/src/a.rs", &method)]).len(), 1);
        let test = format!("#[cfg(test)]\nmod tests {{\n{}}}", body.trim_start_matches("//! x\n"));
        assert!(findings(&Sizes, &[("crates/x/src/a.rs", &test)]).is_empty());
        assert!(findings(&Sizes, &[("crates/x/tests/a.rs", &body)]).is_empty());
    }

    #[test]
    fn a_file_may_have_just_so_many_lines_tests_apart() {
        let comments = |lines| "// x\n".repeat(lines);
        let check = |path, text: String| findings(&Sizes, &[(path, &text)]);
        assert!(check("crates/x/src/a.rs", comments(FILE_LINES_MAX)).is_empty());
        let tests = format!("{}#[cfg(test)]\nmod tests {{\n}}\n", comments(FILE_LINES_MAX));
        assert!(check("crates/x/src/a.rs", tests).is_empty());
        assert_eq!(check("crates/x/src/a.rs", comments(FILE_LINES_MAX + 1)).len(), 1);
        assert_eq!(check("testkit/victims/a.c", comments(FILE_LINES_MAX + 1)).len(), 1);
        assert!(check("docs/a.md", comments(FILE_LINES_MAX + 1)).is_empty());
    }
}
