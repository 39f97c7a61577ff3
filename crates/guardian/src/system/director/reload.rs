//! Applying the changes of a system file while its components run.
//!
//! Owns: what a reload refuses, and how new values of keys reach a component.
//! Invariants: a refused file changes nothing. A component whose table has not changed is not touched.
//! Does not: decide which component runs; `supervise::Supervisor` does.

use std::path::Path;

use health::notify::NotifySocket;
use supervise::{Component, ComponentChanges, ComponentId, System, SystemPlan};

use super::SystemDirector;
use super::together::Together;
use crate::error::{GuardianError, Result};
use crate::event::{RunEvent, wording};
use crate::exit::ExitCode;
use crate::host::Host;
use crate::system::checks::Checks;
use crate::system::file::SystemFile;
use crate::system::part::Part;
use crate::system::{random, required};
use crate::time;

impl SystemDirector<'_> {
    /// Reads the system file again and applies its changes. Returns the outcome in words.
    ///
    /// # Errors
    ///
    /// The reason why nothing was changed.
    pub(super) fn reload(&mut self, host: &mut Host) -> Result<String> {
        let outcome = self.try_reload(host);
        if let Err(error) = &outcome {
            let event = RunEvent::NotReloaded { reason: error.to_string() };
            (self.on_event)(&self.published.record.name, &event);
        }
        outcome
    }

    fn try_reload(&mut self, host: &mut Host) -> Result<String> {
        if self.supervisor.is_going_down() {
            return Err(GuardianError::NotDone { why: "the system is being ended".to_owned(), code: None });
        }
        let system = self.read_again()?;
        let plan = self.supervisor.plan().revised(&system, random::number()?);
        self.require_same_groups(&plan)?;
        // All steps that can fail come before the first change.
        let new: Vec<Part> = plan
            .ids()
            .skip(self.parts.len())
            .map(|id| self.new_part(id, &plan[id].name, &system, host))
            .collect::<Result<_>>()?;
        let revised = self.revised_parts(&system)?;
        self.declare(&system, &plan)?;
        let restarted = revised.iter().filter(|part| !part.changes.process.is_empty()).map(|part| part.id);
        let restarted: Vec<ComponentId> = restarted.collect();
        self.parts.extend(new);
        let keys: Vec<String> = revised.iter().filter_map(|part| self.report_of_keys(part)).collect();
        revised.into_iter().for_each(|part| self.revise(part));
        let what = [vec![self.report(&plan, &restarted)], keys].concat().join("\n");
        self.published.change();
        for order in self.supervisor.revise(self.now, plan, &restarted) {
            self.carry_out(order, host);
        }
        Ok(what)
    }

    /// Refuses a plan in which other components are checkpointed together. A running group is one subject.
    fn require_same_groups(&self, plan: &SystemPlan) -> Result<()> {
        let new = Together::of(plan.groups());
        if new.len() == self.groups.len() && new.iter().zip(&self.groups).all(|(new, old)| new.is_like(old)) {
            return Ok(());
        }
        let why = "a group with `together = true` was added, removed or changed, which is impossible while the system is up\n\
                   help: `undying down`, then `undying up` with the file";
        Err(GuardianError::NotDone { why: why.to_owned(), code: Some(ExitCode::Usage.number()) })
    }

    /// Returns the present content of the file, if this system can apply it.
    fn read_again(&self) -> Result<System> {
        let path = &self.published.record.file;
        require_regular(path)?;
        let file = SystemFile::read(path)?;
        required::require(&file.system)?;
        if self.published.is_of(&file.system) {
            file.require_startable(&self.home.directory, |name, component| self.is_changed(name, component))?;
            return Ok(file.system);
        }
        let why = "the file has another `name` or `store` in `[system]`, which cannot change while the system is up\n\
                   help: `undying down`, then `undying up` with the file";
        Err(GuardianError::NotDone { why: why.to_owned(), code: Some(ExitCode::Usage.number()) })
    }

    /// Reports whether a component is new, or has another table than before.
    fn is_changed(&self, name: &str, component: &Component) -> bool {
        let known = self.supervisor.id(name).map(|id| &self.parts[id.index()].component);
        known.is_none_or(|known| known != component)
    }

    fn new_part(&self, id: ComponentId, name: &str, system: &System, host: &Host) -> Result<Part> {
        let found = system.component.iter().find(|(known, _)| known.get_ref() == name);
        let Some((_, component)) = found else {
            return Err(GuardianError::NotDone {
                why: format!("the file has no component {name}"),
                code: None,
            });
        };
        let notify = self.notify_name(name);
        let checks = Checks::new(component, &self.home.directory, &notify, self.now)?;
        Ok(Part::new(id, name, component, checks, time::rfc3339(host.clock().wall())))
    }

    /// Returns the known components whose keys have changed.
    fn revised_parts(&self, system: &System) -> Result<Vec<RevisedPart>> {
        let mut revised = Vec::new();
        for (name, component) in &system.component {
            let Some(part) = self.parts.iter().find(|part| part.name == *name.get_ref()) else { continue };
            let changes = part.component.changes(component);
            if !changes.is_empty() {
                let socket = part.checks.missing_socket(component, &self.notify_name(&part.name))?;
                revised.push(RevisedPart { id: part.id, component: component.clone(), changes, socket });
            }
        }
        Ok(revised)
    }

    /// Returns the report of the changed keys that need no restart now. `None` if there are none.
    fn report_of_keys(&self, revised: &RevisedPart) -> Option<String> {
        let changes = ComponentChanges { process: Vec::new(), ..revised.changes.clone() };
        let name = &self.parts[revised.id.index()].name;
        (!changes.is_empty()).then(|| format!("{name}: {}", event_of(changes)))
    }

    fn revise(&mut self, revised: RevisedPart) {
        let part = &mut self.parts[revised.id.index()];
        part.checks.revise(&revised.component, &self.home.directory, revised.socket, self.now);
        part.component = revised.component;
        // A process that is ended for its new keys gets the signal of its old keys.
        if revised.changes.process.is_empty() {
            part.stop_signal = part.component.stop_signal.0;
        }
        (self.on_event)(&part.name, &event_of(revised.changes));
    }

    /// Reports the changes of a plan. Returns the report in words.
    fn report(&mut self, plan: &SystemPlan, restarted: &[ComponentId]) -> String {
        let old = self.supervisor.plan();
        let was_there = |id: ComponentId| old.ids().any(|known| known == id) && !old[id].is_removed;
        let names = |is_wanted: &dyn Fn(ComponentId) -> bool| -> Vec<String> {
            plan.ids().filter(|id| is_wanted(*id)).map(|id| plan[id].name.clone()).collect()
        };
        let added = names(&|id| !was_there(id) && !plan[id].is_removed);
        let removed = names(&|id| was_there(id) && plan[id].is_removed);
        let restarted = names(&|id| was_there(id) && restarted.contains(&id));
        let what = wording::reloaded(&added, &removed, &restarted);
        (self.on_event)(&self.published.record.name, &RunEvent::Reloaded { added, removed, restarted });
        what
    }
}

/// A known component whose keys have changed.
struct RevisedPart {
    id: ComponentId,
    component: Component,
    changes: ComponentChanges,
    /// A new socket that the checks need for the new keys.
    socket: Option<NotifySocket>,
}

fn event_of(changes: ComponentChanges) -> RunEvent {
    let owned = |keys: Vec<&str>| keys.into_iter().map(str::to_owned).collect();
    RunEvent::KeysChanged {
        restarted: owned(changes.process),
        at_once: owned(changes.at_once),
        next_run: owned(changes.next_run),
    }
}

/// Refuses a file that is not regular: a pipe would block the guardian until its other end writes.
fn require_regular(path: &Path) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(|error| sys::Error::path("read", path, error))?;
    if metadata.is_file() {
        return Ok(());
    }
    let why = format!("{} is no regular file, and can be read only once", path.display());
    Err(GuardianError::NotDone { why, code: Some(ExitCode::Usage.number()) })
}
