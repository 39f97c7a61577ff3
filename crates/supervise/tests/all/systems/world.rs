//! A simulated machine for one random system: programs start, become ready, die and restart, and operators send
//! commands.
//!
//! A run of a component consists of incarnations: a death is followed by a restart within the run.
//!
//! Owns: the simulated events, their times, and the answers to the orders of the supervisor
//! (`undying_supervise::Supervisor`).
//! Invariants: all randomness comes from the seed. The simulation keeps the guarantees of a real guardian (the process
//! that supervises a system): for example, each `Run` is answered.
//! Does not: check invariants; `judge` does.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use fastrand::Rng;
use model::Signal;
use undying_supervise::{
    AfterGiveUp, Complainant, ComponentId, End, Failure, Fault, Order, Policy, SubjectStatus, Supervisor,
    System, SystemEvent, SystemNotice, SystemPlan,
};

use super::judge::Judge;
use super::spec::{READY_TIMEOUT, Spec, WINDOW};

/// The number of events in the first part of a simulation, with failures.
const STEPS: usize = 60;
/// The maximum number of events until a system without failures is at rest.
const LAST_STEPS: usize = 1_000;
/// The statuses with which programs end.
const ENDS: [SubjectStatus; 3] =
    [SubjectStatus::Exited(0), SubjectStatus::Exited(1), SubjectStatus::Killed(Signal(11))];
const KILLED: SubjectStatus = SubjectStatus::Killed(Signal(9));
/// The faults that checks report. The supervisor itself decides about all other faults.
const CHECKED: [Fault; 3] = [Fault::Hang, Fault::Memory, Fault::MissedHeartbeat];

/// The number of occurrences of each type of event.
#[derive(Default, Debug)]
pub(super) struct Counts {
    steps: u64,
    runs: u64,
    deaths: u64,
    kills: u64,
    not_ready: u64,
    complaint_restarts: u64,
    group_restarts: u64,
    dependents_restarts: u64,
    system_restarts: u64,
    failed_systems: u64,
    programs: u64,
    stayed_dead: u64,
}

impl Counts {
    fn all(&mut self) -> [&mut u64; 12] {
        let Self { steps, runs, deaths, kills, not_ready, complaint_restarts, .. } = self;
        let Self { group_restarts, dependents_restarts, system_restarts, .. } = self;
        let Self { failed_systems, programs, stayed_dead, .. } = self;
        [
            steps,
            runs,
            deaths,
            kills,
            not_ready,
            complaint_restarts,
            group_restarts,
            dependents_restarts,
            system_restarts,
            failed_systems,
            programs,
            stayed_dead,
        ]
    }

    pub(super) fn add(&mut self, other: &mut Self) {
        self.all().into_iter().zip(other.all()).for_each(|(sum, count)| *sum += *count);
    }

    /// Asserts that each counted event has occurred. An event that never occurs is not tested.
    pub(super) fn assert_all_seen(&mut self) {
        let text = format!("{self:?}");
        assert!(self.all().into_iter().all(|count| *count > 0), "{text}");
    }
}

/// A future event.
#[derive(Clone, Copy, Debug)]
enum Coming {
    /// The event is reported if the run has not changed.
    OfRun(ComponentId, u32, SystemEvent),
    /// The event is reported if the incarnation has not changed.
    OfIncarnation(ComponentId, u32, SystemEvent),
    /// An incarnation dies, with or without a kill.
    Death { id: ComponentId, incarnation: u32, status: SubjectStatus },
}

/// The simulated process of a component.
#[derive(Default)]
struct Process {
    /// The number of beginnings and ends of runs.
    run: u32,
    /// The number of beginnings and ends of incarnations.
    incarnation: u32,
    is_alive: bool,
    is_asked_to_end: bool,
    is_killed_for: Option<Fault>,
    restarts: VecDeque<Instant>,
}

/// The simulated machine.
pub(super) struct World {
    pub(super) counts: Counts,
    random: Rng,
    now: Instant,
    spec: Spec,
    supervisor: Supervisor,
    judge: Judge,
    processes: Vec<Process>,
    coming: Vec<(Instant, Coming)>,
    /// Whether failures have stopped.
    is_quiet: bool,
}

impl World {
    pub(super) fn new(seed: u64, base: Instant, template: &System) -> Self {
        let mut random = Rng::with_seed(seed);
        let spec = Spec::random(&mut random);
        let supervisor = Supervisor::new(SystemPlan::of(&spec.system(template), random.u64(..)));
        let judge = Judge::new(seed, base, spec.components.len());
        let processes = spec.components.iter().map(|_| Process::default()).collect();
        Self {
            counts: Counts::default(),
            random,
            now: base,
            spec,
            supervisor,
            judge,
            processes,
            coming: Vec::new(),
            is_quiet: false,
        }
    }

