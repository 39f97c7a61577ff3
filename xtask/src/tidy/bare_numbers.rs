//! Rule 4: a number with a unit has its own type.
//!
//! The rule checks the parameters of public functions and the results of public getters. It applies to names that
//! denote a pid, a descriptor, an address, a page count, an epoch or a time. The last noun of a name decides:
//! `fd_count` is a count, and `subject_fd` is a descriptor. Words like `max` after the noun are ignored. The crate
//! `model` defines the types, so the rule does not apply there.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{FnArg, ImplItemFn, ItemFn, ItemTrait, Pat, ReturnType, Signature, TraitItem, Type, Visibility};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const EXEMPT: &str = "crates/model/";

/// Nouns, each with the type for its values.
const UNITS: [(&[&str], &str); 5] = [
    (&["pid", "pids", "ppid", "tgid", "tid", "tids"], "model::Pid or model::Tid"),
    (&["fd", "fds"], "model::Fd, or an OwnedFd or BorrowedFd of our own"),
    (&["addr", "addrs", "address", "addresses"], "model::Address"),
    (&["pages", "page_count"], "model::PageCount"),
    (&["epoch", "epochs"], "model::Sequence"),
];
/// Nouns and units of time.
const TIMES: &[&str] = &[
    "duration", "timeout", "deadline", "interval", "ns", "us", "ms", "secs", "seconds", "millis", "micros",
    "nanos",
];
const TIME_TYPE: &str = "std::time::Duration";
/// Words that may follow a noun without a change of its meaning.
const QUALIFIERS: &[&str] = &["max", "min", "limit", "first", "last", "before", "after", "total"];
/// Types without a unit. `u8` is not listed, because it is a byte.
const BARE: &[&str] = &[
    "i8", "i16", "u16", "i32", "u32", "i64", "u64", "i128", "u128", "isize", "usize", "f32", "f64", "pid_t",
    "c_int", "c_uint", "c_long", "c_ulong", "RawFd",
];

pub(super) struct BareNumbers;

impl Rule for BareNumbers {
    fn number(&self) -> u8 {
        4
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust().filter(|file| !file.path.starts_with(EXEMPT)) {
            if let Some(syntax) = &file.syntax {
                Signatures { file, report }.visit_file(syntax);
            }
        }
    }
}

/// Visits the signatures that are visible to other crates.
struct Signatures<'run> {
    file: &'run SourceFile,
    report: &'run mut Report,
}

impl<'ast> Visit<'ast> for Signatures<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.check(&function.vis, &function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.check(&function.vis, &function.sig);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        for member in &item.items {
            if let TraitItem::Fn(function) = member {
                self.check(&item.vis, &function.sig);
            }
        }
    }
}

impl Signatures<'_> {
    fn check(&mut self, visibility: &Visibility, signature: &Signature) {
        if !matches!(visibility, Visibility::Public(_)) {
            return;
        }
        for argument in &signature.inputs {
            if let FnArg::Typed(argument) = argument
                && let Pat::Ident(pattern) = argument.pat.as_ref()
            {
                self.judge(&pattern.ident, &argument.ty, "parameter");
            }
        }
        let is_getter = signature.inputs.len() == 1 && signature.receiver().is_some();
        if let ReturnType::Type(_, result) = &signature.output
            && is_getter
        {
            self.judge(&signature.ident, result, "result of");
        }
    }

    fn judge(&mut self, name: &syn::Ident, ty: &Type, role: &str) {
        let line = name.span().start().line;
        if self.file.is_test(line) {
            return;
        }
        if let (Some(wanted), Some(bare)) = (type_for(&name.to_string()), bare_number(ty)) {
            let line = ty.span().start().line.max(line);
            self.report.add(
                &self.file.path,
                line,
                format!("{role} `{name}` is a bare `{bare}`"),
                format!("give it its type: {wanted}"),
            );
        }
    }
}

/// Returns the type for values with this name. Returns `None` if the name denotes no unit.
fn type_for(name: &str) -> Option<&'static str> {
    let mut words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    while words.len() > 1 && words.last().is_some_and(|word| QUALIFIERS.contains(word)) {
        words.pop();
    }
    let last = *words.last()?;
    if TIMES.contains(&last) {
        return Some(TIME_TYPE);
    }
    let is_page_count = words.ends_with(&["page", "count"]);
    let noun = if is_page_count { "page_count" } else { last };
    UNITS.iter().find(|(nouns, _)| nouns.contains(&noun)).map(|(_, wanted)| *wanted)
}

/// Returns the first bare number type inside a type.
fn bare_number(ty: &Type) -> Option<String> {
    struct Finder(Option<String>);
    impl<'ast> Visit<'ast> for Finder {
        fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
            let name = segment.ident.to_string();
            if self.0.is_none() && (BARE.contains(&name.as_str()) || name.starts_with("NonZero")) {
                self.0 = Some(name);
            }
            visit::visit_path_segment(self, segment);
        }
    }
    let mut finder = Finder(None);
    finder.visit_type(ty);
    finder.0
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn check(text: &str) -> Vec<String> {
        findings(&BareNumbers, &[("crates/x/src/a.rs", text)])
    }

    #[test]
    fn a_bare_parameter_is_found_wherever_it_hides() {
        assert_eq!(check("pub fn f(pid: i32) {}"), ["crates/x/src/a.rs:1: parameter `pid` is a bare `i32`"]);
        for text in [
            "pub fn f(target_tid: libc::pid_t) {}",
            "pub fn f(fds: &[RawFd]) {}",
            "pub fn f(start_address: Option<u64>) {}",
            "pub fn f(page_count: usize) {}",
            "pub fn f(pid: NonZeroU32) {}",
            "pub fn f(dirty_pages_max: u64) {}",
            "impl X { pub fn f(&self, timeout_ms: u64) {} }",
            "pub trait T { fn f(&self, epoch: u64); }",
            "impl X { pub fn pause_us(&self) -> f64 { 0.0 } }",
        ] {
            assert_eq!(check(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn typed_private_and_unitless_things_are_left_alone() {
        for text in [
            "pub fn f(pid: Pid, timeout: Duration) {}",
            "fn f(pid: i32) {}",
            "pub(crate) fn f(pid: i32) {}",
            "pub fn f(fd_count: usize, address_bits: u32) {}",
            "pub fn f(pages: &[u8]) {}",
            "trait T { fn f(&self, epoch: u64); }",
            "impl X { pub fn read_pages(&mut self, range: Range) -> u64 { 0 } }",
            "#[cfg(test)]\nmod tests { pub fn f(pid: i32) {} }",
        ] {
            assert!(check(text).is_empty(), "{text}");
        }
        assert!(findings(&BareNumbers, &[("crates/model/src/a.rs", "pub fn f(pid: i32) {}")]).is_empty());
    }
}
