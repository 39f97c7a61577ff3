//! Follows a system file that was changed while its components run.
//!
//! Owns: what a reload refuses, and how new values of its keys reach a component.
//! Invariants: a refused file changes nothing. A component with an unchanged table is not touched.
//! Does not: decide which component runs; `supervise::Supervisor` does.

use std::path::Path;

use supervise::{ComponentChanges, ComponentId, System};

use super::SystemDirector;
use crate::error::{GuardianError, Result};
use crate::event::{RunEvent, wording};
use crate::host::Host;
use crate::system::checks::Checks;
use crate::system::file::read_system;
use crate::system::part::Part;
use crate::system::{random, required};
use crate::time;

impl SystemDirector<'_> {
    /// Reads the system file again and applies its changes; the outcome in words.
    ///
    /// # Errors
    ///
    /// Why nothing has changed.
    pub(super) fn reload(&mut self, host: &mut Host) -> Result<String> {
        let outcome = self.try_reload(host);
        if let Err(error) = &outcome {
            let event = RunEvent::NotReloaded { reason: error.to_string() };
            (self.tell)(self.published.name(), &event);
        }
        outcome
    }

    fn try_reload(&mut self, host: &mut Host) -> Result<String> {
        if self.supervisor.is_going_down() {
            return Err(GuardianError::NotDone { why: "the system is being ended".to_owned() });
        }
        let path = self.published.file().to_path_buf();
        require_regular(&path)?;
        let system = read_system(&path)?;
        required::require(&system)?;
        let name = system.system.name.get_ref();
        if name != self.published.name() {
            let why = format!(
                "the system is now named {name}\nhelp: `undying down`, and `undying up` with the file: a name is for life"
            );
            return Err(GuardianError::NotDone { why });
        }
        let plan = self.supervisor.plan().revised(&system, random::number()?);
        let mut new = Vec::new();
        for id in plan.ids().skip(self.parts.len()) {
            new.push(self.new_part(id, &plan[id].name, &system, host)?);
        }
        let restarted = self.revise_parts(&system)?;
        let names = |parts: &mut dyn Iterator<Item = &Part>| -> Vec<String> {
            parts.map(|part| part.name.clone()).collect()
        };
        let old = self.supervisor.plan();
        let is_back = |part: &&Part| old[part.id].is_removed && !plan[part.id].is_removed;
        let is_gone = |part: &&Part| !old[part.id].is_removed && plan[part.id].is_removed;
        let added = names(&mut self.parts.iter().filter(is_back).chain(&new));
        let removed = names(&mut self.parts.iter().filter(is_gone));
        let event = RunEvent::Reloaded {
            added: added.clone(),
            removed: removed.clone(),
            restarted: names(&mut restarted.iter().map(|id| &self.parts[id.index()])),
        };
        let RunEvent::Reloaded { restarted: names, .. } = &event else { return Ok(String::new()) };
        let what = wording::reloaded(&added, &removed, names);
        (self.tell)(self.published.name(), &event);
        self.parts.extend(new);
        self.declare(&system)?;
        self.published.change();
        for order in self.supervisor.revise(self.now, plan, &restarted) {
            self.carry_out(order, host);
        }
        Ok(what)
    }

    fn new_part(&self, id: ComponentId, name: &str, system: &System, host: &Host) -> Result<Part> {
        let found = system.component.iter().find(|(known, _)| known.get_ref() == name);
        let Some((_, component)) = found else {
            return Err(GuardianError::NotDone { why: format!("the file has no component {name}") });
        };
        let notify = self.notify_name(name);
        let checks = Checks::new(component, &self.directory, &notify, self.now)?;
        Ok(Part::new(id, name, component, checks, time::rfc3339(host.clock().wall())))
    }

    /// Gives known components their new keys; returns those that have to be restarted for them.
    fn revise_parts(&mut self, system: &System) -> Result<Vec<ComponentId>> {
        let mut restarted = Vec::new();
        for place in 0..self.parts.len() {
            let name = self.parts[place].name.clone();
            let found = system.component.iter().find(|(known, _)| *known.get_ref() == name);
            let Some((_, component)) = found else { continue };
            let changes = self.parts[place].component.changes(component);
            if changes.is_empty() {
                continue;
            }
            let notify = self.notify_name(&name);
            let part = &mut self.parts[place];
            part.checks.revise(component, &self.directory, &notify, self.now)?;
            part.component = component.clone();
            if !changes.process.is_empty() {
                restarted.push(part.id);
            }
            (self.tell)(&name, &event_of(changes));
        }
        Ok(restarted)
    }
}

fn event_of(changes: ComponentChanges) -> RunEvent {
    let owned = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect();
    RunEvent::KeysChanged {
        restarted: owned(changes.process),
        at_once: owned(changes.at_once),
        next_run: owned(changes.next_run),
    }
}

/// A pipe would hold the guardian up until its other end writes.
fn require_regular(path: &Path) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(|error| sys::Error::path("read", path, error))?;
    if metadata.is_file() {
        return Ok(());
    }
    let why = format!("{} is no regular file, and can be read only once", path.display());
    Err(GuardianError::NotDone { why })
}
