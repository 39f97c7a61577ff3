//! The state of a system, for `status` and for a service manager.
//!
//! Owns: which components are shown, and the facts about each component.
//! Does not: write or send the state; `published` and `manager` do.

use supervise::{ComponentId, ComponentState, End};

use super::SystemDirector;
use crate::host::Host;
use crate::system::manager::Tally;
use crate::system::notices;
use crate::system::part::Part;
use crate::system::record::ComponentFacts;
use crate::time;

impl SystemDirector<'_> {
    /// Orders a write of the status, if the status has changed.
    pub(super) fn publish(&mut self, host: &mut Host) {
        let time = time::rfc3339(host.clock().wall());
        for place in 0..self.parts.len() {
            let channels = self.channels_of(self.parts[place].id);
            let part = &mut self.parts[place];
            let state = notices::state_name(self.supervisor.state(part.id));
            if part.shown.0 != state {
                part.shown = (state, time.clone());
                part.channels = self.network.facts(channels);
                self.published.change();
            }
        }
        if !self.published.is_due() {
            return;
        }
        let facts =
            self.parts.iter().filter(|part| self.is_shown(part)).map(|part| self.facts(part)).collect();
        let writing = self.published.write(facts);
        if host.run_on_worker(writing).is_err() {
            self.published.not_written();
        }
    }

    /// Reports whether the system file contains the component, or an incarnation of the component is still being ended.
    fn is_shown(&self, part: &Part) -> bool {
        !self.supervisor.plan()[part.id].is_removed || self.supervisor.state(part.id).has_run()
    }

    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally { is_stopping: self.asked.ends > 0, ..Tally::default() };
        for part in self.parts.iter().filter(|part| self.is_shown(part)) {
            tally.all += 1;
            let state = self.supervisor.state(part.id);
            match state {
                ComponentState::Ready { .. } => tally.ready += 1,
                ComponentState::Ended(End::GaveUp(_) | End::Failed(_)) => tally.failed += 1,
                ComponentState::Stopped | ComponentState::Ended(_) => {}
                _ => tally.coming += 1,
            }
        }
        tally
    }

    fn facts(&self, part: &Part) -> ComponentFacts {
        let name_of = |id: &ComponentId| self.supervisor.name(*id).to_owned();
        let plan = &self.supervisor.plan()[part.id];
        ComponentFacts {
            name: part.name.clone(),
            guardian: std::process::id() as i32,
            system: self.published.record.name.clone(),
            policy: plan.policy.name().to_owned(),
            command: part.component.command.get_ref().clone(),
            state: part.shown.0.to_owned(),
            since: part.shown.1.clone(),
            needs: plan.needs.iter().map(name_of).collect(),
            waits_for: self.supervisor.waits_for(part.id).iter().map(name_of).collect(),
            complaints: self.supervisor.complaints(part.id, self.now),
            quorum: plan.quorum.sum.get(),
            last_fault: part.reported.fault.clone(),
            last_error: part.reported.error.clone(),
            reports: part.reported.reports.clone(),
            channels: part.channels.clone(),
            callers: self.network.callers(self.channels_of(part.id)),
            together: self.member_facts(part),
        }
    }
}
