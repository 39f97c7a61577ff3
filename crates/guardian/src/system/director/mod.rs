//! The director of a system: reports events of the components to the state machine, and executes the orders of the
//! state machine.
//!
//! Owns: the subject of each component, and the meaning of a caller's order.
//! Invariants: nothing here blocks, except that a reload reads the system file. An order of the state machine is
//! executed in the turn in which it was given. A caller is answered when the file that `status` reads contains the
//! result.
//! Does not: decide which component runs; `supervise::Supervisor` does.

mod members;
mod orders;
mod reload;
mod shown;
mod together;
mod turn;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use health::notify::ServiceManager;
use model::{Pid, Signal};
use store::Store;
use supervise::{
    AfterGiveUp, ComponentId, ComponentState, End, Order, Supervisor, System, SystemEvent, SystemNotice,
    SystemPlan,
};

use self::together::Together;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::host::{Host, OnEvent, SubjectId};
use crate::location::StoreLocation;
use crate::mark::OF_COMPONENT;
use crate::run::RunRequest;
use crate::signals::KILL;
use crate::system::before::Before;
use crate::system::callers::{Callers, Verdict};
use crate::system::checks::{self, Checks, Sign};
use crate::system::control::Control;
use crate::system::manager::{Manager, Tally};
use crate::system::network::Network;
use crate::system::notices;
use crate::system::part::Part;
use crate::system::published::Published;
use crate::system::random;
use crate::system::request::{self, Means};
use crate::time;

/// Numbers that identify descriptors: the number of callers, and the first number of a component.
const CALLERS: u32 = 0;
const PARTS: u32 = 1;
/// Environment variable that names the system to a program of `on_give_up = "exec"`.
const OF_SYSTEM: &str = "UNDYING_SYSTEM";

/// Requests that were received by signals, or from callers.
#[derive(Default)]
struct Asked {
    /// How often signals or callers have requested the end of the system.
    ends: usize,
    /// Whether the system file is to be read again.
    reload: bool,
}

/// Where a system lives.
struct Home {
    /// The store of the components' checkpoints.
    location: StoreLocation,
    directory: PathBuf,
}

pub(super) struct SystemDirector<'a> {
    published: Published,
    supervisor: Supervisor,
    parts: Vec<Part>,
    groups: Vec<Together>,
    home: Home,
    callers: Callers,
    network: Network,
    /// Events since the last turn.
    events: Vec<SystemEvent>,
    manager: Manager,
    asked: Asked,
    /// The time of the last turn.
    now: Instant,
    on_event: OnEvent<'a>,
}

impl<'a> SystemDirector<'a> {
    pub(super) fn new(
        system: &System,
        file: &Path,
        (location, store): (StoreLocation, Store),
        (network, before): (Network, Before),
        host: &Host,
        on_event: OnEvent<'a>,
    ) -> Result<Self> {
        host.reaper().share();
        let control = Control::open()?;
        let directory = file.parent().unwrap_or(Path::new("/")).to_path_buf();
        let now = host.clock().now();
        let supervisor = Supervisor::new(SystemPlan::of(system, random::number()?));
        let time = time::rfc3339(host.clock().wall());
        let mut parts = Vec::new();
        for (id, (name, component)) in supervisor.plan().ids().zip(&system.component) {
            let notify = notify_name(&control.name, name.get_ref());
            let checks = Checks::new(component, &directory, &notify, now)?;
            let mut part = Part::new(id, name.get_ref(), component, checks, time.clone());
            part.runs_already = before.running.get(name.get_ref()).copied();
            parts.push(part);
        }
        let manager = ServiceManager::from_environment()
            .map_err(|error| GuardianError::BadManager { why: error.to_string() })?;
        if let Some(reason) = network.missing() {
            on_event(system.system.name.get_ref(), &RunEvent::ListenersNotKept { reason: reason.to_owned() });
        }
        for (name, root) in before.others {
            on_event(&name, &RunEvent::LeftRunning { pid: root.pid.get() });
        }
        for (name, checkpoint) in before.checkpoints {
            on_event(&name, &RunEvent::NotContinued { checkpoint });
        }
        let published = Published::new(system, file, store.root(), &control.name)?;
        let groups = Together::of(supervisor.plan().groups());
        let mut director = Self {
            published,
            groups,
            supervisor,
            parts,
            home: Home { location, directory },
            callers: Callers::new(control),
            network,
            events: vec![SystemEvent::Up],
            manager: Manager::new(manager, now),
            asked: Asked::default(),
            now,
            on_event,
        };
        director.share_in_groups();
        director.declare(system, director.supervisor.plan())?;
        Ok(director)
    }