    /// Simulates a phase with failures, a phase without failures, and the end of the system.
    pub(super) fn live(&mut self) {
        let first = if self.random.u8(..4) > 0 { SystemEvent::Up } else { SystemEvent::Start(self.any()) };
        self.report(first);
        for _ in 0..STEPS {
            if self.random.u8(..4) == 0 {
                self.interfere();
            } else if !self.next_thing() {
                self.now += WINDOW;
            }
        }
        self.is_quiet = true;
        self.come_to_rest();
        if !self.judge.is_down {
            self.report(SystemEvent::Up);
            self.come_to_rest();
            self.judge.is_up(&self.spec, &self.supervisor);
        }
        let asked = self.now;
        self.report(SystemEvent::Down);
        self.come_to_rest();
        self.judge.has_ended(&self.spec, &self.supervisor, self.now.duration_since(asked));
    }

    fn come_to_rest(&mut self) {
        let is_at_rest = (0..LAST_STEPS).any(|_| !self.next_thing());
        self.judge.assert(&self.spec, is_at_rest, "the system does not come to rest");
        self.judge.is_not_stuck(&self.spec, &self.supervisor);
    }

    /// Advances the time to the next event and handles the event. Returns `false` if there is no future event.
    fn next_thing(&mut self) -> bool {
        let earliest = (0..self.coming.len()).min_by_key(|index| self.coming[*index].0);
        match (earliest, self.supervisor.wake()) {
            (Some(index), wake) if wake.is_none_or(|wake| self.coming[index].0 < wake) => {
                let (time, thing) = self.coming.swap_remove(index);
                self.now = self.now.max(time);
                self.happen(thing);
            }
            (_, Some(wake)) => {
                self.now = self.now.max(wake);
                self.report(SystemEvent::Due);
            }
            (_, None) => return false,
        }
        true
    }

    fn any(&mut self) -> ComponentId {
        let ids: Vec<ComponentId> = self.supervisor.plan().ids().collect();
        ids[self.random.usize(..ids.len())]
    }

    /// Reports a random command, a complaint, or a fault that a check has found.
    fn interfere(&mut self) {
        let id = self.any();
        let event = match self.random.u8(..40) {
            0..4 => SystemEvent::Start(id),
            4..8 => SystemEvent::Stop(id),
            8..12 => SystemEvent::Restart(id),
            12..14 => SystemEvent::Up,
            14 => return self.restart_with_state(id),
            15 if self.random.u8(..8) == 0 => SystemEvent::Down,
            15..22 => SystemEvent::Fault(id, CHECKED[self.random.usize(..CHECKED.len())]),
            _ => {
                let other = self.any();
                let by =
                    if self.random.bool() { Complainant::Operator } else { Complainant::Component(other) };
                let weight = NonZeroU32::MIN.saturating_add(self.random.u32(..3));
                SystemEvent::Complaint { about: id, by, weight }
            }
        };
        self.report(event);
    }

    /// Kills a living component for a requested restart.
    fn restart_with_state(&mut self, id: ComponentId) {
        let process = &mut self.processes[id.index()];
        if !process.is_alive || process.is_asked_to_end || process.is_killed_for.is_some() {
            return;
        }
        process.is_killed_for = Some(Fault::Requested);
        let incarnation = process.incarnation;
        self.come(20, Coming::Death { id, incarnation, status: KILLED });
        self.report(SystemEvent::RestartRequested(id));
    }

    fn happen(&mut self, thing: Coming) {
        match thing {
            Coming::OfRun(id, run, event) if self.processes[id.index()].run == run => self.report(event),
            Coming::OfIncarnation(id, incarnation, event)
                if self.processes[id.index()].incarnation == incarnation =>
            {
                self.report(event);
            }
            Coming::Death { id, incarnation, status }
                if self.processes[id.index()].incarnation == incarnation
                    && (status == KILLED || !self.is_quiet) =>
            {
                self.die(id, status);
            }
            _ => {}
        }
    }

    /// Simulates a death, and the decision that the state machine of the component makes about it.
    fn die(&mut self, id: ComponentId, status: SubjectStatus) {
        self.counts.deaths += 1;
        let spec = &self.spec.components[id.index()];
        let process = &mut self.processes[id.index()];
        let is_own = process.is_killed_for.take().is_none_or(Fault::is_own);
        (process.is_alive, process.incarnation) = (false, process.incarnation + 1);
        let run = process.run;
        let is_over = process.is_asked_to_end || spec.policy == Policy::Never;
        if is_own {
            let now = self.now;
            process.restarts.retain(|time| now.duration_since(*time) <= WINDOW);
        }
        let has_given_up = is_own && process.restarts.len() >= spec.restarts_max.get() as usize;
        if is_own {
            process.restarts.push_back(self.now);
        }
        let end = if is_over { End::Over(status) } else { End::GaveUp(status) };
        if (is_over || has_given_up) && self.random.bool() {
            // The death and the end of the run may be reported as one event.
            return self.report(SystemEvent::Ended(id, end));
        }
        let is_lost = !self.is_quiet && !is_over && self.random.u8(..60) == 0;
        let end = if is_lost { End::Failed(Failure::LastError) } else { end };
        if is_lost && self.random.bool() {
            return self.report(SystemEvent::Ended(id, end));
        }
        self.report(SystemEvent::Died(id, status));
        let next = match self.random.u8(..60) {
            _ if is_over || has_given_up || is_lost => SystemEvent::Ended(id, end),
            0..30 => SystemEvent::Restored(id),
            _ => SystemEvent::Started(id),
        };
        self.come(2_000, Coming::OfRun(id, run, next));
    }

