//! Events of the incarnations within a run of a component: start, readiness, timeout, death.
//!
//! Owns: when a component is ready, its timeouts, and the consequences of a member's death for its group.
//! Invariants: an incarnation is killed for at most one fault. A death that was caused by a group causes no further
//! death.
//! Does not: begin or end a run. Exception: a run that does not end in time is killed by this module.

use std::time::Instant;

use super::Supervisor;
use super::event::{ComponentState, Order, SystemNotice};
use super::plan::ComponentId;
use crate::fault::Fault;
use crate::status::SubjectStatus;
use crate::system::Policy;

impl Supervisor {
    pub(super) fn started(&mut self, now: Instant, id: ComponentId) {
        let Some(since) = self.not_ready_since(id) else { return };
        match self.plan[id].ready_timeout {
            None => self.becomes_ready(now, id, since),
            Some(timeout) => {
                let ready_by = Some(now + timeout);
                self.at_mut(id).state = ComponentState::Starting { since, ready_by };
            }
        }
    }

    pub(super) fn restored(&mut self, now: Instant, id: ComponentId) {
        if let Some(since) = self.not_ready_since(id) {
            self.becomes_ready(now, id, since);
        }
    }

    /// Returns the time since which a component without an incarnation is not ready. `None` for a component with an
    /// incarnation or without a run.
    fn not_ready_since(&self, id: ComponentId) -> Option<Instant> {
        match self.at(id).state {
            ComponentState::Starting { since, ready_by: None } | ComponentState::Down { since, .. } => {
                Some(since)
            }
            _ => None,
        }
    }

    pub(super) fn reported_ready(&mut self, now: Instant, id: ComponentId) {
        let component = self.at(id);
        if let (ComponentState::Starting { since, .. }, None) = (component.state, component.fault) {
            self.becomes_ready(now, id, since);
        }
    }

    /// Makes a component ready whose `ready` key was removed from the file. Such a component is ready as soon as it was
    /// started.
    pub(super) fn ready_if_unconditional(&mut self, now: Instant, id: ComponentId) {
        if let ComponentState::Starting { since, ready_by: Some(_) } = self.at(id).state
            && self.plan[id].ready_timeout.is_none()
        {
            self.becomes_ready(now, id, since);
        }
    }

    fn becomes_ready(&mut self, now: Instant, id: ComponentId, since: Instant) {
        self.at_mut(id).state = ComponentState::Ready { since: now };
        self.report(SystemNotice::Ready(id, now.saturating_duration_since(since)));
    }

    pub(super) fn died(&mut self, now: Instant, id: ComponentId, status: SubjectStatus) {
        let component = self.at_mut(id);
        let fault = component.end_incarnation();
        if !matches!(component.state, ComponentState::Starting { .. } | ComponentState::Ready { .. }) {
            return;
        }
        component.state = ComponentState::Down { since: now, status };
        if !component.is_ending && fault.is_none_or(Fault::is_own) {
            self.restart_group_of(id);
        }
    }

    /// Kills the group members that are restarted together with `died`. A member whose policy restarts nothing is not
    /// killed.
    pub(super) fn restart_group_of(&mut self, died: ComponentId) {
        for member in self.plan.sharing_fate_of(died) {
            if self.at(member).can_fail() && self.plan[member].policy != Policy::Never {
                self.report(SystemNotice::GroupRestarts { died, member });
                self.fail(member, Fault::Group);
            }
        }
    }

    /// Kills the current incarnation, unless the incarnation is already being killed or ended.
    pub(super) fn fail(&mut self, id: ComponentId, fault: Fault) {
        let component = self.at_mut(id);
        if component.can_fail() {
            component.fault = Some(fault);
            component.complaints.clear();
            self.orders.push(Order::Fail(id, fault));
        }
    }

    /// Records that an incarnation is being killed, because an operator has requested its restart.
    pub(super) fn restart_requested(&mut self, id: ComponentId) {
        let component = self.at_mut(id);
        if component.state.is_alive() {
            component.fault = Some(Fault::Requested);
        }
    }

    pub(super) fn due(&mut self, now: Instant) {
        for id in self.plan.start_order().to_vec() {
            if self.at(id).deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            if self.at(id).state.is_stopping() {
                self.at_mut(id).state = ComponentState::Killing;
                self.report(SystemNotice::NotStopped(id, self.plan[id].stop_timeout));
                self.orders.push(Order::KillRun(id));
            } else if let Some(timeout) = self.plan[id].ready_timeout {
                self.report(SystemNotice::NotReady(id, timeout));
                self.fail(id, Fault::NotReady);
            }
        }
    }
}
