//! Rule 6, second half: every error with advice for the operator has a row in the handbook.
//!
//! An error whose message contains `help:` has a doc comment line `/// Row: some-slug`. `docs/errors.md` contains a
//! table with `` `some-slug` `` in the first column. Both sets of slugs must be equal. Errors with the same advice
//! share a slug.

use std::collections::BTreeMap;

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemEnum, ItemStruct, Variant};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const HANDBOOK: &str = "docs/errors.md";
const FOLDER: &str = "crates/";
const MARK: &str = "Row:";

pub(super) struct ErrorRows;

/// Slugs, each with its place.
type Slugs<'tree> = BTreeMap<String, Place<'tree>>;
/// A path and a line number.
type Place<'tree> = (&'tree str, usize);

impl Rule for ErrorRows {
    fn number(&self) -> u8 {
        6
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let mut in_code = Slugs::new();
        for file in tree.rust().filter(|file| file.path.starts_with(FOLDER)) {
            if let Some(syntax) = &file.syntax {
                Messages { file, slugs: &mut in_code, report }.visit_file(syntax);
            }
        }
        let in_handbook = handbook(tree, report);
        for (slug, (path, line)) in missing_from(&in_handbook, &in_code) {
            let what = format!("error `{slug}` has no row in {HANDBOOK}");
            report.add(path, line, what, "write the row: what it means and what to do");
        }
        for (slug, (path, line)) in missing_from(&in_code, &in_handbook) {
            let what = format!("row `{slug}` belongs to no error");
            report.add(path, line, what, "remove it, or mark its error with `/// Row:`");
        }
    }
}

fn missing_from<'tree>(known: &Slugs<'tree>, wanted: &Slugs<'tree>) -> Slugs<'tree> {
    wanted.iter().filter(|(slug, _)| !known.contains_key(*slug)).map(|(a, b)| (a.clone(), *b)).collect()
}

fn handbook<'tree>(tree: &'tree Tree, report: &mut Report) -> Slugs<'tree> {
    let mut slugs = Slugs::new();
    let Some(file) = tree.file(HANDBOOK) else { return slugs };
    for (line, text) in file.lines() {
        let slug = text.trim_start().strip_prefix("| `").and_then(|rest| rest.split_once("` |"));
        if let Some((slug, _)) = slug
            && add(&mut slugs, slug, (&file.path, line), report).is_some()
        {
            report.add(&file.path, line, format!("`{slug}` has two rows"), "make them one");
        }
    }
    slugs
}

/// Adds a slug. Returns the earlier place of the slug, if the slug was already added.
fn add<'tree>(
    slugs: &mut Slugs<'tree>,
    slug: &str,
    place: Place<'tree>,
    report: &mut Report,
) -> Option<Place<'tree>> {
    let is_slug = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if slug.is_empty() || !slug.chars().all(is_slug) {
        report.add(place.0, place.1, format!("`{slug}` is no slug"), "use small letters, digits and hyphens");
    }
    slugs.insert(slug.to_owned(), place)
}

/// Visits the items that can have an error message.
struct Messages<'run, 'tree> {
    file: &'tree SourceFile,
    slugs: &'run mut Slugs<'tree>,
    report: &'run mut Report,
}

impl Messages<'_, '_> {
    fn check(&mut self, attributes: &[Attribute], line: usize) {
        if self.file.is_test(line) {
            return;
        }
        let mut marked = false;
        for (line, text) in attributes.iter().filter_map(doc_line) {
            if let Some(slug) = text.trim().strip_prefix(MARK) {
                marked = true;
                add(self.slugs, slug.trim(), (&self.file.path, line), self.report);
            }
        }
        if !marked && attributes.iter().any(advises) {
            let mend = "add `/// Row: some-slug` to its doc comment";
            self.report.add(&self.file.path, line, "error with `help:` has no slug", mend);
        }
    }
}

impl<'ast> Visit<'ast> for Messages<'_, '_> {
    fn visit_variant(&mut self, variant: &'ast Variant) {
        self.check(&variant.attrs, variant.ident.span().start().line);
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.check(&item.attrs, item.ident.span().start().line);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.check(&item.attrs, item.ident.span().start().line);
        visit::visit_item_enum(self, item);
    }
}

/// Returns the line number and the text of a line in a doc comment.
fn doc_line(attribute: &Attribute) -> Option<(usize, String)> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
    pair.path.is_ident("doc").then(|| (attribute.span().start().line, text.value()))
}

/// Reports whether an attribute is `#[error("…")]` with advice for the operator.
fn advises(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("error") && list.tokens.to_string().contains("help:")
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    const ERRORS: &str = "enum E {\n /// No room.\n /// Row: store-full\n #[error(\"full\\nhelp: make room\")]\n Full,\n #[error(\"odd\")]\n Odd,\n}\n";

    fn check(code: &str, handbook: &str) -> Vec<String> {
        findings(&ErrorRows, &[("crates/x/src/a.rs", code), (HANDBOOK, handbook)])
    }

    #[test]
    fn code_and_handbook_agree() {
        assert!(check(ERRORS, "| id | do |\n|---|---|\n| `store-full` | make room |\n").is_empty());
        assert!(check("", "").is_empty());
    }

    #[test]
    fn what_only_one_of_them_has_is_a_finding() {
        assert_eq!(
            check(ERRORS, "| `store-empty` | x |\n"),
            [
                "crates/x/src/a.rs:3: error `store-full` has no row in docs/errors.md",
                "docs/errors.md:1: row `store-empty` belongs to no error"
            ]
        );
    }

    #[test]
    fn advice_without_a_slug_is_a_finding() {
        let code = "#[error(\"x; help: y\")]\nstruct S;\n";
        assert_eq!(check(code, ""), ["crates/x/src/a.rs:2: error with `help:` has no slug"]);
    }

    #[test]
    fn a_slug_is_well_formed_and_has_one_row() {
        assert!(check(&format!("{ERRORS}{ERRORS}"), "| `store-full` | a |\n").is_empty());
        let twice = "| `store-full` | a |\n| `store-full` | b |\n";
        assert_eq!(check(ERRORS, twice), ["docs/errors.md:2: `store-full` has two rows"]);
        let odd = check("/// Row: Store Full\nstruct S;\n", "| `Store Full` | a |\n");
        assert_eq!(odd.len(), 2, "{odd:?}");
    }
}
