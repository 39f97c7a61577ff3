//! One component: its listeners, its addresses and its phase.
//!
//! Owns: the phase of a component, its held listeners, its routes.
//! Invariants: at most `ROUTES_MAX` learned routes and `LISTENERS_MAX` listeners; a listener that leaves the list is
//! closed by the caller, outside of the lock.
//! Does not: answer calls.

use std::collections::VecDeque;
use std::time::Instant;

use model::Pid;

use crate::address::Reach;
use crate::held::{Claim, Held, Slot};
use crate::place::Identity;
use crate::route::{Route, Target};

/// Addresses that are remembered for one component beside declared ones: a program that listens at ever new ports gets
/// the oldest forgotten.
const ROUTES_MAX: usize = 256;
/// Listeners of one component that are held: one or two descriptors of this process each. Further ones are not.
const LISTENERS_MAX: usize = 256;
/// Sockets bound to port 0 that are remembered until they listen: a program listens right after it has bound.
const EPHEMERAL_MAX: usize = 256;
/// Scans in a row without a process that has a listener until it is released.
const ABSENCES_MAX: u32 = 2;

/// The phase of a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// It was never started.
    #[default]
    Expected,
    /// It runs and is not ready; from an image or from its beginning.
    Running { is_restored: bool },
    /// It is ready.
    Ready { is_restored: bool },
    /// It died and will come back.
    Dead,
    /// It is not going to come back.
    Stopped,
}

/// A component.
#[derive(Debug, Default)]
pub(crate) struct Component {
    phase: Phase,
    /// A tracer stops its threads, for checkpoints.
    pub(crate) is_traced: bool,
    /// The incarnation listens somewhere.
    pub(crate) listens: bool,
    /// How many incarnations have begun.
    incarnation: u64,
    /// When listeners that the incarnation has not taken are released.
    claim_until: Option<Instant>,
    held: Vec<Held>,
    declared: Vec<Route>,
    learned: Vec<Route>,
    /// Sockets that the program has bound to port 0.
    ephemeral: VecDeque<Identity>,
}

/// The sockets that a scan searches for.
#[derive(Debug)]
pub(crate) struct Wanted {
    incarnation: u64,
    sockets: Vec<(Identity, Option<Slot>)>,
}

/// What a scan has found.
#[derive(Debug)]
pub(crate) struct Found {
    incarnation: u64,
    slots: Vec<(Identity, Option<Slot>)>,
}

impl Wanted {
    /// Looks for each of them.
    pub(crate) fn find(self, root: Pid, find: impl Fn(Identity, Option<Slot>, Pid) -> Option<Slot>) -> Found {
        let slot = |(identity, last)| (identity, find(identity, last, root));
        Found { incarnation: self.incarnation, slots: self.sockets.into_iter().map(slot).collect() }
    }
}

impl Component {
    /// An incarnation begins.
    pub(crate) fn begin(&mut self, is_restored: bool, claim_until: Instant) {
        self.phase = Phase::Running { is_restored };
        self.incarnation += 1;
        self.listens = false;
        self.claim_until = Some(claim_until);
        self.held.iter_mut().for_each(|held| held.claim = Claim::Open);
    }

    /// The incarnation is ready: it does not claim the listeners that it has not taken by then.
    pub(crate) fn ready(&mut self, claim_until: Instant) {
        let is_restored = matches!(self.phase, Phase::Running { is_restored: true });
        if !matches!(self.phase, Phase::Ready { .. }) {
            self.phase = Phase::Ready { is_restored };
            self.claim_until = Some(self.claim_until.map_or(claim_until, |until| until.min(claim_until)));
        }
    }

    /// The incarnation has ended, and another one follows.
    pub(crate) fn die(&mut self) {
        self.phase = Phase::Dead;
        self.claim_until = None;
        // Files of a component with checkpoints are compared when it is restored, which gives it its listeners.
        let keeps_path = !self.is_traced;
        self.held.iter_mut().for_each(|held| held.prepare_wait(keeps_path));
    }

    /// No incarnation follows. The result is to be closed.
    pub(crate) fn stop(&mut self) -> Vec<Held> {
        self.phase = Phase::Stopped;
        self.learned.clear();
        std::mem::take(&mut self.held)
    }

    pub(crate) fn declare(&mut self, routes: Vec<Route>) {
        self.declared = routes;
    }

    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    pub(crate) fn held_mut(&mut self) -> &mut Vec<Held> {
        &mut self.held
    }

