//! The beginning and the end of runs, and the consequences of an end.
//!
//! A component gives up when it was restarted too often, or cannot be restored.
//!
//! Owns: the order of starts and ends, and the consequences of a give-up.
//! Invariants: a component is started only while all its needs are ready. If a component and its dependents are to end,
//! the component is asked to end after the dependents have ended.
//! Does not: restart an incarnation.

use std::time::Instant;

use super::event::{AfterGiveUp, ComponentState, Order, SystemNotice};
use super::plan::ComponentId;
use super::{Phase, Supervisor};
use crate::fault::Fault;
use crate::subject::End;
use crate::system::GiveUp;

impl Supervisor {
    /// Gives the orders that lead from the current state to the wanted state.
    pub(super) fn settle(&mut self, now: Instant) {
        let order = self.plan.start_order().to_vec();
        for id in order.iter().rev() {
            self.end_if_due(now, *id);
        }
        let has_runs = self.components.iter().any(|component| component.state.has_run());
        if self.phase == Phase::Restarting && !has_runs {
            self.phase = Phase::Up;
        }
        for id in order {
            self.begin_if_due(now, id);
        }
    }

    fn end_if_due(&mut self, now: Instant, id: ComponentId) {
        let component = self.at(id);
        let is_due = component.is_ending && !component.state.is_stopping();
        if is_due && !self.plan[id].all_dependents.iter().any(|dependent| self.at(*dependent).is_ending) {
            let until = now + self.plan[id].stop_timeout;
            self.at_mut(id).state = ComponentState::Stopping { until };
            self.orders.push(Order::End(id));
        }
    }

    fn begin_if_due(&mut self, now: Instant, id: ComponentId) {
        let component = self.at(id);
        if !component.is_wanted || component.state.has_run() {
            return;
        }
        if self.obstacles(id).is_empty() {
            self.at_mut(id).begin_run(now);
            self.orders.push(Order::Run(id));
        } else if self.at(id).state != ComponentState::Waiting {
            self.at_mut(id).state = ComponentState::Waiting;
            self.report(SystemNotice::Waiting(id));
        }
    }

    /// Returns the components that prevent a run of component `id`.
    ///
    /// These are needs that are not ready, and dependents that are being ended. During a restart of the system, every
    /// component with a run prevents new runs.
    pub(super) fn obstacles(&self, id: ComponentId) -> Vec<ComponentId> {
        let prevents = |other: &ComponentId| {
            let state = self.at(*other).state;
            self.plan[id].needs.contains(other) && !state.is_ready()
                || self.plan[id].all_dependents.contains(other) && self.at(*other).is_ending
                || self.phase == Phase::Restarting && state.has_run()
        };
        self.plan.start_order().iter().filter(|other| prevents(other)).copied().collect()
    }

    /// Handles the end of a component's run.
    pub(super) fn ended(&mut self, now: Instant, id: ComponentId, end: End) {
        let component = self.at_mut(id);
        if !component.state.has_run() {
            return;
        }
        let was_alive = component.state.is_alive();
        let was_asked_for = std::mem::take(&mut component.is_ending);
        let fault = component.end_incarnation();
        match end {
            // The program may still run, and must not run twice.
            End::Left => self.stays_ended(id, end),
            _ if was_asked_for => self.becomes_stopped(id),
            End::Over(_) => self.stays_ended(id, end),
            End::GaveUp(_) | End::Failed(_) => self.gave_up(now, id, end),
        }
        if was_alive && !was_asked_for && fault.is_none_or(Fault::is_own) {
            self.restart_group_of(id);
        }
    }

    fn stays_ended(&mut self, id: ComponentId, end: End) {
        let component = self.at_mut(id);
        (component.state, component.is_wanted) = (ComponentState::Ended(end), false);
        self.report(SystemNotice::Ended(id, end));
    }

    fn gave_up(&mut self, now: Instant, id: ComponentId, end: End) {
        let is_again = self.at(id).gives_up_again(now, self.plan[id].limit.window);
        let follows = match self.plan[id].on_give_up {
            GiveUp::Stop => AfterGiveUp::StaysDead,
            GiveUp::RestartDependents if is_again => AfterGiveUp::StaysDead,
            GiveUp::RestartDependents => AfterGiveUp::RestartsDependents,
            GiveUp::Escalate if is_again => AfterGiveUp::SystemGoesDown,
            GiveUp::Escalate => AfterGiveUp::RestartsSystem,
            GiveUp::Exec => AfterGiveUp::RunsProgram,
        };
        let component = self.at_mut(id);
        (component.state, component.is_wanted) = (ComponentState::Ended(end), false);
        self.report(SystemNotice::GaveUp { id, end, follows });
        match follows {
            AfterGiveUp::StaysDead => {}
            AfterGiveUp::RestartsDependents => self.restart_with_dependents(id),
            AfterGiveUp::RestartsSystem => self.restart_system(),
            AfterGiveUp::SystemGoesDown => self.go_down(true),
            AfterGiveUp::RunsProgram => self.orders.push(Order::Exec(id)),
        }
    }

    /// Starts a component again after a give-up. First, all its dependents end.
    fn restart_with_dependents(&mut self, id: ComponentId) {
        let component = self.at_mut(id);
        (component.is_wanted, component.is_last_try) = (true, true);
        for dependent in self.plan[id].all_dependents.clone() {
            self.at_mut(dependent).end_run();
        }
    }
}
