//! The registry of verbs: a new one is a file here and a line in `REGISTRY`.
//!
//! Owns: what a verb is.
//! Invariants: names are those of the contract and never change.
//! Does not: parse; clap does.

use clap::{ArgMatches, Command};

use crate::failure::Failure;

mod checkpoint;
mod completions;
mod copies;
mod deaths;
mod doctor;
mod events;
mod files;
mod gc;
mod ls;
mod man;
mod preflight;
mod prune;
mod restore;
mod run;
mod show;
mod squash;
mod status;
mod top;
mod verify;

/// Every verb, in the order of the help text.
pub(crate) const REGISTRY: &[&dyn Verb] = &[
    &doctor::Doctor,
    &preflight::Preflight,
    &checkpoint::Checkpoint,
    &restore::Restore,
    &run::Run,
    &files::Files,
    &ls::Ls,
    &show::Show,
    &verify::Verify,
    &squash::Squash,
    &prune::Prune,
    &gc::Gc,
    &copies::StoreCopy,
    &copies::GetCopy,
    &copies::LinkCopy,
    &copies::DelCopy,
    &status::Status,
    &top::Top,
    &events::Events,
    &deaths::Deaths,
    &completions::Completions,
    &man::ManPage,
];

/// One verb of the command line.
pub(crate) trait Verb: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// One line of help.
    fn about(&self) -> &'static str;
    /// Adds its arguments.
    fn arguments(&self, command: Command) -> Command;
    /// Does it; gives the code to exit with.
    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure>;
}

/// The verb of a name.
pub(crate) fn named(name: &str) -> Option<&'static dyn Verb> {
    REGISTRY.iter().find(|verb| verb.name() == name).copied()
}