    /// Reports an event to the supervisor, and carries out the resulting orders.
    fn report(&mut self, event: SystemEvent) {
        self.counts.steps += 1;
        self.note(event);
        let orders = self.supervisor.step(self.now, event);
        self.judge.check(&self.spec, &self.supervisor, self.now, event, &orders);
        for order in orders {
            self.carry_out(order);
        }
    }

    /// Updates the simulated processes for an event.
    fn note(&mut self, event: SystemEvent) {
        match event {
            SystemEvent::Started(id) | SystemEvent::Restored(id) => {
                let process = &mut self.processes[id.index()];
                (process.is_alive, process.incarnation) = (true, process.incarnation + 1);
                self.begin_incarnation(id, matches!(event, SystemEvent::Started(_)));
            }
            SystemEvent::Ended(id, _) => {
                let process = &mut self.processes[id.index()];
                (process.run, process.incarnation) = (process.run + 1, process.incarnation + 1);
                (process.is_alive, process.is_killed_for) = (false, None);
            }
            _ => {}
        }
    }

    fn begin_incarnation(&mut self, id: ComponentId, is_from_beginning: bool) {
        let incarnation = self.processes[id.index()].incarnation;
        let is_late = !self.is_quiet && self.random.u8(..8) == 0;
        let ready = Coming::OfIncarnation(id, incarnation, SystemEvent::Ready(id));
        if is_from_beginning && self.spec.components[id.index()].has_ready {
            let most = READY_TIMEOUT.as_millis() as u64 * if is_late { 3 } else { 1 };
            self.come(most - 1, ready);
        } else if self.random.u8(..8) == 0 {
            // A component without a condition for readiness may report readiness, too.
            self.come(1_000, ready);
        }
        if self.random.u8(..3) > 0 {
            let status = ENDS[self.random.usize(..ENDS.len())];
            let lives = [100, 10_000, 200_000][self.random.usize(..3)];
            self.come(lives, Coming::Death { id, incarnation, status });
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Run(id) => self.run(id),
            Order::End(id) => self.end(id),
            Order::KillRun(id) => {
                self.counts.kills += 1;
                self.over(id, 100, KILLED);
            }
            Order::Fail(id, fault) => {
                match fault {
                    Fault::NotReady => self.counts.not_ready += 1,
                    Fault::Complaints => self.counts.complaint_restarts += 1,
                    Fault::Group => self.counts.group_restarts += 1,
                    _ => {}
                }
                let process = &mut self.processes[id.index()];
                process.is_killed_for = Some(fault);
                let incarnation = process.incarnation;
                self.come(20, Coming::Death { id, incarnation, status: KILLED });
            }
            Order::Exec(_) => self.counts.programs += 1,
            Order::Report(SystemNotice::GaveUp { follows, .. }) => match follows {
                AfterGiveUp::StaysDead => self.counts.stayed_dead += 1,
                AfterGiveUp::RestartsDependents => self.counts.dependents_restarts += 1,
                AfterGiveUp::RestartsSystem => self.counts.system_restarts += 1,
                AfterGiveUp::SystemGoesDown => self.counts.failed_systems += 1,
                AfterGiveUp::RunsProgram => {}
            },
            Order::Report(_) => {}
        }
    }

    fn run(&mut self, id: ComponentId) {
        self.counts.runs += 1;
        let process = &mut self.processes[id.index()];
        *process =
            Process { run: process.run + 1, incarnation: process.incarnation + 1, ..Process::default() };
        let run = process.run;
        let answer = match self.random.u8(..40) {
            0 if !self.is_quiet => SystemEvent::Ended(id, End::Failed(Failure::LastError)),
            1..4 => SystemEvent::Restored(id),
            _ => SystemEvent::Started(id),
        };
        self.come(200, Coming::OfRun(id, run, answer));
    }

    fn end(&mut self, id: ComponentId) {
        let process = &mut self.processes[id.index()];
        process.is_asked_to_end = true;
        let is_deaf = process.is_alive && self.random.u8(..6) == 0;
        if !is_deaf {
            self.over(id, 8_000, SubjectStatus::Killed(Signal(15)));
        }
    }

    /// Schedules the end of a run that was asked to end or is being killed.
    fn over(&mut self, id: ComponentId, most: u64, status: SubjectStatus) {
        let is_lost = !self.is_quiet && self.random.u8(..100) == 0;
        let end = if is_lost { End::Left } else { End::Over(status) };
        let run = self.processes[id.index()].run;
        self.come(most, Coming::OfRun(id, run, SystemEvent::Ended(id, end)));
    }

    /// Schedules an event at a random time within `most` milliseconds.
    fn come(&mut self, most: u64, thing: Coming) {
        let delay = Duration::from_micros(self.random.u64(..most * 1_000));
        self.coming.push((self.now + delay, thing));
    }
}
