//! The files of the workspace, which the rules check.
//!
//! Owns: listing and reading the files, parsing Rust files, and the distinction of test code from other code.
//! Invariants: the tree contains every file that git does not ignore. Paths are relative to the root of the workspace.
//! Does not: check rules.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use ignore::WalkBuilder;
use proc_macro2::TokenStream;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item, ItemMod};

use super::tokens::{self, Token};
use crate::failure::Failure;

/// All files, and all packages of the workspace.
pub(super) struct Tree {
    pub files: Vec<SourceFile>,
    pub packages: Vec<Package>,
}

/// One file.
pub(super) struct SourceFile {
    /// The path of the file, with `/` as separator.
    pub path: String,
    /// The content of the file. Bytes that are not UTF-8 are replaced.
    pub text: String,
    /// The syntax tree, if the file is a Rust file without syntax errors.
    pub syntax: Option<syn::File>,
    /// The tokens. The list is empty if the file is not a Rust file or has a syntax error.
    pub tokens: Vec<Token>,
    /// The line and the reason of a syntax error in a Rust file.
    pub parse_error: Option<(usize, String)>,
    test_lines: Vec<RangeInclusive<usize>>,
    test_modules: Vec<String>,
}

/// One package of the workspace.
#[derive(Debug)]
pub(super) struct Package {
    /// The name of the package, without the prefix of the project.
    pub name: String,
    /// The path of the manifest.
    pub path: String,
    /// The packages of the workspace on which the package depends. The flag is true if only its tests depend on the
    /// package.
    pub dependencies: Vec<(String, bool)>,
}

impl Tree {
    /// Reads the files of the workspace.
    pub(super) fn load() -> Result<Self, Failure> {
        let metadata = MetadataCommand::new().no_deps().exec()?;
        let root = metadata.workspace_root.as_std_path();
        let is_git = |name: &std::ffi::OsStr| name == ".git";
        let walk = WalkBuilder::new(root)
            .hidden(false)
            .require_git(false)
            .filter_entry(move |entry| !is_git(entry.file_name()))
            .sort_by_file_path(Path::cmp)
            .build();
        let mut files = Vec::new();
        for entry in walk {
            let entry = entry?;
            if entry.file_type().is_some_and(|kind| kind.is_file()) {
                files.push(read(root, entry.path())?);
            }
        }
        Ok(Self { packages: packages(&metadata), ..Self::new(files) })
    }

    fn new(mut files: Vec<SourceFile>) -> Self {
        let modules: BTreeSet<String> = files.iter().flat_map(|file| file.test_modules.clone()).collect();
        for file in &mut files {
            let declared = ancestors(&file.path).any(|module| modules.contains(module));
            if declared || file.path.starts_with("tests/") || file.path.contains("/tests/") {
                file.test_lines = vec![1..=usize::MAX];
            }
        }
        Self { files, packages: Vec::new() }
    }

    /// Creates a simulated tree.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self::new(files.iter().map(|(path, text)| SourceFile::new((*path).into(), (*text).into())).collect())
    }

    /// Returns the file with this path.
    pub(super) fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns all Rust files, including tests.
    pub(super) fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }
}

impl SourceFile {
    fn new(path: String, text: String) -> Self {
        let (syntax, tokens, parse_error) = if path.ends_with(".rs") { parse(&text) } else { <_>::default() };
        let mut tests = TestFinder { lines: Vec::new(), modules: Vec::new(), folder: module_folder(&path) };
        if let Some(syntax) = &syntax {
            tests.visit_file(syntax);
        }
        let (test_lines, test_modules) = (tests.lines, tests.modules);
        Self { path, text, syntax, tokens, parse_error, test_lines, test_modules }
    }

    /// Reports whether the file is a Rust file.
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Reports whether the line belongs to a test or to code that only tests use.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Returns the lines with their numbers, starting with 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Returns the indexes of the tokens outside of tests.
    pub(super) fn product_tokens(&self) -> impl Iterator<Item = usize> {
        (0..self.tokens.len()).filter(|index| !self.is_test(self.tokens[*index].line))
    }
}

type Parsed = (Option<syn::File>, Vec<Token>, Option<(usize, String)>);

fn parse(text: &str) -> Parsed {
    let failed = |line, error: String| (None, Vec::new(), Some((line, error)));
    let stream: TokenStream = match text.parse::<TokenStream>() {
        Ok(stream) => stream,
        Err(error) => return failed(error.span().start().line, error.to_string()),
    };
    match syn::parse2(stream.clone()) {
        Ok(syntax) => (Some(syntax), tokens::flatten(stream), None),
        Err(error) => failed(error.span().start().line, error.to_string()),
    }
}

