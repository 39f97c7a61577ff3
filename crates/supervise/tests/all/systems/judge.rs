//! The invariants of a system, checked after every step of a simulation.
//!
//! A run of a component consists of incarnations: a death is followed by a restart within the run.
//!
//! Owns: the invariants, and the history of events and orders that the invariants need.
//! Does not: create events, or use a plan (`SystemPlan`): needs and groups are those of the random system (`spec`).

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use undying_supervise::{
    AfterGiveUp, Complainant, ComponentId, ComponentState, End, Fault, GiveUp, Order, Policy, STOP_TIMEOUT,
    Supervisor, SystemEvent, SystemNotice,
};

use super::spec::{COMPLAINTS_WITHIN, READY_TIMEOUT, Spec, WINDOW};

/// The number of steps that a failure prints.
const SHOWN: usize = 40;

/// Checks the invariants, and records all events and orders.
pub(super) struct Judge {
    seed: u64,
    base: Instant,
    known: Vec<Known>,
    /// Whether the system goes down: no run begins afterwards.
    pub(super) is_down: bool,
    /// Whether the system is being restarted: all runs end before another run begins.
    is_restarting: bool,
    shown: VecDeque<(Instant, SystemEvent, Vec<Order>)>,
}

/// The recorded state of one component.
#[derive(Clone, Default)]
struct Known {
    has_run: bool,
    began: Option<Instant>,
    /// The time at which the current incarnation was started.
    alive: Option<Instant>,
    is_ready: bool,
    /// Whether the run must end, because of a command or because another component gave up.
    is_to_end: bool,
    /// The time at which the component was asked to end.
    end_asked: Option<Instant>,
    is_killed: bool,
    fault: Option<Fault>,
    /// Whether a run of the component may begin.
    may_run: bool,
    is_stopped_by_operator: bool,
    was_asked_to_run: bool,
    /// Whether the program of the last run may still run.
    is_left: bool,
    is_last_try: bool,
    /// The complaints about the current incarnation: time, complainant and weight.
    complaints: Vec<(Instant, Complainant, u32)>,
}

impl Judge {
    pub(super) fn new(seed: u64, base: Instant, components: usize) -> Self {
        let known = vec![Known::default(); components];
        Self { seed, base, known, is_down: false, is_restarting: false, shown: VecDeque::new() }
    }

    /// Checks all invariants after a step.
    pub(super) fn check(
        &mut self,
        spec: &Spec,
        supervisor: &Supervisor,
        now: Instant,
        event: SystemEvent,
        orders: &[Order],
    ) {
        if self.shown.len() == SHOWN {
            self.shown.pop_front();
        }
        self.shown.push_back((now, event, orders.to_vec()));
        let own_death = self.note(spec, now, event);
        self.note_restart();
        self.check_group(spec, own_death, orders);
        let mut ordered = Vec::new();
        for order in orders {
            if let Order::Run(id) | Order::End(id) | Order::KillRun(id) | Order::Fail(id, _) = order {
                self.assert(spec, !ordered.contains(id), "two orders for one component");
                ordered.push(*id);
            }
            self.check_order(spec, now, event, own_death, *order);
        }
        self.check_states(spec, supervisor);
    }