    /// Declares the addresses on which components will listen: from the key `ready` of a component, and from the key
    /// `channels` of other components.
    fn declare(&self, system: &System, plan: &SystemPlan) -> Result<()> {
        let mut addresses: Vec<Vec<String>> = plan.ids().map(|_| Vec::new()).collect();
        for (name, component) in &system.component {
            let own = plan.id(name.get_ref()).zip(checks::address(component));
            let named =
                component.channels.iter().map(|(provider, address)| (provider.get_ref(), address.get_ref()));
            let named = named.filter_map(|(provider, address)| Some((plan.id(provider)?, address.clone())));
            own.into_iter().chain(named).for_each(|(id, address)| addresses[id.index()].push(address));
        }
        // The members of a group share their channels.
        for id in plan.ids() {
            let channels = self.channels_of(id);
            if channels != id {
                let own = std::mem::take(&mut addresses[id.index()]);
                addresses[channels.index()].extend(own);
            }
        }
        plan.ids().zip(addresses).try_for_each(|(id, addresses)| self.network.declare(id, addresses))
    }

    /// Returns the name of the socket to which a component sends messages of sd_notify(3).
    fn notify_name(&self, component: &str) -> String {
        notify_name(&self.published.record.control, component)
    }

    /// Returns how the system has ended.
    pub(super) fn outcome(mut self, host: &Host) -> Result<()> {
        // All components can end in the turn in which the request to end arrives.
        self.manager.report(Tally { is_stopping: true, ..self.tally() });
        let is_left = |part: &Part| self.supervisor.state(part.id) == ComponentState::Ended(End::Left);
        if !self.parts.iter().any(is_left) {
            let count = host.reaper().end_rest()?;
            if count > 0 {
                (self.on_event)(&self.published.record.name, &RunEvent::RestEnded { count });
            }
        }
        self.published.end()?;
        self.callers.answer_all("the system has ended");
        if self.supervisor.has_failed() && self.asked.ends == 0 {
            return Err(GuardianError::SystemFailed { system: self.published.record.name.clone() });
        }
        Ok(())
    }

    /// Records that an incarnation of a component runs.
    fn began(&mut self, id: ComponentId, root: Pid, is_restored: bool) {
        let part = &mut self.parts[id.index()];
        part.root = Some(root);
        part.checks.begin(root, is_restored, self.now);
        self.events.push(if is_restored { SystemEvent::Restored(id) } else { SystemEvent::Started(id) });
    }

    fn part_of(&self, subject: SubjectId) -> Option<ComponentId> {
        self.parts.iter().find(|part| part.subject == Some(subject)).map(|part| part.id)
    }

    /// Reports events until no further event follows.
    fn report_all(&mut self, now: Instant, host: &mut Host) {
        while !self.events.is_empty() {
            for event in std::mem::take(&mut self.events) {
                for order in self.supervisor.step(now, event) {
                    self.carry_out(order, host);
                }
            }
        }
    }

    fn carry_out(&mut self, order: Order, host: &mut Host) {
        match order {
            Order::Run(id) => self.run(id, host),
            Order::End(id) => {
                // In a group, the other members go on to use the channels.
                if self.supervisor.is_wanted(id) && self.group_of(id).is_none() {
                    self.network.ends_for_restart(id);
                }
                self.end(id, self.parts[id.index()].stop_signal, host);
            }
            Order::KillRun(id) => self.end(id, KILL, host),
            Order::Fail(id, fault) => {
                let in_group = self.group_of(id).is_some();
                let part = &mut self.parts[id.index()];
                if in_group {
                    part.reported.fault = Some(fault.to_string());
                }
                part.subject.iter().for_each(|subject| host.fail(*subject, fault));
            }
            Order::Exec(id) => self.execute(id, host),
            Order::Report(notice) => self.report_notice(notice, host),
        }
    }

    fn run(&mut self, id: ComponentId, host: &mut Host) {
        match self.group_of(id) {
            Some(group) => self.run_member(group, id, host),
            None => {
                let request = self.request_of(id);
                self.parts[id.index()].begin_run(host.add(request));
            }
        }
    }

    fn request_of(&mut self, id: ComponentId) -> RunRequest {
        let channels = self.network.of(self.channels_of(id));
        let part = &mut self.parts[id.index()];
        let means = Means { channels, ..part.checks.means() };
        let plan = &self.supervisor.plan()[id];
        let request = request::request(
            &part.name,
            &part.component,
            (&self.home.location, &self.home.directory),
            plan,
            means,
        );
        let runs_already = part.runs_already.map(|running| running.root);
        RunRequest { runs_already, ..request }
    }

    fn end(&mut self, id: ComponentId, signal: Signal, host: &mut Host) {
        if let Some(group) = self.group_of(id) {
            return self.end_member(group, id, signal, host);
        }
        let part = &self.parts[id.index()];
        part.subject.iter().for_each(|subject| host.end(*subject, signal));
    }

