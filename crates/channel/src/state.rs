//! The state of all components of one guardian, behind one lock.
//!
//! Owns: the components, the waiting callers, and the sockets that are about to listen.
//! Invariants: a change that ends the wait of callers also removes these callers from the list, under the same lock.
//! Does not: answer calls or close sockets. The caller does both after it has released the lock.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::address::Reach;
use crate::callers::{Caller, Callers};
use crate::component::Component;
use crate::held::{Held, Taken};
use crate::id::ComponentId;
use crate::place::Place;
use crate::route::{Route, Target};

/// Maximum number of sockets whose listen(2) is not confirmed yet. Each thread has at most one such socket.
const PENDING_MAX: usize = 256;

/// A socket whose listen(2) continues in the kernel and is not confirmed yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) component: ComponentId,
    pub(crate) taken: Taken,
    pub(crate) place: Option<Place>,
    /// If the call is not confirmed until this time, the call has failed.
    pub(crate) deadline: Instant,
}

/// The callers to answer and the sockets to close after the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) callers: Vec<Caller>,
    pub(crate) closed: Vec<Held>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) components: BTreeMap<ComponentId, Component>,
    pub(crate) callers: Callers,
    pub(crate) pending: Vec<Pending>,
    /// Whether the channels are being dropped. Further calls are then not handled.
    pub(crate) is_ending: bool,
}

impl Outcome {
    /// Closes the sockets first, and then lets the callers proceed. Callers of a closed socket are therefore refused.
    pub(crate) fn settle(self) {
        self.closed.into_iter().for_each(Held::close);
        self.callers.into_iter().for_each(Caller::proceed);
    }
}

impl State {
    pub(crate) fn component(&mut self, id: ComponentId) -> &mut Component {
        self.components.entry(id).or_default()
    }

    /// Removes and returns the callers of a provider that need not wait any longer.
    pub(crate) fn release(&mut self, provider: ComponentId) -> Vec<Caller> {
        let Some(component) = self.components.get(&provider) else { return Vec::new() };
        let ends = |caller: &Caller| caller.provider == provider && !component.is_awaited(&caller.target);
        self.callers.take(ends)
    }

    /// Reports whether a component has an address that is a path.
    pub(crate) fn has_paths(&self) -> bool {
        let is_path = |route: &Route| matches!(route, Route::Bound(..) | Route::Declared(_));
        self.components.values().any(|component| component.routes().any(is_path))
    }

    /// Returns the component for which a caller must wait. With [`Reach::IfLocal`], the caller waits only if its target
    /// is an address of this machine. Returns `None` if a component already serves the target, or if no component will
    /// serve it.
    pub(crate) fn awaited(&self, own: ComponentId, target: &Target) -> Option<(ComponentId, Reach)> {
        let is_own = self.components.get(&own).is_some_and(|own| own.serves(target) != Reach::No);
        if is_own {
            return None;
        }
        let mut awaited = None;
        for (id, component) in &self.components {
            let reach = component.serves(target);
            if *id == own || reach == Reach::No || component.is_stopped() {
                continue;
            }
            if !component.is_awaited(target) {
                return None;
            }
            awaited = awaited.or(Some((*id, reach)));
        }
        awaited
    }

    /// Gives sockets of components that are being ended for a restart their paths again. Reports whether further paths
    /// can be unlinked.
    pub(crate) fn keep_paths(&mut self) -> bool {
        let mut is_due = false;
        for component in self.components.values_mut() {
            is_due |= component.keep_paths();
        }
        is_due
    }

    /// Records a socket whose listen(2) continues in the kernel.
    pub(crate) fn expect_listen(&mut self, pending: Pending) {
        if self.pending.len() < PENDING_MAX {
            self.pending.push(pending);
        }
    }

    /// Moves the sockets that now listen to the held sockets.
    pub(crate) fn confirm(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let (listening, waiting) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|pending: &Pending| pending.taken.listens());
        self.pending = waiting;
        self.pending.retain(|pending| pending.deadline > now);
        for pending in listening {
            let component = self.component(pending.component);
            let is_known = component.held.iter().any(|held| held.identity == pending.taken.identity);
            component.listens = true;
            if is_known || component.is_stopped() {
                continue;
            }
            if let Some(held) = Held::new(pending.taken, pending.place) {
                outcome.closed.extend(component.hold(held));
                outcome.callers.extend(self.release(pending.component));
            }
        }
        outcome
    }
}
