//! The mistakes in a system file that depend on this machine: programs, users, directories and logs that a component
//! cannot use.
//!
//! Owns: which programs of a component are checked, and the key to which a reason belongs.
//! Invariants: nothing is started or changed.
//! Does not: know when a setting cannot be used; `run::Launch` does.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;

use supervise::{Component, Condition, Mistake, Probe, Spanned, System};

use super::request::{self, Means};
use crate::error::GuardianError;
use crate::event::reason::parts_of;
use crate::run::{Launch, Setting};

/// Returns the keys with which components cannot be started here. Only the components for which `is_checked` returns
/// true are checked. `directory` is the directory of the system file.
pub(super) fn mistakes(
    system: &System,
    directory: &Path,
    is_checked: impl Fn(&str, &Component) -> bool,
) -> Vec<Mistake> {
    let checked = system.component.iter().filter(|(name, component)| is_checked(name.get_ref(), component));
    checked.flat_map(|(name, component)| of_component(name, component, directory)).collect()
}

fn of_component(name: &Spanned<String>, component: &Component, directory: &Path) -> Vec<Mistake> {
    let launch = request::launch(component, directory, Means::default());
    let program = component.command.get_ref().first().map(OsStr::new).unwrap_or_default();
    let own = launch.obstacles(program).into_iter().map(|(setting, error)| {
        let (key, place) = key_of(setting, component);
        mistake(name, key, place, &error)
    });
    let helpers = programs(name, component).into_iter().filter_map(|(key, place, words)| {
        // A failed change of the directory would be reported for the directory of the component.
        let launch = Launch { directory: Some(directory.to_path_buf()), ..Launch::default() };
        let program = OsStr::new(words.first()?);
        let (_, error) =
            launch.obstacles(program).into_iter().find(|(setting, _)| *setting == Setting::Program)?;
        Some(mistake(name, key, place, &error))
    });
    own.chain(helpers).collect()
}

/// Returns the programs that this process runs for a component, each with its key and the place of the key.
fn programs<'a>(
    name: &Spanned<String>,
    component: &'a Component,
) -> Vec<(&'static str, Range<usize>, &'a [String])> {
    let mut programs = Vec::new();
    if let Some(exec) = &component.restart.exec {
        programs.push(("restart.exec", exec.span(), exec.get_ref().as_slice()));
    }
    if let Some(Condition::Probe(Probe::Exec(words))) = component.ready.as_ref().map(|ready| &ready.condition)
    {
        programs.push(("ready.exec", name.span(), words.as_slice()));
    }
    if let Some(Probe::Exec(words)) = component.heartbeat.as_ref().and_then(|heart| heart.probe.as_ref()) {
        programs.push(("heartbeat.exec", name.span(), words.as_slice()));
    }
    programs
}

/// Returns the key of a setting, and its place in the file.
fn key_of(setting: Setting, component: &Component) -> (&'static str, Range<usize>) {
    let command = component.command.span();
    let place = |key: Option<Range<usize>>| key.unwrap_or(command.clone());
    match setting {
        Setting::User => ("user", place(component.user.as_ref().map(Spanned::span))),
        Setting::Directory => ("directory", place(component.directory.as_ref().map(Spanned::span))),
        Setting::Log => ("log", place(component.log.as_ref().map(Spanned::span))),
        Setting::Program => ("command", command),
    }
}

fn mistake(name: &Spanned<String>, key: &str, place: Range<usize>, error: &GuardianError) -> Mistake {
    let (why, help) = parts_of(error);
    Mistake { place, what: format!("`{key}` of component {}: {why}", name.get_ref()), help }
}
