//! The registry of verbs (subcommands). A new verb is a file in this directory and a line in `REGISTRY`.
//!
//! Owns: the whole command line: the name of the program, its version, and the arguments that every verb has.
//! Invariants: the names of verbs are a public interface and never change. Help, completions and the manual page are
//! generated from this registry.
//! Does not: parse; clap does.

use clap::Command;

use self::interface::Verb;
use crate::parse;

mod check;
mod checkpoint;
mod completions;
mod copies;
mod deaths;
mod doctor;
mod events;
mod files;
mod gc;
mod graph;
mod hold;
mod inject;
mod interface;
mod ls;
mod man;
mod metrics;
mod orders;
mod preflight;
mod prune;
mod replicate;
mod restore;
mod run;
mod show;
mod squash;
mod status;
mod top;
mod up;
mod verify;

/// All verbs, in the order of the help text.
pub(crate) const REGISTRY: &[Verb] = &[
    doctor::VERB,
    preflight::VERB,
    checkpoint::VERB,
    restore::VERB,
    run::VERB,
    files::VERB,
    ls::VERB,
    show::VERB,
    verify::VERB,
    squash::VERB,
    prune::VERB,
    gc::VERB,
    copies::STORE,
    copies::GET,
    copies::LINK,
    copies::DEL,
    status::VERB,
    top::VERB,
    events::VERB,
    deaths::VERB,
    metrics::VERB,
    check::VERB,
    up::VERB,
    orders::DOWN,
    orders::RELOAD,
    orders::START,
    orders::STOP,
    orders::RESTART,
    hold::HOLD,
    hold::RELEASE,
    orders::COMPLAIN,
    replicate::VERB,
    inject::VERB,
    completions::verb(|matches| completions::print(matches, &mut command())),
    man::verb(|_| man::print(command())),
];

pub(crate) fn named(name: &str) -> Option<&'static Verb> {
    REGISTRY.iter().find(|verb| verb.name == name)
}

/// Returns the whole command line.
pub(crate) fn command() -> Command {
    Command::new("undying")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Keeps unmodified Linux programs alive: checkpoint, restore, restart")
        .after_help(AFTER)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(parse::store())
        .subcommands(REGISTRY.iter().map(|verb| (verb.arguments)(Command::new(verb.name).about(verb.about))))
}

const AFTER: &str = "\
An IMAGE is a directory, NAME (its newest committed checkpoint) or NAME@SEQ. DUR is 10ms, 2s, 1m.

Exit codes: 0 done, 2 usage, 3 refused (nothing was changed), 4 missing permission or kernel feature,
5 image damaged or not committed, 120 replicas differ, 125 any other failure. `run` and `restore` end with the program's own
status, 128 + the signal's number if it was killed; `run` with 127 if there is no such program, with 126
if it cannot be executed.";