    /// Records an event. Returns the component that has died of its own cause, and not because of its group.
    fn note(&mut self, spec: &Spec, now: Instant, event: SystemEvent) -> Option<usize> {
        match event {
            SystemEvent::Up => (0..self.known.len()).for_each(|id| self.may_run(id)),
            SystemEvent::Start(id) | SystemEvent::Restart(id) => {
                for need in &spec.components[id.index()].all_needs {
                    self.may_run_for_another(*need);
                }
                self.may_run(id.index());
                if matches!(event, SystemEvent::Restart(_)) {
                    let known = &mut self.known[id.index()];
                    (known.is_last_try, known.is_to_end) = (false, known.has_run);
                }
            }
            SystemEvent::Stop(id) => {
                let known = &mut self.known[id.index()];
                (known.may_run, known.is_stopped_by_operator) = (false, true);
                known.is_to_end = known.has_run;
            }
            SystemEvent::Down => self.is_down = true,
            SystemEvent::Started(id) => {
                self.begins_incarnation(id, now, !spec.components[id.index()].has_ready)
            }
            SystemEvent::Restored(id) => self.begins_incarnation(id, now, true),
            SystemEvent::Ready(id) => {
                let known = &mut self.known[id.index()];
                known.is_ready |= known.alive.is_some() && known.fault.is_none() && known.end_asked.is_none();
            }
            SystemEvent::Died(id, _) => return self.dies(id),
            SystemEvent::Ended(id, end) => {
                let died = self.dies(id);
                let known = &mut self.known[id.index()];
                known.has_run = false;
                // A component that ends without a command may only run again for a new reason.
                known.is_left = end == End::Left;
                known.may_run &= known.is_to_end && !known.is_left;
                (known.end_asked, known.is_to_end) = (None, false);
                return died;
            }
            SystemEvent::Complaint { about, by, weight } => {
                let known = &mut self.known[about.index()];
                known.complaints.push((now, by, weight.get()));
            }
            SystemEvent::RestartRequested(id) => {
                let known = &mut self.known[id.index()];
                known.fault = known.alive.and(Some(Fault::Requested));
            }
            SystemEvent::Due | SystemEvent::Fault(..) => {}
        }
        None
    }

    /// Ends the restart phase of the system when all runs have ended.
    fn note_restart(&mut self) {
        self.is_restarting &= !self.is_down && self.known.iter().any(|known| known.has_run);
    }

    fn may_run(&mut self, id: usize) {
        self.may_run_for_another(id);
        let known = &mut self.known[id];
        known.is_last_try &= known.has_run;
    }

    fn may_run_for_another(&mut self, id: usize) {
        let known = &mut self.known[id];
        (known.may_run, known.was_asked_to_run) = (true, true);
        (known.is_stopped_by_operator, known.is_left) = (false, false);
    }

    fn begins_incarnation(&mut self, id: ComponentId, now: Instant, is_ready: bool) {
        let known = &mut self.known[id.index()];
        (known.alive, known.fault) = (Some(now), None);
        known.is_ready = is_ready && known.end_asked.is_none();
    }

    fn dies(&mut self, id: ComponentId) -> Option<usize> {
        let known = &mut self.known[id.index()];
        let was_alive = known.alive.take().is_some() && !known.is_to_end;
        known.is_ready = false;
        known.complaints.clear();
        let fault = known.fault.take();
        (was_alive && fault.is_none_or(Fault::is_own)).then_some(id.index())
    }

    fn check_order(
        &mut self,
        spec: &Spec,
        now: Instant,
        event: SystemEvent,
        own_death: Option<usize>,
        order: Order,
    ) {
        match order {
            Order::Run(id) => self.check_run(spec, now, id.index()),
            Order::End(id) => self.check_end(spec, now, id.index()),
            Order::KillRun(id) => {
                let known = &self.known[id.index()];
                let is_late = known.end_asked.is_some_and(|at| now >= at + STOP_TIMEOUT);
                self.assert(spec, known.has_run && is_late && !known.is_killed, "a kill without its timeout");
                self.known[id.index()].is_killed = true;
            }
            Order::Fail(id, fault) => self.check_fail(spec, now, event, own_death, (id, fault)),
            Order::Exec(id) => {
                let is_meant = spec.components[id.index()].on_give_up == GiveUp::Exec;
                self.assert(spec, is_meant && !self.known[id.index()].has_run, "a program is run");
            }
            Order::Report(notice) => self.check_notice(spec, now, notice),
        }
    }

    fn check_run(&mut self, spec: &Spec, now: Instant, id: usize) {
        let needs = &spec.components[id].needs;
        let known = &self.known[id];
        self.assert(spec, !known.has_run, "two runs of a component at once");
        self.assert(spec, needs.iter().all(|need| self.known[*need].is_ready), "a need is not ready");
        self.assert(spec, known.may_run, "a run without a reason");
        self.assert(spec, !self.is_down, "a run while the system goes down");
        self.assert(spec, !self.is_restarting, "a run while the system is being ended");
        let is_held =
            (0..self.known.len()).any(|other| spec.depends(other, id) && self.known[other].is_to_end);
        self.assert(spec, !is_held, "a run before the end of its dependents");
        let known = &mut self.known[id];
        (known.has_run, known.began, known.is_killed) = (true, Some(now), false);
    }

