//! Rule 6, first half: a function that can fail returns a typed error.
//!
//! Outside tests, three things are not allowed: `unwrap`, `expect` with a reason of less than two words, and a string
//! as an error type. A private function may return a `&'static str` as the reason for the error of its caller.

use syn::visit::{self, Visit};
use syn::{GenericArgument, ImplItemFn, ItemFn, PathArguments, PathSegment, TraitItemFn, Type, Visibility};

use super::tokens::{Shape, Token, follows};
use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

pub(super) struct Errors;

impl Rule for Errors {
    fn number(&self) -> u8 {
        6
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust() {
            for index in file.product_tokens() {
                check_call(file, index, report);
            }
            if let Some(syntax) = &file.syntax {
                StringErrors { file, report, is_private: false }.visit_file(syntax);
            }
        }
    }
}

fn check_call(file: &SourceFile, index: usize, report: &mut Report) {
    let tokens = &file.tokens;
    let line = tokens[index].line;
    for call in ["unwrap", "unwrap_err"] {
        if follows(tokens, index, &[".", call, "(", ")"]) {
            let mend = "return the error, or `expect` with why it cannot fail";
            report.add(&file.path, line, format!("`.{call}()` outside tests"), mend);
        }
    }
    if follows(tokens, index, &[".", "expect", "("]) && tokens.get(index + 3).is_some_and(is_no_reason) {
        let mend = "say in a few words why it cannot fail";
        report.add(&file.path, line, "`.expect()` without a reason", mend);
    }
}

/// Reports whether a token is a string of less than two words.
fn is_no_reason(token: &Token) -> bool {
    let words = token.text.trim_matches(['r', '#', '"']).split_whitespace().count();
    token.shape == Shape::Literal && token.text.ends_with(['"', '#']) && words < 2
}

struct StringErrors<'run> {
    file: &'run SourceFile,
    report: &'run mut Report,
    is_private: bool,
}

impl StringErrors<'_> {
    fn inside(&mut self, visibility: &Visibility, visit: impl FnOnce(&mut Self)) {
        let before = std::mem::replace(&mut self.is_private, matches!(visibility, Visibility::Inherited));
        visit(self);
        self.is_private = before;
    }
}

impl<'ast> Visit<'ast> for StringErrors<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.inside(&function.vis, |visitor| visit::visit_item_fn(visitor, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.inside(&function.vis, |visitor| visit::visit_impl_item_fn(visitor, function));
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        let visibility = Visibility::Public(<_>::default());
        self.inside(&visibility, |visitor| visit::visit_trait_item_fn(visitor, function));
    }

    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        let line = segment.ident.span().start().line;
        let error = error_type(segment).filter(|_| !self.file.is_test(line));
        if error.is_some_and(|error| is_string(error) && !(self.is_private && is_literal(error))) {
            let mend = "make it a variant with operation, object and errno";
            self.report.add(&self.file.path, line, "a string as an error", mend);
        }
        visit::visit_path_segment(self, segment);
    }
}

/// Returns the error type of a `Result` with two type arguments.
fn error_type(segment: &PathSegment) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    match arguments.args.iter().nth(1) {
        Some(GenericArgument::Type(error)) if segment.ident == "Result" => Some(error),
        _ => None,
    }
}

fn is_string(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => is_string(&reference.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|segment| {
            let boxed = matches!(&segment.arguments, PathArguments::AngleBracketed(inner)
                if inner.args.iter().any(|inner| matches!(inner, GenericArgument::Type(ty) if is_string(ty))));
            segment.ident == "String" || segment.ident == "str" || boxed
        }),
        _ => false,
    }
}

/// Reports whether a type is `&'static str`.
fn is_literal(ty: &Type) -> bool {
    matches!(ty, Type::Reference(reference)
        if reference.lifetime.as_ref().is_some_and(|lifetime| lifetime.ident == "static"))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn check(text: &str) -> Vec<String> {
        findings(&Errors, &[("crates/x/src/a.rs", text)])
    }

    #[test]
    fn unwrap_is_found_in_code_and_in_macros() {
        assert_eq!(check("fn f() {\n a().unwrap();\n}"), ["crates/x/src/a.rs:2: `.unwrap()` outside tests"]);
        assert_eq!(check("macro_rules! m { () => { a().unwrap_err() } }").len(), 1);
        assert!(check("fn f() { a().unwrap_or(1); unwrap(); }").is_empty());
        assert!(check("#[cfg(test)]\nmod tests { fn f() { a().unwrap(); } }").is_empty());
        assert!(findings(&Errors, &[("crates/x/tests/a.rs", "fn f() { a().unwrap(); }")]).is_empty());
    }

    #[test]
    fn expect_gives_a_reason() {
        assert!(check("fn f() { a().expect(\"chunks of eight bytes\"); }").is_empty());
        assert!(check("fn f() { parser.expect(Token::Comma); parser.expect(b','); }").is_empty());
        assert_eq!(check("fn f() { a().expect(\"\"); a().expect(\"ok\"); }").len(), 1);
        assert_eq!(check("fn f() {\n a().expect(\"\");\n a().expect(r#\"ok\"#); }").len(), 2);
    }

    #[test]
    fn an_error_is_no_string() {
        for error in ["String", "Cow<'static, str>", "Box<str>"] {
            assert_eq!(check(&format!("fn f() -> Result<u8, {error}> {{}}")).len(), 1, "{error}");
        }
        assert!(check("fn f() -> Result<String, Error> {} fn g() -> Result<String> {}").is_empty());
    }

    #[test]
    fn a_literal_may_be_the_reason_inside_a_crate_but_not_leave_it() {
        assert!(check("fn f() -> Result<u8, &'static str> {}").is_empty());
        assert_eq!(check("pub fn f() -> Result<u8, &'static str> {}").len(), 1);
        assert_eq!(check("impl X { pub(crate) fn f() -> Result<u8, &'static str> {} }").len(), 1);
        assert_eq!(check("trait T { fn f() -> Result<u8, &'static str>; }").len(), 1);
    }
}
