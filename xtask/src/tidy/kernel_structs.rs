//! Rule 3: the layout of a structure that the kernel reads or writes is checked at compile time.
//!
//! Each `#[repr(C)]` structure of `crates/sys` needs a `const _` assertion on `size_of::<T>()` in the same file. A
//! structure with two or more named fields also needs an assertion on `offset_of!(T, field)`, for a field after the
//! first field.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, Ident, ItemConst, ItemStruct, ItemUnion};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const FOLDER: &str = "crates/sys/";

pub(super) struct KernelStructs;

impl Rule for KernelStructs {
    fn number(&self) -> u8 {
        3
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust().filter(|file| file.path.starts_with(FOLDER)) {
            let Some(syntax) = &file.syntax else { continue };
            let mut found = Layouts { text: &file.text, structs: Vec::new(), assertions: String::new() };
            found.visit_file(syntax);
            for layout in &found.structs {
                check_layout(file, layout, &found.assertions, report);
            }
        }
    }
}

fn check_layout(file: &SourceFile, layout: &Layout, assertions: &str, report: &mut Report) {
    let Layout { name, line, later_fields } = layout;
    if file.is_test(*line) {
        return;
    }
    let starts = [format!("size_of::<{name}>()=="), format!("size_of::<{name}<")];
    if !starts.iter().any(|start| assertions.contains(start)) {
        let mend = format!("write `const _: () = assert!(size_of::<{name}>() == …);`");
        report.add(&file.path, *line, format!("`{name}` has no check of its size"), mend);
    }
    let is_checked = |field: &String| assertions.contains(&format!("offset_of!({name},{field})=="));
    if let Some(last) = later_fields.last()
        && !later_fields.iter().any(is_checked)
    {
        let mend = format!("write `const _: () = assert!(offset_of!({name}, {last}) == …);`");
        report.add(&file.path, *line, format!("`{name}` has no check of an offset"), mend);
    }
}

/// A structure that the kernel reads or writes.
struct Layout {
    name: String,
    line: usize,
    later_fields: Vec<String>,
}

/// Collects structures, and the text of assertions without white space.
struct Layouts<'file> {
    text: &'file str,
    structs: Vec<Layout>,
    assertions: String,
}

impl Layouts<'_> {
    fn add(&mut self, attributes: &[Attribute], name: &Ident, later_fields: Vec<String>) {
        if attributes.iter().any(is_repr_c) {
            let line = name.span().start().line;
            self.structs.push(Layout { name: name.to_string(), line, later_fields });
        }
    }
}

impl<'ast> Visit<'ast> for Layouts<'_> {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let fields = match &item.fields {
            Fields::Named(fields) => fields.named.iter().filter_map(|field| field.ident.as_ref()).collect(),
            _ => Vec::new(),
        };
        let later = fields.into_iter().skip(1).map(Ident::to_string).collect();
        self.add(&item.attrs, &item.ident, later);
    }

    fn visit_item_union(&mut self, item: &'ast ItemUnion) {
        self.add(&item.attrs, &item.ident, Vec::new());
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        if item.ident == "_" {
            let source = self.text.get(item.expr.span().byte_range()).unwrap_or_default();
            self.assertions.extend(source.chars().filter(|letter| !letter.is_whitespace()));
        }
        visit::visit_item_const(self, item);
    }
}

fn is_repr_c(attribute: &Attribute) -> bool {
    let mut found = false;
    if attribute.path().is_ident("repr") {
        // An argument that the parser does not support, for example `packed(4)`, ends the search.
        let _ = attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("C");
            Ok(())
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    const STRUCT: &str = "#[derive(Clone)]\n#[repr(C)]\nstruct Region {\n start: u64,\n end: u64,\n}\n";

    fn check(rest: &str) -> Vec<String> {
        findings(&KernelStructs, &[("crates/sys/src/a.rs", &format!("{STRUCT}{rest}"))])
    }

    #[test]
    fn size_and_an_offset_are_enough_in_one_assertion_or_several() {
        let apart = "const _: () = assert!(size_of::<Region>() == 16);\n\
                     const _: () = assert!(offset_of!(Region, end) == 8);\n";
        assert!(check(apart).is_empty());
        let together = "const _: () = {\n assert!(core::mem::size_of::<Region>()\n == 16);\n \
                        assert!(mem::offset_of!(Region,\n end) == 8); };\n";
        assert!(check(together).is_empty());
    }

    #[test]
    fn what_is_not_checked_is_a_finding() {
        assert_eq!(
            check(""),
            [
                "crates/sys/src/a.rs:3: `Region` has no check of an offset",
                "crates/sys/src/a.rs:3: `Region` has no check of its size"
            ]
        );
        assert_eq!(check("const _: () = assert!(size_of::<Regions>() == 16);").len(), 2);
        let first_only =
            "const _: () = assert!(size_of::<Region>() == 16 && offset_of!(Region, start) == 0);";
        assert_eq!(check(first_only).len(), 1);
        assert_eq!(check("fn f() { assert!(size_of::<Region>() == 16); }").len(), 2);
    }

    #[test]
    fn only_kernel_layouts_are_asked_for() {
        let text = "struct A { b: u8, c: u8 }\n#[repr(transparent)]\nstruct D(u8);\n";
        assert!(findings(&KernelStructs, &[("crates/sys/src/a.rs", text)]).is_empty());
        let packed = "#[repr(C, packed)]\nstruct A { b: u8 }\n";
        assert_eq!(findings(&KernelStructs, &[("crates/sys/src/a.rs", packed)]).len(), 1);
    }
}