    fn check_end(&mut self, spec: &Spec, now: Instant, id: usize) {
        let known = &self.known[id];
        self.assert(spec, known.has_run && known.end_asked.is_none(), "an end twice, or without a run");
        self.assert(spec, known.is_to_end || self.is_down, "an end without a reason");
        let is_all = self.is_down || self.is_restarting;
        let is_first = (0..self.known.len()).filter(|other| spec.depends(*other, id)).all(|other| {
            let other = &self.known[other];
            !other.has_run || !is_all && other.end_asked.is_none()
        });
        self.assert(spec, is_first, "an end before those of its dependents");
        (self.known[id].end_asked, self.known[id].is_ready) = (Some(now), false);
    }

    fn check_fail(
        &mut self,
        spec: &Spec,
        now: Instant,
        event: SystemEvent,
        own_death: Option<usize>,
        (id, fault): (ComponentId, Fault),
    ) {
        let known = &self.known[id.index()];
        self.assert(spec, known.alive.is_some(), "a dead component is killed");
        self.assert(spec, known.fault.is_none(), "a component is killed twice");
        self.assert(spec, !known.is_to_end, "a component that is to end is killed for a fault");
        let component = &spec.components[id.index()];
        match fault {
            Fault::NotReady => {
                let is_late = known.alive.is_some_and(|started| now >= started + READY_TIMEOUT);
                let is_meant = component.has_ready && !known.is_ready;
                self.assert(spec, is_late && is_meant, "killed although it is ready in time");
            }
            Fault::Group => {
                let is_meant = own_death.is_some_and(|died| spec.shares_fate(id.index(), died));
                self.assert(spec, is_meant, "a group restarts a member without a death");
                self.assert(spec, component.policy != Policy::Never, "a member is killed for good");
            }
            Fault::Complaints => {
                let sum = self.complaints(spec, now, id.index());
                self.assert(
                    spec,
                    sum >= component.quorum.map_or(2, NonZeroU32::get),
                    "complaints below the quorum",
                );
            }
            _ => self.assert(spec, event == SystemEvent::Fault(id, fault), "a fault without a report"),
        }
        self.known[id.index()].fault = Some(fault);
    }

    /// Checks the group of a component that has died of its own cause: exactly the living members that share its fate
    /// and can restart are killed.
    fn check_group(&self, spec: &Spec, own_death: Option<usize>, orders: &[Order]) {
        let restarts_others = |order: &Order| {
            matches!(order, Order::Report(SystemNotice::GaveUp { .. } | SystemNotice::SystemRestarts))
        };
        let Some(died) = own_death.filter(|_| !orders.iter().any(restarts_others)) else { return };
        for (id, known) in self.known.iter().enumerate() {
            let lives = known.alive.is_some() && known.fault.is_none() && !known.is_to_end && !self.is_down;
            let comes_back = spec.components[id].policy != Policy::Never;
            let is_killed = orders
                .iter()
                .any(|order| matches!(order, Order::Fail(killed, Fault::Group) if killed.index() == id));
            let is_meant = lives && comes_back && spec.shares_fate(id, died);
            self.assert(spec, is_killed == is_meant, "a group restarts other members than it should");
        }
    }

    /// Returns the sum of the heaviest recent complaints of all permitted complainants.
    fn complaints(&self, spec: &Spec, now: Instant, about: usize) -> u32 {
        let recent = |by: Complainant| {
            let all = self.known[about].complaints.iter();
            all.filter(|(at, other, _)| *other == by && now.duration_since(*at) <= COMPLAINTS_WITHIN)
                .map(|(_, _, weight)| *weight)
                .max()
                .unwrap_or(0)
        };
        let mut seen = Vec::new();
        for (_, by, _) in &self.known[about].complaints {
            let may = match by {
                Complainant::Operator => true,
                Complainant::Component(id) => spec.components[id.index()].needs.contains(&about),
            };
            if may && !seen.contains(by) {
                seen.push(*by);
            }
        }
        seen.into_iter().map(recent).sum()
    }