fn read(root: &Path, path: &Path) -> Result<SourceFile, Failure> {
    let bytes = std::fs::read(path).map_err(|source| Failure::Read { path: path.to_owned(), source })?;
    let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    Ok(SourceFile::new(relative, String::from_utf8_lossy(&bytes).into_owned()))
}

fn packages(metadata: &Metadata) -> Vec<Package> {
    let short = |name: &str| name.strip_prefix("undying-").unwrap_or(name).to_owned();
    let ours = |name: &str| metadata.packages.iter().any(|package| package.name.as_str() == name);
    let describe = |package: &cargo_metadata::Package| Package {
        name: short(package.name.as_str()),
        path: package
            .manifest_path
            .strip_prefix(&metadata.workspace_root)
            .unwrap_or(&package.manifest_path)
            .to_string(),
        dependencies: package
            .dependencies
            .iter()
            .filter(|dependency| ours(&dependency.name))
            .map(|dependency| (short(&dependency.name), dependency.kind == DependencyKind::Development))
            .collect(),
    };
    metadata.packages.iter().map(describe).collect()
}

/// Returns the directory that contains the submodules of a file.
fn module_folder(path: &str) -> String {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    match stem.rsplit_once('/') {
        Some((folder, "mod" | "lib" | "main")) => folder.to_owned(),
        _ => stem.to_owned(),
    }
}

/// Returns the module of a file, and then its parent modules.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let module = path.strip_suffix(".rs").unwrap_or(path);
    std::iter::successors(Some(module), |module| module.rsplit_once('/').map(|(folder, _)| folder))
}

/// Finds the items that are compiled only for tests.
struct TestFinder {
    lines: Vec<RangeInclusive<usize>>,
    modules: Vec<String>,
    folder: String,
}

impl<'ast> Visit<'ast> for TestFinder {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_for_tests) {
            self.lines.push(lines_of(item.span()));
        } else {
            visit::visit_item(self, item);
        }
        if let Item::Mod(ItemMod { attrs, content: None, ident, .. }) = item
            && attrs.iter().any(is_for_tests)
        {
            self.modules.push(format!("{}/{ident}", self.folder));
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if function.attrs.iter().any(is_for_tests) {
            self.lines.push(lines_of(function.span()));
        }
    }
}

fn lines_of(span: proc_macro2::Span) -> RangeInclusive<usize> {
    span.start().line..=span.end().line
}

/// Reports whether an attribute is `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let condition = match &attribute.meta {
        syn::Meta::Path(path) => return path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => tokens::flatten(list.tokens.clone()),
        _ => return false,
    };
    let words: Vec<&str> = condition.iter().map(|token| token.text.as_str()).collect();
    matches!(words.as_slice(), ["test"] | ["all", "(", "test", ",", ..])
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_code_is_told_from_the_rest() {
        let text = "//! x\nfn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nimpl X {\n #[cfg(test)]\n fn c() {}\n}\n";
        let tree = Tree::of(&[("crates/x/src/lib.rs", text)]);
        let tests: Vec<bool> = (1..=10).map(|line| tree.files[0].is_test(line)).collect();
        assert_eq!(tests, [false, false, true, true, true, true, false, true, true, false]);
    }

    #[test]
    fn a_test_module_in_a_file_of_its_own_is_known_by_its_declaration() {
        let tree = Tree::of(&[
            ("crates/x/src/lib.rs", "//! x\n#[cfg(test)]\nmod tests;\nmod other;\n"),
            ("crates/x/src/tests.rs", "//! t\n"),
            ("crates/x/src/other.rs", "//! o\n#[cfg(all(test, unix))] mod deep;\n"),
            ("crates/x/src/other/deep/more.rs", "//! m\n"),
            ("crates/x/src/tests_of_others.rs", "//! p\n"),
            ("crates/x/tests/it.rs", "//! i\n"),
        ]);
        let tests: Vec<bool> = tree.files.iter().map(|file| file.is_test(1)).collect();
        assert_eq!(tests, [false, true, false, true, false, true]);
    }

    #[test]
    fn code_for_the_product_only_is_not_test_code() {
        let tree = Tree::of(&[("crates/x/src/lib.rs", "//! x\n#[cfg(not(test))]\nfn a() {}\n")]);
        assert!(!tree.files[0].is_test(3));
    }
}
