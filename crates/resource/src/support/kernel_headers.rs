//! Test support: checks that each name in the kernel's headers has a verdict.
//!
//! A name is a constant that a program passes to the kernel, for example a socket option. A verdict says how a
//! checkpoint treats the kernel state that the name refers to.
//!
//! Owns: finding definitions, and checking the proof of each verdict.
//! Invariants: a test fails if a name has no verdict, or a verdict has no proof.
//! Does not: contain names. The tests beside the tables contain the names.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories with the headers of linux-libc-dev.
const FOLDERS: [&str; 2] = ["/usr/include", "/usr/include/x86_64-linux-gnu"];

/// The treatment of the kernel state that a name of a header refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The state is restored. The string names a source file or a victim (a test program in `testkit/victims`) that
    /// contains the name.
    Kept(&'static str),
    /// The name refers to the same state as another name, or to the opposite state. The string is the other name.
    Same(&'static str),
    /// The state is read-only, and follows from restored state.
    Derived,
    /// The name is a value, a flag or a message that belongs to another name.
    Value,
    /// The name is a call that leaves no state.
    Action,
    /// This kernel or this architecture ignores the name.
    Ignored,
    /// The state prevents the checkpoint. The string names a source file that contains the name, or a victim that sets
    /// the state.
    Refused(&'static str),
    /// The state is not restored. docs/limits.md contains the words of the string.
    Lost(&'static str),
}

/// One `#define` of a header.
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) value: String,
    /// `true` if a space follows `#`. Headers use this form for values of the preceding name.
    pub(crate) is_nested: bool,
}

/// Returns the definitions of a header. Leaves out definitions whose name starts with none of the prefixes. Returns
/// `None` if the header does not exist.
pub(crate) fn definitions(header: &str, prefixes: &[&str]) -> Option<Vec<Definition>> {
    let text = FOLDERS.iter().find_map(|folder| fs::read_to_string(Path::new(folder).join(header)).ok())?;
    Some(text.lines().filter_map(|line| definition(line, prefixes)).collect())
}

fn definition(line: &str, prefixes: &[&str]) -> Option<Definition> {
    let directive = line.strip_prefix('#')?;
    let is_nested = directive.starts_with([' ', '\t']);
    let mut words = directive.trim_start().strip_prefix("define")?.split_ascii_whitespace();
    let (name, value) = (words.next()?, words.next()?);
    // A macro with arguments is not a constant.
    let begins = !name.contains('(') && prefixes.iter().any(|prefix| name.starts_with(prefix));
    begins.then(|| Definition { name: name.to_owned(), value: value.to_owned(), is_nested })
}

/// Checks for each name that either the code supports it or a verdict exists. Also checks the proof of each verdict.
/// A verdict whose name ends with `*` applies to all names with this prefix.
pub(crate) fn judge<'a>(
    names: impl Iterator<Item = &'a str>,
    is_known: impl Fn(&str) -> bool,
    verdicts: &[(&str, Verdict)],
) {
    let verdict = |name: &str| {
        let is_of =
            |known: &str| known.strip_suffix('*').map_or(known == name, |begin| name.starts_with(begin));
        verdicts.iter().find(|(known, _)| *known == name).or(verdicts.iter().find(|(known, _)| is_of(known)))
    };
    let without: Vec<&str> = names.filter(|name| !is_known(name) && verdict(name).is_none()).collect();
    assert!(without.is_empty(), "no verdict for {without:?}: is it restored, refused or lost?");
    let is_known = |name: &str| is_known(name) || verdict(name).is_some();
    let unproved: Vec<_> =
        verdicts.iter().filter(|(name, verdict)| !is_proved(name, *verdict, is_known)).collect();
    assert!(unproved.is_empty(), "verdicts without proof: {unproved:?}");
}

fn is_proved(name: &str, verdict: Verdict, is_known: impl Fn(&str) -> bool) -> bool {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    match verdict {
        Verdict::Refused(victim) if victim.starts_with("refuse_") => {
            root().join("testkit/victims").join(victim).with_extension("c").exists()
        }
        Verdict::Kept(path) | Verdict::Refused(path) => {
            read(root().join(path)).contains(name.trim_end_matches('*'))
        }
        Verdict::Same(other) => is_known(other),
        Verdict::Lost(words) => read(root().join("docs/limits.md")).contains(words),
        Verdict::Derived | Verdict::Value | Verdict::Action | Verdict::Ignored => true,
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_name_without_a_verdict_and_a_verdict_without_proof_are_found() {
    let fails = |names: &[&str], verdicts: &[(&str, Verdict)]| {
        std::panic::catch_unwind(|| judge(names.iter().copied(), |name| name == "KNOWN", verdicts)).is_err()
    };
    assert!(!fails(&["KNOWN", "OTHER_ONE"], &[("OTHER_*", Verdict::Value)]));
    assert!(fails(&["OTHER"], &[]));
    assert!(fails(&[], &[("OTHER", Verdict::Kept("crates/resource/src/lib.rs"))]));
    assert!(fails(&[], &[("OTHER", Verdict::Same("NOTHING"))]));
    assert!(fails(&[], &[("OTHER", Verdict::Lost("words that no document has"))]));
    assert!(fails(&[], &[("OTHER", Verdict::Refused("refuse_nothing"))]));
    let nested = definition("# define PR_X 1", &["PR_"]).unwrap();
    assert!((nested.is_nested, nested.name.as_str(), nested.value.as_str()) == (true, "PR_X", "1"));
}
