//! Rule 21: a structure has a limited number of fields, unless it is pure data.
//!
//! A structure is pure data under two conditions. No type with its name in the package has a method with `&mut self`.
//! Its fields are those of a format (it derives `Message`, `Serialize` or `Deserialize`), or all its fields are `pub`.
//! Pure data has no invariants. Types of one package with the same name are treated as one type.

use std::collections::HashSet;

use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, ItemImpl, ItemStruct, ReceiverKind, Type, Visibility};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule, tokens};

/// Maximum number of fields. A larger structure consists of groups of related fields, and each group should be a type.
const FIELDS_MAX: usize = 12;

/// Derived traits of a structure whose fields are those of a format.
const ENCODINGS: &[&str] = &["Message", "Serialize", "Deserialize"];

pub(super) struct Structs;

impl Rule for Structs {
    fn number(&self) -> u8 {
        21
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let mut changed = Changed::default();
        for file in tree.rust() {
            changed.package = package(file);
            file.syntax.iter().for_each(|syntax| changed.visit_file(syntax));
        }
        for file in tree.rust() {
            file.syntax
                .iter()
                .for_each(|syntax| Large { file, changed: &changed, report }.visit_file(syntax));
        }
    }
}

/// Returns the directory of a file's package.
fn package(file: &SourceFile) -> String {
    file.path.split("/src/").next().unwrap_or_default().to_owned()
}

/// Types with a method that has `&mut self`, each with its package.
#[derive(Default)]
struct Changed {
    package: String,
    types: HashSet<(String, String)>,
}

impl<'ast> Visit<'ast> for Changed {
    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let changes = |item: &ImplItem| {
            let ImplItem::Fn(function) = item else { return false };
            let receiver = function.sig.receiver();
            receiver.is_some_and(|receiver| matches!(receiver.kind, ReceiverKind::Reference(_, _, Some(_))))
        };
        if let Type::Path(of) = &*item.self_ty
            && let Some(name) = of.path.segments.last()
            && item.items.iter().any(changes)
        {
            self.types.insert((self.package.clone(), name.ident.to_string()));
        }
        visit::visit_item_impl(self, item);
    }
}

struct Large<'run> {
    file: &'run SourceFile,
    changed: &'run Changed,
    report: &'run mut Report,
}

impl<'ast> Visit<'ast> for Large<'_> {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let (line, count) = (item.ident.span().start().line, item.fields.len());
        let is_changed = self.changed.types.contains(&(package(self.file), item.ident.to_string()));
        let is_open = item.fields.iter().all(|field| matches!(field.vis, Visibility::Public(_)));
        let is_data = !is_changed && (is_open || item.attrs.iter().any(derives_encoding));
        if count > FIELDS_MAX && !is_data && !self.file.is_test(line) {
            let what = format!("structure `{}` of {count} fields, more than {FIELDS_MAX}", item.ident);
            self.report.add(&self.file.path, line, what, "make types of the fields that change together");
        }
    }
}

fn derives_encoding(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let derived = tokens::flatten(list.tokens.clone());
    list.path.is_ident("derive") && derived.iter().any(|token| ENCODINGS.contains(&token.text.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn structure(derives: &str, visibility: &str, fields: usize) -> String {
        let fields: String = (0..fields).map(|number| format!("{visibility} f{number}: u8,\n")).collect();
        format!("//! x\n#[derive({derives})]\nstruct Many {{\n{fields}}}\n")
    }

    fn check(text: &str) -> Vec<String> {
        findings(&Structs, &[("crates/x/src/a.rs", text)])
    }

    #[test]
    fn a_structure_may_have_just_so_many_fields() {
        assert!(check(&structure("Debug", "", FIELDS_MAX)).is_empty());
        assert_eq!(
            check(&structure("Debug", "", FIELDS_MAX + 1)),
            ["crates/x/src/a.rs:3: structure `Many` of 13 fields, more than 12"]
        );
        assert_eq!(check(&structure("Debug", "pub(crate)", FIELDS_MAX + 1)).len(), 1);
        let tuple = format!("//! x\nstruct Many({});\n", "u8, ".repeat(FIELDS_MAX + 1));
        assert_eq!(check(&tuple).len(), 1);
    }

    #[test]
    fn pure_data_and_tests_may_have_more() {
        assert!(check(&structure("Debug", "pub", 13)).is_empty());
        for encoding in ["Clone, Message", "prost::Message", "Serialize", "Debug, Deserialize"] {
            assert!(check(&structure(encoding, "", 13)).is_empty());
        }
        let text = structure("Debug", "", 13);
        assert!(findings(&Structs, &[("crates/x/tests/a.rs", &text)]).is_empty());
    }

    #[test]
    fn what_is_changed_in_place_is_not_pure_data() {
        let other = "//! x\nimpl Many { fn read(&self) {} fn add(&mut self) {} }\n";
        for text in [structure("Debug", "pub", 13), structure("Message", "", 13)] {
            let with = |path| findings(&Structs, &[("crates/x/src/a.rs", &text), (path, other)]);
            assert_eq!(with("crates/x/src/b.rs").len(), 1);
            assert!(with("crates/y/src/b.rs").is_empty(), "another type of that name");
        }
        let reads = "impl Many { fn read(&self) {} fn into(mut self) {} }\n";
        assert!(check(&(structure("Debug", "pub", 13) + reads)).is_empty());
    }
}
