//! The components of a system as one state machine.
//!
//! Each component has a state machine of its own, `Subject`, for what follows the death of one incarnation. The
//! supervisor decides what concerns more than one incarnation or more than one component.
//!
//! Owns: when a run of a component begins and ends, what is wanted of each component, what follows when one gives up.
//! Invariants: `step` is total: an event that does not belong to the state changes nothing. A run begins only while all
//! that the component needs is ready, and never beside another run of it. A step gives at most one order for a component,
//! notices and `Exec` apart.
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

/// How long a component may take to end after SIGTERM, before it is killed: as in `docker stop`.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The components of a system, from its start to its end.
///
/// Methods that take a `ComponentId` panic if it is one of another, larger system.
#[derive(Debug)]
pub struct Supervisor {
    plan: SystemPlan,
    /// By id.
    components: Vec<Supervised>,
    phase: Phase,
    /// What the event that is being handled has led to so far.
    orders: Vec<Order>,
}

/// What the system as a whole is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Each component is in its wanted state, or on the way to it.
    Up,
    /// All runs end, and then it is up again.
    Restarting,
    /// All runs end. This is final.
    Down {
        /// A component gave up again after the restart of the system.
        has_failed: bool,
    },
}

impl Supervisor {
    /// A system of which nothing runs yet; `SystemEvent::Up` starts it.
    #[must_use]
    pub fn new(plan: SystemPlan) -> Self {
        let components = plan.ids().map(|_| Supervised::idle()).collect();
        Self { plan, components, phase: Phase::Up, orders: Vec::new() }
    }

    /// Handles an event; returns the orders to carry out now, in this order.
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

    /// Follows a revised plan of this system: ends components that it removes, starts those that it adds, and restarts
    /// `restarted`, apart from those that an operator has stopped. All others go on. Without effect once the system goes
    /// down.
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

    /// When `SystemEvent::Due` has something to do, if nothing else happens before.
    #[must_use]
    pub fn wake(&self) -> Option<Instant> {
        self.components.iter().filter_map(Supervised::deadline).min()
    }

    /// What is decided about the system and its components.
    #[must_use]
    pub fn plan(&self) -> &SystemPlan {
        &self.plan
    }

    /// The name of a component.
    #[must_use]
    pub fn name(&self, id: ComponentId) -> &str {
        &self.plan[id].name
    }

    /// The component of this name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<ComponentId> {
        self.plan.id(name)
    }

    /// What a component is doing.
    #[must_use]
    pub fn state(&self, id: ComponentId) -> ComponentState {
        self.at(id).state
    }

    /// What a waiting component waits for: that these are ready, or that they have ended if they are being ended. Empty
    /// for a component that does not wait.
    #[must_use]
    pub fn waits_for(&self, id: ComponentId) -> Vec<ComponentId> {
        match self.at(id).state {
            ComponentState::Waiting => self.obstacles(id),
            _ => Vec::new(),
        }
    }

    /// The sum of the complaints about a component that count now.
    #[must_use]
    pub fn complaints(&self, id: ComponentId, now: Instant) -> u32 {
        self.at(id).complaints.sum(now, self.plan[id].quorum.within)
    }

    /// Whether nothing runs, and nothing will without a command. A component that an operator has stopped, or that was
    /// not asked to run yet, keeps a system open that was not asked to go down.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_down = self.is_going_down();
        self.components.iter().all(|component| match component.state {
            ComponentState::Idle | ComponentState::Stopped => is_down,
            other => !other.has_run(),
        })
    }

    /// Whether all runs are being ended for good.
    #[must_use]
    pub fn is_going_down(&self) -> bool {
        matches!(self.phase, Phase::Down { .. })
    }

    /// Whether a component gave up, could not be brought back, or took the system down with it.
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

    fn tell(&mut self, notice: SystemNotice) {
        self.orders.push(Order::Tell(notice));
    }
}

#[cfg(test)]
mod tests;
