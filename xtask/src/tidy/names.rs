//! Rule 17: every option, verb (subcommand) and path in a message, a help text or a document exists.
//!
//! Owns: the comparison of code spans and messages with the declared command line of `crates/cli` and with the files of
//! the workspace.
//! Does not: check the options of other programs. A code span that begins with another command is ignored.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::Shape;
use super::tree::{SourceFile, Tree};
use super::{Report, Rule};

const CLI: &str = "crates/cli/src/";
/// Options that clap adds to every command.
const OF_CLAP: [&str; 2] = ["help", "version"];
/// Directories of scripts and tools with their own options. A code span may contain such an option without its command.
const TOOLS: [&str; 5] = ["xtask/src/", "benches/", "tests/", "demo/", "bindings/"];

pub(super) struct Names;

impl Rule for Names {
    fn number(&self) -> u8 {
        17
    }

    fn check(&self, tree: &Tree, report: &mut Report) {
        let known = Known::of(tree);
        // A tree without the command line is a simulated tree of a test.
        if known.verbs.is_empty() {
            return;
        }
        for file in tree.files.iter().filter(|file| is_text(&file.path)) {
            for (line, span) in spans(file) {
                for what in known.wrong_in_span(&span, &file.path) {
                    report.add(&file.path, line, what, "name what is there, or mark it as planned elsewhere");
                }
            }
        }
        let is_product = |path: &str| path.starts_with("crates/") && path.contains("/src/");
        for file in tree.rust().filter(|file| is_product(&file.path)) {
            for index in file.product_tokens() {
                let token = &file.tokens[index];
                if token.shape == Shape::Literal && token.text.starts_with('"') {
                    for option in known.unknown_options(&token.text) {
                        let what = format!("a message names `--{option}`, which no verb has");
                        report.add(&file.path, token.line, what, "name an option that is there");
                    }
                }
            }
        }
    }
}

/// The names that exist.
struct Known {
    /// The options of each verb, including the options that every verb has.
    verbs: BTreeMap<String, BTreeSet<String>>,
    /// Options of tools.
    tools: BTreeSet<String>,
    paths: BTreeSet<String>,
    roots: BTreeSet<String>,
}

impl Known {
    fn of(tree: &Tree) -> Self {
        let mut shared: BTreeSet<String> = OF_CLAP.map(str::to_owned).into();
        let mut verbs = BTreeMap::new();
        for file in tree.files.iter().filter(|file| file.path.starts_with(CLI)) {
            match verb_names(&file.text) {
                names if names.is_empty() => shared.extend(declared_options(&file.text)),
                names => {
                    verbs.extend(names.into_iter().map(|name| (name, declared_options(&file.text))));
                }
            }
        }
        verbs.values_mut().for_each(|options| options.extend(shared.iter().cloned()));
        let is_tool = |file: &&SourceFile| TOOLS.iter().any(|folder| file.path.starts_with(folder));
        let tools = tree.files.iter().filter(is_tool).flat_map(|file| tool_options(&file.text)).collect();
        let mut paths = BTreeSet::new();
        for file in &tree.files {
            let parts: Vec<&str> = file.path.split('/').collect();
            paths.extend((1..=parts.len()).map(|length| parts[..length].join("/")));
        }
        let roots = paths.iter().filter(|path| !path.contains('/')).cloned().collect();
        Self { verbs, tools, paths, roots }
    }

    fn is_option(&self, option: &str) -> bool {
        self.verbs.values().any(|options| options.contains(option))
    }

    /// Returns the names in a code span that do not exist. A path is relative to the workspace or to the crate of the
    /// file.
    fn wrong_in_span(&self, span: &str, file: &str) -> Vec<String> {
        // Words after `--` belong to a program that `undying` starts.
        let own = span.split(" -- ").next().unwrap_or_default();
        if let Some(words) = own.strip_prefix("undying ") {
            let verb: String = words.chars().take_while(char::is_ascii_lowercase).collect();
            if verb.is_empty() {
                return Vec::new();
            }
            let Some(options) = self.verbs.get(&verb) else {
                return vec![format!("there is no verb `{verb}`")];
            };
            let wrong = options_in(words).into_iter().filter(|option| !options.contains(option));
            return wrong.map(|option| format!("`undying {verb}` has no option `--{option}`")).collect();
        }
        if own.starts_with("--") {
            let is_known = |option: &String| self.is_option(option) || self.tools.contains(option);
            let wrong = options_in(own).into_iter().filter(|option| !is_known(option));
            return wrong.map(|option| format!("there is no option `--{option}`")).collect();
        }
        let path = own.split([':', '#']).next().unwrap_or_default().trim_end_matches('/');
        let is_path = path.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-/".contains(letter));
        let root = path.split_once('/').map(|(root, _)| root);
        let own: String = file.split_inclusive('/').take(2).collect();
        let exists = self.paths.contains(path) || self.paths.contains(&format!("{own}{path}"));
        if is_path && root.is_some_and(|root| self.roots.contains(root)) && !exists {
            return vec![format!("there is no file or folder `{path}`")];
        }
        Vec::new()
    }

    /// Returns the options in a message that no verb has. An option after the name of another program is ignored.
    fn unknown_options(&self, literal: &str) -> Vec<String> {
        let mut unknown = Vec::new();
        for (at, _) in literal.match_indices("--") {
            let before = &literal[..at];
            let option = leading_option(&literal[at + 2..]);
            let is_start = before.ends_with([' ', '`', '"', '(', '[']) || before.ends_with("\\n");
            let span = before.rsplit(['`', '(', '"']).next().unwrap_or_default();
            let is_foreign = before.contains(['`', '(']) && !span.is_empty() && !span.starts_with("undying");
            if is_start && !option.is_empty() && !is_foreign && !self.is_option(&option) {
                unknown.push(option);
            }
        }
        unknown
    }
}