    /// Runs the program that the system file names for a component that was given up.
    fn execute(&mut self, id: ComponentId, host: &Host) {
        let part = &self.parts[id.index()];
        let Some(words) = part.component.restart.exec.as_ref().map(|words| words.get_ref()) else { return };
        let Some((program, arguments)) = words.split_first() else { return };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).current_dir(&self.home.directory);
        command.env(OF_SYSTEM, &self.published.record.name).env(OF_COMPONENT, &part.name);
        let started = host.execute(&mut command);
        let event = match started {
            Ok(pid) => RunEvent::Executed { pid: pid.get(), program: program.clone() },
            Err(error) => {
                RunEvent::ComponentFailed { reason: format!("cannot execute {program:?}: {error}") }
            }
        };
        let name = part.name.clone();
        (self.on_event)(&name, &event);
    }

    /// Reports a notice of the state machine, and passes the notice on to the callers that it concerns.
    fn report_notice(&mut self, notice: SystemNotice, host: &mut Host) {
        self.published.change();
        match notice {
            SystemNotice::Ready(id, _) => {
                self.network.ready(self.channels_of(id));
                // A group is ready when all its members are.
                if self.group_of(id).is_none() {
                    self.parts[id.index()].subject.iter().for_each(|subject| host.ready(*subject));
                }
            }
            // The other members of a group go on to use its channels.
            SystemNotice::Stopped(id) | SystemNotice::Ended(id, _) | SystemNotice::GaveUp { id, .. }
                if self.group_of(id).is_some_and(|group| self.is_group_running(group)) => {}
            // A component that is ended for a restart keeps its listeners.
            SystemNotice::Stopped(id) if self.supervisor.is_wanted(id) => {}
            SystemNotice::Stopped(id) | SystemNotice::Ended(id, _) => {
                self.network.stopped(self.channels_of(id));
            }
            SystemNotice::GaveUp {
                id, follows: AfterGiveUp::StaysDead | AfterGiveUp::RunsProgram, ..
            } => {
                self.network.stopped(self.channels_of(id));
            }
            _ => {}
        }
        let judged = match notice {
            SystemNotice::Complaint { about, by, sum, quorum } => {
                let what = notices::counted((about, by), sum, quorum, &self.supervisor);
                Some((about, Verdict::Counted { what }))
            }
            SystemNotice::ComplaintRefused { about, why, .. } => {
                Some((about, Verdict::Refused { why: notices::refusal(why) }))
            }
            _ => None,
        };
        if let Some((about, verdict)) = judged {
            self.callers.judged(self.supervisor.name(about), about, verdict);
        }
        let (id, event) = notices::event(notice, &self.supervisor);
        match id {
            Some(id) => {
                let part = &self.parts[id.index()];
                part.subject.iter().for_each(|subject| host.note(*subject, &event));
                (self.on_event)(&part.name, &event);
            }
            None => (self.on_event)(&self.published.record.name, &event),
        }
    }

    /// Handles the results of the checks on components.
    fn check(&mut self, ready: &[u32], now: Instant, host: &mut Host) {
        for place in 0..self.parts.len() {
            let number = PARTS + place as u32;
            let part = &mut self.parts[place];
            if !ready.contains(&number) && part.checks.due().is_none_or(|due| due > now) {
                continue;
            }
            let id = part.id;
            // The channels of a group do not tell which member listens.
            let is_own = !self.groups.iter().any(|group| group.has(id));
            let network = &self.network;
            for sign in part.checks.advance(now, || network.listens(id).filter(|_| is_own)) {
                match sign {
                    Sign::Ready => self.events.push(SystemEvent::Ready(id)),
                    Sign::Fault(fault) => self.events.push(SystemEvent::Fault(id, fault)),
                    Sign::Changed(changed) => {
                        let event = notices::changed(&changed);
                        part.subject.iter().for_each(|subject| host.note(*subject, &event));
                        (self.on_event)(&part.name, &event);
                    }
                    Sign::Reports(text) => {
                        part.reported.reports = Some(text);
                        self.published.change();
                    }
                }
            }
            part.checks.child().into_iter().for_each(|pid| host.reaper().exempt(pid));
        }
    }

    /// Releases listeners that components have closed, and updates the facts about channels.
    fn scan_channels(&mut self, now: Instant, host: &mut Host) {
        let roots = self.parts.iter().filter_map(|part| Some((self.channels_of(part.id), part.root?)));
        let roots = roots.collect();
        if let Some(work) = self.network.scan(roots, now) {
            // If no worker is available now, the scan is repeated in a second.
            let _ = host.run_on_worker(work);
        }
        for place in 0..self.parts.len() {
            let channels = self.network.facts(self.channels_of(self.parts[place].id));
            let part = &mut self.parts[place];
            if part.channels != channels {
                part.channels = channels;
                self.published.change();
            }
        }
    }
}

fn notify_name(control: &str, component: &str) -> String {
    format!("{control}/{component}")
}