    /// Whether it is not going to come back.
    pub(crate) fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped
    }

    /// Notes a socket that the program binds to port 0. The next incarnation gets another port.
    pub(crate) fn bind_anywhere(&mut self, socket: Identity) {
        if self.ephemeral.len() == EPHEMERAL_MAX {
            self.ephemeral.pop_front();
        }
        self.ephemeral.push_back(socket);
    }

    /// Whether a listener is of use to the next incarnation. One from a checkpoint gets it by its number.
    pub(crate) fn is_lasting(&self, socket: Identity) -> bool {
        self.is_traced || !self.ephemeral.contains(&socket)
    }

    /// Adds a listener, unless there are too many; the result, if any, is to be closed.
    pub(crate) fn hold(&mut self, held: Held) -> Option<Held> {
        if self.held.len() == LISTENERS_MAX {
            return Some(held);
        }
        if let Some(route) = Route::of(&held).filter(|route| !self.routes().any(|own| own == route)) {
            if self.learned.len() == ROUTES_MAX {
                self.learned.remove(0);
            }
            self.learned.push(route);
        }
        self.held.push(held);
        None
    }

    /// Its addresses.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.declared.iter().chain(&self.learned)
    }

    /// Addresses at which no listener is held.
    pub(crate) fn bare_routes(&self) -> impl Iterator<Item = &Route> {
        let is_held = |route: &Route| self.held.iter().any(|held| Route::of(held).as_ref() == Some(route));
        self.routes().filter(move |route| !self.is_stopped() && !is_held(route))
    }

    /// Whether callers of the target reach it, by its addresses.
    pub(crate) fn serves(&self, target: &Target) -> Reach {
        self.routes().map(|route| route.reach(target)).find(|reach| *reach != Reach::No).unwrap_or(Reach::No)
    }

    /// Whether callers of the target have to wait for it: it is expected to listen and does not yet.
    pub(crate) fn is_awaited(&self, target: &Target) -> bool {
        let is_coming = matches!(self.phase, Phase::Expected | Phase::Running { .. } | Phase::Dead);
        is_coming && !self.held_for(target).any(Held::is_reachable)
    }

    /// Whether callers of the target would queue at a listener that no incarnation has.
    pub(crate) fn is_unserved(&self, target: &Target) -> bool {
        let mut held = self.held_for(target).peekable();
        held.peek().is_some() && held.all(|held| held.claim == Claim::Open)
    }

    /// The listeners that callers of the target reach.
    fn held_for(&self, target: &Target) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|held| Route::of(held).is_some_and(|route| route.reach(target) != Reach::No))
    }

    /// What a scan has to look for now; `None` while no incarnation runs. Only a restored incarnation can have listeners
    /// that were not handed out here.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        let (Phase::Running { is_restored } | Phase::Ready { is_restored }) = self.phase else { return None };
        let is_wanted = |held: &&Held| is_restored || held.claim != Claim::Open;
        let sockets = self.held.iter().filter(is_wanted).map(|held| (held.identity, held.slot)).collect();
        Some(Wanted { incarnation: self.incarnation, sockets })
    }

    /// Takes what a scan has found, and takes out listeners that no process has any more, or that were not taken in time.
    /// The result is to be closed.
    pub(crate) fn judge(&mut self, found: &Found, now: Instant) -> Vec<Held> {
        if found.incarnation != self.incarnation || matches!(self.phase, Phase::Dead | Phase::Stopped) {
            return Vec::new();
        }
        self.listens |= found.slots.iter().any(|slot| slot.1.is_some());
        let is_late = self.claim_until.is_some_and(|until| until <= now);
        let released: Vec<Held> = self.held.extract_if(.., |held| is_over(held, found, is_late)).collect();
        // Callers do not wait for a listener that was closed on purpose.
        let routes: Vec<Route> = released.iter().filter_map(Route::of).collect();
        self.learned.retain(|route| !routes.contains(route));
        released
    }
}

/// Takes what a scan has found of one listener; whether it is to be released.
fn is_over(held: &mut Held, found: &Found, is_late: bool) -> bool {
    let slot = found.slots.iter().find(|slot| slot.0 == held.identity).map(|slot| slot.1);
    match (held.claim, slot) {
        (_, Some(Some(slot))) => {
            held.take(slot);
            false
        }
        (Claim::Open, _) => is_late,
        (_, Some(None)) => {
            held.absences += 1;
            held.absences >= ABSENCES_MAX
        }
        // It was added during the scan.
        (_, None) => false,
    }
}