/// Reports whether a file is a document or a Rust file. The files of this directory are left out.
fn is_text(path: &str) -> bool {
    let is_document = path.ends_with(".md") || path.ends_with(".rs");
    is_document && !path.starts_with("xtask/src/tidy/")
}

/// Returns the code spans of a document, or of the comments and messages in a Rust file. For a document, lines in code
/// blocks that begin with `undying` are included.
fn spans(file: &SourceFile) -> Vec<(usize, String)> {
    let is_rust = file.is_rust();
    let mut found = Vec::new();
    for (line, text) in file.lines() {
        if is_rust && (file.is_test(line) || !text.contains(['"', '/'])) {
            continue;
        }
        found.extend(text.split('`').skip(1).step_by(2).map(|span| (line, span.to_owned())));
        if !is_rust && text.starts_with("undying ") {
            // A comment may follow the command, and other commands may follow after a pipe symbol.
            let command = text.split(['#', '|']).next().unwrap_or_default().trim_end();
            found.push((line, command.to_owned()));
        }
    }
    found
}

/// Returns the options in a text.
fn options_in(text: &str) -> Vec<String> {
    let starts =
        text.match_indices("--").filter(|(at, _)| *at == 0 || text[..*at].ends_with([' ', '[', '|']));
    let options = starts.map(|(at, mark)| leading_option(&text[at + mark.len()..]));
    options.filter(|option| !option.is_empty()).collect()
}

/// Returns the option name at the start of a text: lower-case letters, digits and hyphens.
fn leading_option(text: &str) -> String {
    let is_first = text.starts_with(|letter: char| letter.is_ascii_lowercase());
    let is_part = |letter: &char| letter.is_ascii_lowercase() || *letter == '-' || letter.is_ascii_digit();
    if is_first { text.chars().take_while(is_part).collect() } else { String::new() }
}

/// Returns the names of the verbs in a file: the `name` fields of the values of type `Verb`.
fn verb_names(text: &str) -> Vec<String> {
    let fields = text.split("Verb {").skip(1).filter_map(|rest| rest.trim_start().strip_prefix("name: "));
    fields.filter_map(quoted).collect()
}

/// Returns the options that a file declares for clap: `.long("x")` and `option("x", …)`.
fn declared_options(text: &str) -> BTreeSet<String> {
    let calls = [".long(", "option(", "flag("];
    let behind = calls.iter().flat_map(|call| text.split(call).skip(1));
    behind.filter_map(|rest| quoted(rest.trim_start())).collect()
}

/// Returns the options of a script or of `xtask`: quoted options with hyphens, and fields with a clap attribute.
fn tool_options(text: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = text.split("\"--").skip(1).map(leading_option).collect();
    found.extend(text.split("long = ").skip(1).filter_map(quoted));
    for field in text.split("#[arg(").skip(1) {
        let (attribute, rest) = field.split_once(")]").unwrap_or_default();
        if attribute.contains("long") {
            let name = rest.trim_start().split(':').next().unwrap_or_default();
            found.insert(name.trim_start_matches("pub(crate) ").trim_start_matches("pub ").replace('_', "-"));
        }
    }
    found
}

/// Returns the text of the string literal at the start of a text.
fn quoted(text: &str) -> Option<String> {
    text.strip_prefix('"')?.split_once('"').map(|(literal, _)| literal.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    const VERB: (&str, &str) = (
        "crates/cli/src/verb/run.rs",
        "//! x\nconst VERB: Verb = Verb { name: \"run\", run };\nfn a() { option(\"keep\", 1); x.long(\"json\"); }\n",
    );
    const SHARED: (&str, &str) = ("crates/cli/src/command.rs", "//! x\nfn a() { x.long(\"store\"); }\n");

    fn found(path: &str, text: &str) -> Vec<String> {
        findings(&Names, &[VERB, SHARED, (path, text)])
    }

    #[test]
    fn a_document_names_what_is_there() {
        let good =
            "`undying run --keep 3 --store /x -- job --nonsense` `--json` `ls --all` `crates/cli/src/verb`\n";
        assert_eq!(found("README.md", good), Vec::<String>::new());
        for bad in [
            "`undying fly`",
            "`undying run --files keep`",
            "`--files`",
            "see `crates/nowhere/x.rs`",
            "undying fly # now",
        ] {
            assert_eq!(found("README.md", &format!("{bad}\n")).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_message_names_what_is_there() {
        let message = |text: &str| format!("//! x\nconst M: &str = \"{text}\";\n");
        for good in ["name one with --store DIR", "use it (nsenter --mount)", "run `undying run --keep 1`"] {
            assert_eq!(found("crates/x/src/lib.rs", &message(good)), Vec::<String>::new(), "{good}");
        }
        for bad in ["restore with --files keep", "run `undying verfy`"] {
            assert_eq!(found("crates/x/src/lib.rs", &message(bad)).len(), 1, "{bad}");
        }
        let in_test = "//! x\n#[cfg(test)]\nmod tests { const M: &str = \"--nonsense `undying fly`\"; }\n";
        assert_eq!(found("crates/x/src/lib.rs", in_test), Vec::<String>::new());
    }
}
