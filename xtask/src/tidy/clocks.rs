//! Rule 20: only one module reads clocks. Code that depends on time can then be tested with a simulated time.
//!
//! Owns: the search for calls that read a clock.
//! Does not: find a read through another crate, for example `elapsed` of an `Instant` that is a parameter.

use syn::Path;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

/// The module that may read clocks.
const CLOCK: &str = "crates/sys/src/clock.rs";
/// The types of the standard library whose function `now` reads a clock.
const CLOCKS: &[&str] = &["Instant", "SystemTime"];

pub(super) struct Clocks;

impl Rule for Clocks {
    fn number(&self) -> u8 {
        20
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let is_of_program =
            |file: &SourceFile| file.path.starts_with("crates/") && file.path.contains("/src/");
        for file in tree.rust().filter(|file| file.path != CLOCK && is_of_program(file)) {
            file.syntax.iter().for_each(|syntax| Readings { file, report }.visit_file(syntax));
        }
    }
}

struct Readings<'run> {
    file: &'run SourceFile,
    report: &'run mut Report,
}

impl<'ast> Visit<'ast> for Readings<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        let line = path.span().start().line;
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [.., of, now] = names.as_slice()
            && now == "now"
            && CLOCKS.contains(&of.as_str())
            && !self.file.is_test(line)
        {
            let what = format!("`{of}::now` outside {CLOCK}");
            self.report.add(&self.file.path, line, what, "take a Clock, a Deadline or a Stopwatch");
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    #[test]
    fn a_clock_read_in_the_program_is_a_finding() {
        let code = "//! x\nuse std::time;\nfn f() -> time::Instant {\n    time::Instant::now()\n}\n";
        let found = findings(&Clocks, &[("crates/image/src/a.rs", code), ("crates/image/tests/a.rs", code)]);
        assert_eq!(found, [format!("crates/image/src/a.rs:4: `Instant::now` outside {CLOCK}")]);
    }

    #[test]
    fn tests_and_passed_times_are_none() {
        let code = "//! x\nfn f(now: Instant) -> bool {\n    now.elapsed().is_zero()\n}\n#[cfg(test)]\nmod tests {\n    fn g() {\n        Instant::now();\n    }\n}\n";
        assert!(findings(&Clocks, &[("crates/image/src/a.rs", code)]).is_empty());
    }
}
