//! The state machine of a system: decides when components start and end.
//!
//! Each component has its own state machine, `Subject`, which handles the death of one incarnation. The supervisor
//! makes the decisions about more than one incarnation, or about more than one component. A run of a component consists
//! of incarnations: a death is followed by a restart within the run.
//!
//! Owns: the beginning and end of runs, the wanted state of each component, and the consequences of a give-up.
//! Invariants: `step` is total: an event that does not fit the state changes nothing. A run begins only while all needs
//! of the component are ready, and while the component has no other run. A step gives at most one order for a
//! component, not counting notices and `Exec`.
//! Does not: restart an incarnation, or know how an order is carried out.

mod commands;
mod complaints;
mod event;
mod incarnations;
mod plan;
mod runs;
mod supervised;
mod tally;

use std::time::{Duration, Instant};

use crate::subject::End;
use supervised::Supervised;

pub use event::{
    AfterGiveUp, Complainant, ComplaintRefusal, ComponentState, Order, SystemEvent, SystemNotice,
};
pub use plan::{ComponentId, ComponentPlan, GroupPlan, Quorum, SystemPlan};

/// The time from SIGTERM to SIGKILL for a component that does not end. `docker stop` uses the same time.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The components of a system, from its start to its end.
///
/// A method with a parameter of type `ComponentId` panics if the id belongs to another, larger system.
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
    /// Each component is in its wanted state, or is changing to it.
    Up,
    /// All runs end. The next phase is `Up`.
    Restarting,
    /// All runs end. This phase is final.
    Down {
        /// Whether a component gave up again after the restart of the system.
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

    /// Handles an event. Returns the orders, which the caller carries out now, in this order.
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
            SystemEvent::Died { id, status } => self.died(now, id, status),
            SystemEvent::Ended { id, end } => self.ended(now, id, end),
            SystemEvent::Fault { id, fault } => self.fail(id, fault),
            SystemEvent::Complaint { about, by, weight } => self.complaint(now, about, by, weight),
        }
        self.settle(now);
        std::mem::take(&mut self.orders)
    }

    /// Applies a revised plan of this system: ends removed components, starts added components, and restarts the
    /// components in `restarted`.
    ///
    /// A component that an operator has stopped stays stopped. All other components continue. The method has no effect
    /// while the system goes down.
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

    /// Returns the time at which `SystemEvent::Due` is needed, if no other event arrives earlier.
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

    /// Returns the components that a waiting component waits for. Empty for a component that does not wait.
    ///
    /// The component waits until its needs are ready, and until components that are being ended have ended.
    #[must_use]
    pub fn waits_for(&self, id: ComponentId) -> Vec<ComponentId> {
        match self.at(id).state {
            ComponentState::Waiting => self.obstacles(id),
            _ => Vec::new(),
        }
    }

    /// Returns the sum of the complaints about a component that count at `now`.
    #[must_use]
    pub fn complaints(&self, id: ComponentId, now: Instant) -> u32 {
        self.at(id).complaints.sum(now, self.plan[id].quorum.within)
    }

    /// Reports whether the system has ended: no component has a run, and only a command can start a run.
    ///
    /// A stopped or idle component keeps the system open, until the system goes down.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_down = self.is_going_down();
        self.components.iter().all(|component| match component.state {
            ComponentState::Idle | ComponentState::Stopped => is_down,
            other => !other.has_run(),
        })
    }

    /// Reports whether the system goes down: all runs are being ended, and no run begins afterwards.
    #[must_use]
    pub fn is_going_down(&self) -> bool {
        matches!(self.phase, Phase::Down { .. })
    }

    /// Reports whether a component gave up, could not be restored, could not be ended, or caused the system to go down.
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
