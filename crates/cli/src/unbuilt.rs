//! Parts of the command line that are named already and not there yet.
//!
//! Owns: their list, so that each is refused by its name and never half done.
//! Invariants: a line goes when its verb or option comes.
//! Does not: appear in help.

use std::ffi::OsString;

use guardian::GuardianError;

/// Verbs to come.
const VERBS: &[&str] = &[
    "diff",
    "export",
    "up",
    "down",
    "start",
    "stop",
    "restart",
    "complain",
    "check",
    "replicate",
    "inject",
    "persist",
    "resume",
];
/// Options to come, with the verb that will have them.
const OPTIONS: &[(&str, &str)] = &[("run", "--persist"), ("run", "--isolate")];

/// The one option with a value that may stand before the verb.
const STORE: &str = "--store";

/// Refuses a command line that asks for something that is not built.
pub(crate) fn refuse(words: &[OsString]) -> Result<(), GuardianError> {
    // What follows `--` is a program's own.
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--");
    let mut follows_store = false;
    let is_verb = |word: &&str| {
        let is_value = std::mem::replace(&mut follows_store, *word == STORE);
        !is_value && !word.starts_with('-')
    };
    let Some(verb) = words.by_ref().find(is_verb) else { return Ok(()) };
    if VERBS.contains(&verb) {
        return Err(GuardianError::NotBuilt(format!("`undying {verb}`")));
    }
    for word in words {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        if OPTIONS.contains(&(verb, name)) {
            return Err(GuardianError::NotBuilt(format!("`undying {verb} {name}`")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> bool {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        refuse(&words).is_err()
    }

    #[test]
    fn what_is_not_built_is_refused_and_a_program_may_have_the_same_words() {
        assert!(refused("undying replicate -n 2 -- x"));
        assert!(refused("undying run --isolate -- x"));
        assert!(refused("undying run --isolate=2 -- x"));
        assert!(!refused("undying run -- persist --isolate"));
        assert!(refused("undying --store /x up"));
        assert!(!refused("undying --store up ls"));
        assert!(!refused("undying ls"));
        assert!(!refused("undying"));
    }

    #[test]
    fn what_is_built_is_not_in_the_list() {
        for verb in crate::verb::REGISTRY {
            assert!(!VERBS.contains(&verb.name()));
        }
    }
}
