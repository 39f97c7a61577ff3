//! The state machine of a system: decides when components start and end.
//!
//! If component A *needs* component B, B must be ready before A is started; A is a *dependent* of B. A *run* of a
//! component is a sequence of incarnations. Within a run, another state machine, the `Subject` of the component,
//! restarts the program after a death. The supervisor decides when runs begin and end. A component *gives up* if it was
//! restarted too often, or cannot be started or restored; a give-up ends the run.
//!
//! Owns: the beginning and end of runs, whether each component should run (its *wanted* state), and the consequences of
//! a give-up.
//! Invariants: an event that does not fit the state changes nothing. A run begins only if all components that this
//! component needs are ready, and the component has no run. One call of `step` returns at most one order for each
//! component; notices and `Exec` do not count.
//! Does not: restart an incarnation, or know how an order is carried out.

mod commands;
mod complaints;
mod event;
mod incarnations;
mod plan;
mod runs;
mod supervised;
mod tally;

use std::time::Instant;

use crate::subject::End;
use supervised::Supervised;

pub use event::{
    AfterGiveUp, Complainant, ComplaintRefusal, ComponentState, Order, SystemEvent, SystemNotice,
};
pub use plan::{ComponentId, ComponentPlan, GroupPlan, Quorum, STOP_TIMEOUT, SystemPlan};

/// The state machine of one system.
///
/// A method with a parameter of type `ComponentId` panics if no component has this id. An id from another system can
/// cause this panic.
#[derive(Debug)]
pub struct Supervisor {
    plan: SystemPlan,
    /// The components, indexed by `ComponentId`.
    components: Vec<Supervised>,
    phase: Phase,
    /// The orders that the current event has caused so far.
    orders: Vec<Order>,
}

/// The state of the system as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Each component is in its wanted state, or is changing to the wanted state.
    Up,
    /// All runs are being ended. When no run is left, the phase `Up` follows.
    Restarting,
    /// All runs are being ended, or have ended. This phase is final.
    Down {
        /// Whether the reason is that a component gave up again after a restart of the system.
        has_failed: bool,
    },
}

impl Supervisor {
    /// Returns a system without runs. `SystemEvent::Up` starts the system.
    #[must_use]
    pub fn new(plan: SystemPlan) -> Self {
        let components = plan.ids().map(|_| Supervised::idle()).collect();
        Self { plan, components, phase: Phase::Up, orders: Vec::new() }
    }

    /// Handles an event. Returns orders. The caller carries out all returned orders now, in the sequence of the list.
    pub fn step(&mut self, now: Instant, event: SystemEvent) -> Vec<Order> {
        match event {
            SystemEvent::Up => self.up(),
            SystemEvent::Start(id) => self.start(id),
            SystemEvent::Stop(id) => self.stop(id),
            SystemEvent::Restart(id) => self.restart(id),
            SystemEvent::Down => self.go_down(false),
            SystemEvent::Due => self.due(now),
            SystemEvent::Started(id) => self.started(now, id),
            SystemEvent::Restored(id) => self.restored(now, id),
            SystemEvent::Ready(id) => self.reported_ready(now, id),
            SystemEvent::Died(id, status) => self.died(now, id, status),
            SystemEvent::Ended(id, end) => self.ended(now, id, end),
            SystemEvent::RestartRequested(id) => self.restart_requested(id),
            SystemEvent::Fault(id, fault) => self.fail(id, fault),
            SystemEvent::Complaint { about, by, weight } => self.complaint(now, about, by, weight),
        }
        self.settle(now);
        std::mem::take(&mut self.orders)
    }

    /// Applies a new plan of this system. Ends removed components, starts new components, and restarts the components
    /// in `restarted`.
    ///
    /// If an operator has stopped a component, the component stays stopped. All components that are neither removed,
    /// new, nor in `restarted` continue. While the system goes down, this method has no effect.
    pub fn revise(&mut self, now: Instant, plan: SystemPlan, restarted: &[ComponentId]) -> Vec<Order> {
        if !self.is_going_down() {
            self.follow(now, plan);
            for id in restarted {
                match self.at(*id).state {
                    ComponentState::Ended(end) if end != End::Left => self.start(*id),
                    state if state.has_run() && self.at(*id).is_wanted => self.restart(*id),
                    _ => {}
                }
            }
            self.settle(now);
        }
        std::mem::take(&mut self.orders)
    }

    /// Returns the time at which the caller must report `SystemEvent::Due`. Each event can change this time.
    #[must_use]
    pub fn wake(&self) -> Option<Instant> {
        self.components.iter().filter_map(Supervised::deadline).min()
    }

    /// Returns the plan of the system and its components.
    #[must_use]
    pub fn plan(&self) -> &SystemPlan {
        &self.plan
    }

    /// Returns the name of a component.
    #[must_use]
    pub fn name(&self, id: ComponentId) -> &str {
        &self.plan[id].name
    }

    /// Returns the component with this name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ComponentId> {
        self.plan.id(name)
    }

    /// Returns the state of a component.
    #[must_use]
    pub fn state(&self, id: ComponentId) -> ComponentState {
        self.at(id).state
    }

    /// Reports whether a component should run. If its run is being ended or has ended, another run follows.
    #[must_use]
    pub fn is_wanted(&self, id: ComponentId) -> bool {
        self.at(id).is_wanted
    }

    /// Returns the components for which component `id` waits. Empty if the component does not wait.
    ///
    /// A component waits for components that it needs and that are not ready. A component also waits for its dependents
    /// that are being ended. During a restart of the system, a component waits until no component has a run.
    #[must_use]
    pub fn waits_for(&self, id: ComponentId) -> Vec<ComponentId> {
        match self.at(id).state {
            ComponentState::Waiting => self.obstacles(id),
            _ => Vec::new(),
        }
    }

    /// Returns the sum of the weights of complaints about component `id`. Only complaints that count at the time `now`
    /// are added.
    #[must_use]
    pub fn complaints(&self, id: ComponentId, now: Instant) -> u32 {
        self.at(id).complaints.sum(now, self.plan[id].quorum.within)
    }

    /// Reports whether the system has ended. A system has ended if no component has a run, and only a command can begin
    /// a run.
    ///
    /// While the system does not go down, a system with a stopped or idle component has not ended, because an operator
    /// may start this component.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_down = self.is_going_down();
        self.components.iter().all(|component| match component.state {
            ComponentState::Idle | ComponentState::Stopped => is_down,
            other => !other.has_run(),
        })
    }

    /// Reports whether the system goes down. In this phase, all runs are being ended or have ended, and no run begins.
    #[must_use]
    pub fn is_going_down(&self) -> bool {
        matches!(self.phase, Phase::Down { .. })
    }

    /// Reports whether a component has given up or could not be ended, or whether a repeated give-up is the reason why
    /// the system goes down.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let is_failure =
            |end| matches!(end, ComponentState::Ended(End::GaveUp(_) | End::Failed(_) | End::Left));
        self.phase == Phase::Down { has_failed: true }
            || self.components.iter().any(|component| is_failure(component.state))
    }

    fn at(&self, id: ComponentId) -> &Supervised {
        &self.components[id.index()]
    }

    fn at_mut(&mut self, id: ComponentId) -> &mut Supervised {
        &mut self.components[id.index()]
    }

    fn report(&mut self, notice: SystemNotice) {
        self.orders.push(Order::Report(notice));
    }
}

#[cfg(test)]
mod tests;
