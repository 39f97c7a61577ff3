//! The effect of commands: which components of a system are wanted, that is, should run.
//!
//! Owns: the effect of each command, and of a restart of the whole system.
//! Invariants: a command sets the wanted state of components. The module `runs` then derives the orders that start and
//! end runs.
//! Does not: begin or end a run.

use std::time::Instant;

use super::event::{ComponentState, SystemNotice};
use super::plan::{ComponentId, SystemPlan};
use super::supervised::Supervised;
use super::{Phase, Supervisor};
use crate::subject::End;

impl Supervisor {
    pub(super) fn up(&mut self) {
        for id in self.plan.start_order().to_vec() {
            self.start(id);
        }
    }

    /// Requests that a component and its needs run. A component that is being stopped runs again after its end.
    pub(super) fn start(&mut self, id: ComponentId) {
        if matches!(self.phase, Phase::Down { .. }) {
            self.report(SystemNotice::NotStarted(id));
            return;
        }
        for need in self.plan[id].all_needs.clone() {
            self.at_mut(need).is_wanted = true;
        }
        let component = self.at_mut(id);
        component.is_wanted = true;
        if !component.state.has_run() {
            component.is_last_try = false;
        }
    }

    /// Requests the end of a component's run.
    ///
    /// A component that has ended by itself becomes stopped, so that a restart of the system does not start the
    /// component.
    pub(super) fn stop(&mut self, id: ComponentId) {
        let component = self.at_mut(id);
        component.is_wanted = false;
        component.end_run();
        match component.state {
            ComponentState::Idle | ComponentState::Waiting => self.becomes_stopped(id),
            ComponentState::Ended(end) if end != End::Left => self.becomes_stopped(id),
            _ => {}
        }
    }

    pub(super) fn becomes_stopped(&mut self, id: ComponentId) {
        self.at_mut(id).state = ComponentState::Stopped;
        self.report(SystemNotice::Stopped(id));
    }

    pub(super) fn restart(&mut self, id: ComponentId) {
        self.start(id);
        let component = self.at_mut(id);
        component.is_last_try = false;
        component.end_run();
    }

    pub(super) fn go_down(&mut self, has_failed: bool) {
        if matches!(self.phase, Phase::Down { .. }) {
            return;
        }
        self.phase = Phase::Down { has_failed };
        self.report(SystemNotice::SystemGoesDown { has_failed });
        for id in self.plan.start_order().to_vec() {
            let component = self.at_mut(id);
            component.is_wanted = false;
            component.end_run();
            if matches!(component.state, ComponentState::Idle | ComponentState::Waiting) {
                self.becomes_stopped(id);
            }
        }
    }

    /// Applies the plan of a system file that was read again: stops removed components, and starts new components.
    pub(super) fn follow(&mut self, now: Instant, plan: SystemPlan) {
        let before = std::mem::replace(&mut self.plan, plan);
        self.components.resize_with(self.plan.ids().len(), Supervised::idle);
        for id in self.plan.start_order().to_vec() {
            let was_there = before.ids().any(|known| known == id && !before[id].is_removed);
            match (was_there, self.plan[id].is_removed) {
                (true, true) => self.stop(id),
                (false, false) => self.start(id),
                (true, false) => self.ready_if_unconditional(now, id),
                (false, true) => {}
            }
        }
    }

    /// Ends all runs, then starts the components again. Two kinds of components stay ended: components that an operator
    /// has stopped, and components that the guardian could not end.
    pub(super) fn restart_system(&mut self) {
        self.phase = Phase::Restarting;
        self.report(SystemNotice::SystemRestarts);
        for component in &mut self.components {
            let has_ended = matches!(component.state, ComponentState::Ended(end) if end != End::Left);
            component.is_wanted |= has_ended;
            component.is_last_try |= component.is_wanted;
            component.end_run();
        }
    }
}
