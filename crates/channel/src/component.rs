//! Describes one component: a supervised program with its listening sockets, its addresses and its phase.
//!
//! Owns: the phase of a component, its held listening sockets, and its routes (addresses).
//! Invariants: there are at most `ROUTES_MAX` learned routes and `LISTENERS_MAX` sockets. A socket that is removed from
//! the list is closed only after the lock of the state has been released.
//! Does not: answer calls.

use std::collections::VecDeque;
use std::time::Instant;

use model::Pid;
use sys::packet_hold::SocketMark;

use crate::address::Reach;
use crate::held::{Claim, Held, Slot};
use crate::place::Identity;
use crate::route::{Route, Target};

/// Maximum number of learned routes of one component: addresses at which the program has listened. If the program
/// listens at further addresses, the oldest learned route is removed.
const ROUTES_MAX: usize = 256;
/// Maximum number of held sockets of one component. Each socket uses one or two descriptors of this process. Further
/// sockets are not held.
const LISTENERS_MAX: usize = 256;
/// Maximum number of stored sockets that are bound to port 0. If there are more, the oldest entry is removed. An entry
/// is needed until the listen(2) of its socket. Programs usually call listen(2) immediately after bind(2).
const EPHEMERAL_MAX: usize = 256;
/// Number of successive scans that must find no process with a held socket, before the socket is closed.
const ABSENCES_MAX: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// The component was never started.
    #[default]
    Expected,
    /// The component runs and is not ready. `is_restored` is true after a restore from an image.
    Running { is_restored: bool },
    /// The component is ready.
    Ready { is_restored: bool },
    /// The component is being ended, and will be started again from its beginning.
    Ending,
    /// The component has died and will be restarted.
    Dead,
    /// The component will not be restarted.
    Stopped,
}

#[derive(Debug, Default)]
pub(crate) struct Component {
    phase: Phase,
    /// Whether a tracer stops the threads of the component for checkpoints.
    pub(crate) is_traced: bool,
    /// The mark for TCP sockets, if the output of the component is held.
    pub(crate) mark: Option<SocketMark>,
    /// Whether the current incarnation listens at an address.
    pub(crate) listens: bool,
    /// Number of incarnations that have begun.
    incarnation: u64,
    /// The time after which unclaimed sockets are closed.
    claim_until: Option<Instant>,
    pub(crate) held: Vec<Held>,
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

/// The result of a scan.
#[derive(Debug)]
pub(crate) struct Found {
    incarnation: u64,
    slots: Vec<(Identity, Option<Slot>)>,
}

impl Wanted {
    /// Searches for each socket.
    pub(crate) fn find(self, root: Pid, find: impl Fn(Identity, Option<Slot>, Pid) -> Option<Slot>) -> Found {
        let slot = |(identity, last)| (identity, find(identity, last, root));
        Found { incarnation: self.incarnation, slots: self.sockets.into_iter().map(slot).collect() }
    }
}

impl Component {
    pub(crate) fn begin(&mut self, is_restored: bool, claim_until: Instant) {
        self.phase = Phase::Running { is_restored };
        self.incarnation += 1;
        self.listens = false;
        self.claim_until = Some(claim_until);
        self.held.iter_mut().for_each(|held| held.claim = Claim::Open);
    }

    /// Records that the incarnation is ready. Sockets that are still unclaimed at `claim_until` are closed.
    pub(crate) fn ready(&mut self, claim_until: Instant) {
        let is_restored = matches!(self.phase, Phase::Running { is_restored: true });
        if !matches!(self.phase, Phase::Ready { .. }) {
            self.phase = Phase::Ready { is_restored };
            self.claim_until = Some(self.claim_until.map_or(claim_until, |until| until.min(claim_until)));
        }
    }

    /// Records that the incarnation is being ended, and that the component is then started from its beginning. From now
    /// on, no scan closes a socket, because many programs close their listening sockets long before they end.
    pub(crate) fn end_for_restart(&mut self) {
        if matches!(self.phase, Phase::Running { .. } | Phase::Ready { .. }) {
            self.phase = Phase::Ending;
        }
        // Many programs unlink their path when they end.
        self.held.iter_mut().for_each(Held::keep_path);
    }

    /// While the component is being ended for a restart, gives sockets their paths again that the program has unlinked.
    /// Reports whether the program can still unlink paths.
    pub(crate) fn keep_paths(&mut self) -> bool {
        if self.phase != Phase::Ending {
            return false;
        }
        self.held.iter_mut().for_each(Held::keep_path);
        self.held.iter().any(|held| held.path.is_some())
    }

    /// Records that the incarnation has ended and that another incarnation follows.
    pub(crate) fn die(&mut self) {
        // A component with checkpoints needs no path, because a restore provides the held sockets. Its files are not
        // changed, because a restore compares files with the checkpoint. A start from the beginning does not.
        let keeps_path = !self.is_traced || self.phase == Phase::Ending;
        self.phase = Phase::Dead;
        self.claim_until = None;
        self.held.iter_mut().for_each(|held| held.prepare_wait(keeps_path));
    }