    fn check_notice(&mut self, spec: &Spec, now: Instant, notice: SystemNotice) {
        match notice {
            SystemNotice::GaveUp { id, follows, .. } => {
                let known = &self.known[id.index()];
                let is_bad = known.is_last_try && known.began.is_some_and(|began| now <= began + 2 * WINDOW);
                let restarts =
                    matches!(follows, AfterGiveUp::RestartsDependents | AfterGiveUp::RestartsSystem);
                self.assert(spec, !(restarts && is_bad), "restarted again without a good run");
                if follows == AfterGiveUp::RestartsDependents {
                    let known = &mut self.known[id.index()];
                    (known.may_run, known.is_last_try) = (true, true);
                    for other in (0..self.known.len()).filter(|other| spec.depends(*other, id.index())) {
                        self.known[other].is_to_end = self.known[other].has_run;
                    }
                }
            }
            SystemNotice::SystemRestarts => {
                self.is_restarting = true;
                for known in &mut self.known {
                    known.may_run = known.was_asked_to_run && !known.is_stopped_by_operator && !known.is_left;
                    known.is_last_try |= known.may_run;
                    known.is_to_end = known.has_run;
                }
            }
            SystemNotice::SystemGoesDown { .. } => self.is_down = true,
            _ => {}
        }
        self.note_restart();
    }

    /// Checks that the states of the supervisor agree with the recorded events and orders.
    fn check_states(&self, spec: &Spec, supervisor: &Supervisor) {
        for id in supervisor.plan().ids() {
            let (state, known) = (supervisor.state(id), &self.known[id.index()]);
            self.assert(spec, state.has_run() == known.has_run, "a run is not known");
            self.assert(spec, state.is_ready() == known.is_ready, "readiness differs");
            self.assert(spec, state.is_stopping() == known.end_asked.is_some(), "an end is not known");
            let waits_for = supervisor.waits_for(id);
            let waits = state == ComponentState::Waiting;
            self.assert(spec, waits != waits_for.is_empty(), "it waits for nothing");
        }
        let has_runs = self.known.iter().any(|known| known.has_run);
        self.assert(spec, !(has_runs && supervisor.is_over()), "the system is over and something runs");
    }

    /// Checks a system without pending events and deadlines: no component is stuck.
    pub(super) fn is_not_stuck(&self, spec: &Spec, supervisor: &Supervisor) {
        for id in supervisor.plan().ids() {
            let state = supervisor.state(id);
            self.assert(spec, state.is_ready() || !state.has_run(), "it is stuck");
            let mut needs = spec.components[id.index()].needs.iter();
            let is_free = !self.is_down && needs.all(|need| self.known[*need].is_ready);
            let is_missing = self.known[id.index()].may_run && is_free && !state.is_ready();
            self.assert(spec, !is_missing, "it does not run although nothing prevents it");
        }
    }

    /// Checks that all components are ready, after all components were asked to run and failures have stopped.
    pub(super) fn is_up(&self, spec: &Spec, supervisor: &Supervisor) {
        let is_up = supervisor.plan().ids().all(|id| supervisor.state(id).is_ready());
        self.assert(spec, is_up, "a component is not ready although nothing fails any more");
    }

    pub(super) fn has_ended(&self, spec: &Spec, supervisor: &Supervisor, took: Duration) {
        let is_over = supervisor.is_over() && self.known.iter().all(|known| !known.has_run);
        self.assert(spec, is_over, "the system is not over");
        // For each component of a chain: the timeout of a stop, and at most the same time again for the kill.
        let bound = 2 * STOP_TIMEOUT * self.known.len() as u32;
        self.assert(spec, took <= bound, "the end took too long");
    }

    #[track_caller]
    pub(super) fn assert(&self, spec: &Spec, holds: bool, what: &str) {
        if !holds {
            let mut text = format!("seed {}: {what}\n{spec:?}\n", self.seed);
            for (time, event, orders) in &self.shown {
                let at = time.duration_since(self.base).as_secs_f64();
                let _ = writeln!(text, "{at:12.6} {event:?}\n             -> {orders:?}");
            }
            panic!("{text}");
        }
    }
}
