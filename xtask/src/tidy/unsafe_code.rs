//! Rule 1: only `crates/sys` contains unsafe code, and each use of `unsafe` has a documented reason.
//!
//! The rule checks tokens, so it also covers the bodies of macros. It also covers test files. A test file is a separate
//! crate root, to which the `forbid` of the crate does not apply.

use super::tokens::{Shape, Token, follows};
use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

/// The crate that may contain unsafe code.
const TRUSTED: &str = "crates/sys/";

pub(super) struct UnsafeCode;

impl Rule for UnsafeCode {
    fn number(&self) -> u8 {
        1
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        for file in tree.rust() {
            let trusted = file.path.starts_with(TRUSTED);
            if is_crate_root(&file.path) && !trusted && !forbids(&file.tokens) {
                report.add(
                    &file.path,
                    1,
                    "crate root without `#![forbid(unsafe_code)]`",
                    "add it below the header",
                );
            }
            check_uses(file, trusted, report);
        }
    }
}

fn check_uses(file: &SourceFile, trusted: bool, report: &mut Report) {
    let lines: Vec<&str> = file.text.lines().collect();
    for index in 0..file.tokens.len() {
        if !is_unsafe_use(&file.tokens, index) {
            continue;
        }
        let token = &file.tokens[index];
        if !trusted {
            let mend = "move it behind a safe function of crates/sys";
            report.add(&file.path, token.line, "`unsafe` outside crates/sys", mend);
        } else if !says_why(&lines, token.line) && !says_why(&lines, token.statement_line) {
            let mend =
                "write `// SAFETY:` with the invariant and who upholds it (or `/// # Safety`) right above";
            report.add(&file.path, token.line, "`unsafe` without its reason", mend);
        }
    }
}

fn is_crate_root(path: &str) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("/src/bin/")
}

fn forbids(tokens: &[Token]) -> bool {
    const ATTRIBUTE: [&str; 8] = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
    (0..tokens.len()).any(|index| follows(tokens, index, &ATTRIBUTE))
}

/// Reports whether a token is the `unsafe` of a block, an item or an attribute. The `unsafe` in the type of a function
/// pointer is not counted.
fn is_unsafe_use(tokens: &[Token], index: usize) -> bool {
    if tokens[index].shape != Shape::Word || tokens[index].text != "unsafe" {
        return false;
    }
    let mut behind = tokens[index + 1..].iter().skip_while(|token| {
        token.text == "extern" || token.shape == Shape::Literal && token.text.starts_with('"')
    });
    let is_function = behind.next().is_some_and(|token| token.text == "fn");
    !(is_function && behind.next().is_some_and(|token| token.shape == Shape::Open))
}

/// Reports whether the comments and attributes directly above a line contain a reason.
fn says_why(lines: &[&str], line: usize) -> bool {
    let above = lines[..line - 1].iter().rev().map(|text| text.trim_start());
    above.take_while(|text| is_comment(text) || text.starts_with("#[") || text.starts_with("$(#[")).any(
        |text| {
            text.split_once("SAFETY:").is_some_and(|(_, reason)| !reason.trim().is_empty())
                || text.contains("# Safety")
        },
    )
}

fn is_comment(text: &str) -> bool {
    text.starts_with("//") || text.starts_with("/*") || text.starts_with("* ")
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn in_sys(text: &str) -> Vec<String> {
        findings(&UnsafeCode, &[("crates/sys/src/a.rs", text)])
    }

    #[test]
    fn every_other_crate_root_forbids_unsafe_code() {
        let good = "//! x\n#![forbid(unsafe_code)]\n";
        assert!(findings(&UnsafeCode, &[("crates/x/src/lib.rs", good)]).is_empty());
        assert!(findings(&UnsafeCode, &[("crates/sys/src/lib.rs", "//! x\n")]).is_empty());
        let bad = findings(&UnsafeCode, &[("testkit/src/bin/tool.rs", "//! x\n#![deny(unsafe_code)]\n")]);
        assert_eq!(bad, ["testkit/src/bin/tool.rs:1: crate root without `#![forbid(unsafe_code)]`"]);
    }

    #[test]
    fn unsafe_code_elsewhere_is_found_in_macros_and_test_files_too() {
        let text = "//! x\nmacro_rules! m { () => {\n unsafe { f() } } }\n";
        let bad = findings(&UnsafeCode, &[("crates/x/tests/t.rs", text)]);
        assert_eq!(bad, ["crates/x/tests/t.rs:3: `unsafe` outside crates/sys"]);
        assert!(
            findings(&UnsafeCode, &[("crates/x/src/a.rs", "//! x\nconst A: &str = \"unsafe\";")]).is_empty()
        );
    }

    #[test]
    fn a_reason_stands_above_the_block_or_above_its_statement() {
        assert!(in_sys("fn f() {\n // SAFETY: a number.\n unsafe { g() }\n}").is_empty());
        assert!(
            in_sys("fn f() {\n // SAFETY: a number,\n // and no more.\n let x =\n  unsafe { g() };\n}")
                .is_empty()
        );
        assert!(in_sys("/// F.\n///\n/// # Safety\n/// Never.\n#[inline]\npub unsafe fn f() {}").is_empty());
        assert!(in_sys("type F = unsafe extern \"C\" fn(i32);").is_empty());
    }

    #[test]
    fn a_missing_or_empty_or_borrowed_reason_is_a_finding() {
        assert_eq!(in_sys("fn f() {\n unsafe { g() }\n}").len(), 1);
        assert_eq!(in_sys("fn f() {\n // SAFETY:\n unsafe { g() }\n}").len(), 1);
        assert_eq!(in_sys("fn f() {\n // SAFETY: mine.\n unsafe { g() };\n unsafe { h() }\n}").len(), 1);
        assert_eq!(in_sys("// trust me\nunsafe impl Send for X {}").len(), 1);
        assert_eq!(in_sys("unsafe extern \"C\" {\n fn g();\n}").len(), 1);
        assert_eq!(in_sys("#[unsafe(no_mangle)]\nfn g() {}").len(), 1);
    }
}