    /// Records that no further incarnation follows. The returned sockets must be closed after the lock is released.
    pub(crate) fn stop(&mut self) -> Vec<Held> {
        self.phase = Phase::Stopped;
        self.learned.clear();
        std::mem::take(&mut self.held)
    }

    pub(crate) fn declare(&mut self, routes: Vec<Route>) {
        self.declared = routes;
    }

    /// Reports whether the component will not be restarted.
    pub(crate) fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped
    }

    /// Records a socket that the program binds to port 0. The next incarnation gets another port.
    pub(crate) fn bind_anywhere(&mut self, socket: Identity) {
        if self.ephemeral.len() == EPHEMERAL_MAX {
            self.ephemeral.pop_front();
        }
        self.ephemeral.push_back(socket);
    }

    /// Reports whether the next incarnation can use a socket. A component with checkpoints can use any socket, because
    /// a restore passes the socket by its descriptor number. Other components cannot use a socket that was bound to
    /// port 0, because the next incarnation gets another port.
    pub(crate) fn is_lasting(&self, socket: Identity) -> bool {
        self.is_traced || !self.ephemeral.contains(&socket)
    }

    /// Adds a held socket. If there are too many held sockets, returns the socket, which must be closed.
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

    pub(crate) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.declared.iter().chain(&self.learned)
    }

    /// Returns the addresses at which no listening socket is held.
    pub(crate) fn bare_routes(&self) -> impl Iterator<Item = &Route> {
        let is_held = |route: &Route| self.held.iter().any(|held| Route::of(held).as_ref() == Some(route));
        self.routes().filter(move |route| !self.is_stopped() && !is_held(route))
    }

    /// Reports whether a caller of the target reaches the component at one of its addresses.
    pub(crate) fn serves(&self, target: &Target) -> Reach {
        self.routes().map(|route| route.reach(target)).find(|reach| *reach != Reach::No).unwrap_or(Reach::No)
    }

    /// Reports whether callers of the target must wait: the component is expected to listen, but does not listen yet.
    pub(crate) fn is_awaited(&self, target: &Target) -> bool {
        let is_ending = self.phase == Phase::Ending;
        let is_coming =
            is_ending || matches!(self.phase, Phase::Expected | Phase::Running { .. } | Phase::Dead);
        is_coming && !self.held_for(target).any(|held| held.is_reachable(is_ending))
    }

    /// Reports whether callers of the target would queue at a held socket that no incarnation has claimed. A restored
    /// incarnation has its listening sockets open from its first instruction on, although no scan has found them yet.
    pub(crate) fn is_unserved(&self, target: &Target) -> bool {
        if let Phase::Running { is_restored: true } | Phase::Ready { is_restored: true } = self.phase {
            return false;
        }
        let mut held = self.held_for(target).peekable();
        held.peek().is_some() && held.all(|held| held.claim == Claim::Open)
    }

    /// Returns the held sockets that callers of the target reach.
    fn held_for(&self, target: &Target) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|held| Route::of(held).is_some_and(|route| route.reach(target) != Reach::No))
    }

    /// Returns the sockets for which the next scan searches, or `None` while no incarnation runs. A restored
    /// incarnation can have any held socket open. An incarnation that was started from the beginning can only have
    /// claimed sockets open, so unclaimed sockets are left out.
    pub(crate) fn wanted(&self) -> Option<Wanted> {
        let (Phase::Running { is_restored } | Phase::Ready { is_restored }) = self.phase else { return None };
        let is_wanted = |held: &&Held| is_restored || held.claim != Claim::Open;
        let sockets = self.held.iter().filter(is_wanted).map(|held| (held.identity, held.slot)).collect();
        Some(Wanted { incarnation: self.incarnation, sockets })
    }

    /// Applies the result of a scan. Removes and returns sockets that no process has open, and sockets that were not
    /// claimed in time. The returned sockets must be closed after the lock is released.
    pub(crate) fn judge(&mut self, found: &Found, now: Instant) -> Vec<Held> {
        if found.incarnation != self.incarnation
            || matches!(self.phase, Phase::Ending | Phase::Dead | Phase::Stopped)
        {
            return Vec::new();
        }
        self.listens |= found.slots.iter().any(|slot| slot.1.is_some());
        let is_late = self.claim_until.is_some_and(|until| until <= now);
        let released: Vec<Held> = self.held.extract_if(.., |held| is_over(held, found, is_late)).collect();
        // The program no longer listens at these addresses, so callers must not wait there.
        let routes: Vec<Route> = released.iter().filter_map(Route::of).collect();
        self.learned.retain(|route| !routes.contains(route));
        released
    }
}

/// Applies the result of a scan to one socket. Reports whether the socket must be closed.
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
        // The socket was added during the scan.
        (_, None) => false,
    }
}
