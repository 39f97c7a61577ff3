//! The members of groups that are checkpointed at one moment and restored together.
//!
//! All members of such a group are one subject of the host, with one root for each member that runs.
//!
//! Owns: the starts and ends of members, and what the reports of the subject mean for each member.
//! Invariants: all members of a subject die together. A member joins when the members that it needs are ready. While a
//! member is not ready, no checkpoint is taken.
//! Does not: decide which member runs; `supervise::Supervisor` does.

use model::{Pid, Signal};
use supervise::{ComponentId, ComponentState, End, Failure, Fault, SubjectStatus, SystemEvent};

use super::SystemDirector;
use super::together::Together;
use crate::error::Result;
use crate::event::RunEvent;
use crate::host::{Host, SubjectId};
use crate::record::ProcessName;
use crate::run::{MemberNumber, RunRequest, SubjectReport};
use crate::signals::KILL;
use crate::system::part::Part;
use crate::system::record::MemberFacts;

impl SystemDirector<'_> {
    /// Makes the members of each group share what a restore of the group needs.
    pub(super) fn share_in_groups(&mut self) {
        for group in &self.groups {
            let damaged = self.parts[group.members[0].index()].checks.damaged();
            for id in &group.members {
                self.parts[id.index()].checks.share_damaged(damaged.clone());
            }
        }
    }

    pub(super) fn group_of(&self, id: ComponentId) -> Option<usize> {
        self.groups.iter().position(|group| group.members.contains(&id))
    }

    /// Reports whether a member of the group runs.
    pub(super) fn is_group_running(&self, group: usize) -> bool {
        self.groups[group].members.iter().any(|id| self.parts[id.index()].root.is_some())
    }

    /// Returns the group whose run is this subject.
    pub(super) fn group_with(&self, subject: SubjectId) -> Option<usize> {
        self.groups.iter().position(|group| group.subject == Some(subject))
    }

    /// Returns the component under whose number the channels of a component are kept. The members of a group share their
    /// channels, because they are restored by one restore.
    pub(super) fn channels_of(&self, id: ComponentId) -> ComponentId {
        self.group_of(id).map_or(id, |group| self.groups[group].members[0])
    }

    /// Begins the run of a member: with the run of the group, or by joining it.
    pub(super) fn run_member(&mut self, group: usize, id: ComponentId, host: &mut Host) {
        let subject = match self.groups[group].subject {
            Some(subject) => {
                self.groups[group].waiting.insert(id);
                subject
            }
            None => {
                let request = self.request_of(id);
                let name = Some(self.groups[group].name.clone());
                let subject = host.add(RunRequest { name, await_ready: true, ..request });
                let group = &mut self.groups[group];
                (group.subject, group.first, group.is_complete) = (Some(subject), Some(id), false);
                subject
            }
        };
        self.parts[id.index()].begin_run(subject);
    }

    /// Ends a member. The other members continue.
    pub(super) fn end_member(&mut self, group: usize, id: ComponentId, signal: Signal, host: &mut Host) {
        let part = &self.parts[id.index()];
        let Some(subject) = part.subject else { return };
        if let Some(root) = part.root {
            return host.end_root(subject, root, signal);
        }
        if self.groups[group].waiting.remove(&id) {
            return self.member_ended(id, End::Over(SubjectStatus::Unknown));
        }
        // The group is being started or restored. Otherwise, the member is ended when the group runs.
        let is_running = |id: &ComponentId| self.parts[id.index()].subject.is_some();
        let mut running = self.groups[group].members.iter().filter(|id| is_running(id));
        if running.all(|id| self.is_stopping(*id)) {
            host.end(subject, signal);
        }
    }

    fn is_stopping(&self, id: ComponentId) -> bool {
        matches!(self.supervisor.state(id), ComponentState::Stopping { .. } | ComponentState::Killing)
    }

    pub(super) fn first_started(&mut self, group: usize, root: Pid) -> Option<ComponentId> {
        let group = &mut self.groups[group];
        let first = group.first?;
        group.roots.insert(root, first);
        Some(first)
    }

    pub(super) fn group_noticed(&mut self, group: usize, report: SubjectReport) {
        match report {
            SubjectReport::Started { root } => {
                let Some(first) = self.first_started(group, root) else { return };
                self.member_runs(group, first, root, false);
                self.all_but(group, &[first]);
            }
            SubjectReport::Restored { roots } => {
                let known = &self.groups[group].roots;
                let restored: Vec<(Pid, ComponentId)> =
                    roots.iter().filter_map(|root| Some((root, *known.get(&root)?))).collect();
                for (root, id) in &restored {
                    self.member_runs(group, *id, *root, true);
                }
                let restored: Vec<ComponentId> = restored.into_iter().map(|(_, id)| id).collect();
                self.all_but(group, &restored);
            }
            SubjectReport::Joined { member, root } => {
                let id = self.parts[member.0 as usize].id;
                self.groups[group].roots.insert(root, id);
                let is_taken_over = self.parts[id.index()].runs_already.take().is_some();
                self.member_runs(group, id, root, is_taken_over);
                if !is_taken_over {
                    let event = RunEvent::Started { pid: root.get(), why: None };
                    (self.on_event)(&self.parts[id.index()].name, &event);
                }
            }
            SubjectReport::NotJoined { member, reason } => {
                let part = &mut self.parts[member.0 as usize];
                part.reported.error = Some(reason.clone());
                (self.on_event)(&part.name, &RunEvent::ComponentFailed { reason });
                let id = part.id;
                self.member_ended(id, End::Failed(Failure::LastError));
            }
            SubjectReport::Left { root, status } => {
                let id = self.groups[group].roots.get(&root).copied();
                // A root that a restore has brought back against the will of the operator is known to have ended.
                if let Some(id) = id.filter(|id| self.parts[id.index()].root == Some(root)) {
                    self.member_ended(id, End::Over(status));
                }
            }
            SubjectReport::Died { root, status } => self.group_died(group, root, status),
            SubjectReport::Faulted(Fault::Requested) => {
                self.each_running(group, |director, id| {
                    director.events.push(SystemEvent::RestartRequested(id));
                });
            }
            // The member in which the fault was found is known from the order.
            SubjectReport::Faulted(_) => {}
            SubjectReport::Stopped => {
                self.each_running(group, |director, id| director.parts[id.index()].checks.end());
            }
            SubjectReport::Resumed => {
                let now = self.now;
                self.each_running(group, |director, id| director.parts[id.index()].resume_checks(now));
            }
            SubjectReport::GaveUp => {
                for id in self.groups[group].members.clone() {
                    self.parts[id.index()].gave_up = true;
                }
            }
        }
    }

    fn each_running(&mut self, group: usize, act: impl Fn(&mut Self, ComponentId)) {
        for id in self.groups[group].members.clone() {
            if self.parts[id.index()].root.is_some() {
                act(self, id);
            }
        }
    }

    /// Records that a member runs. If the member was stopped meanwhile, it is ended in the next turn.
    fn member_runs(&mut self, group: usize, id: ComponentId, root: Pid, is_restored: bool) {
        let is_expected = matches!(
            self.supervisor.state(id),
            ComponentState::Starting { .. } | ComponentState::Down { .. }
        );
        if is_expected && self.parts[id.index()].subject.is_some() {
            self.began(id, root, is_restored);
        } else {
            self.groups[group].unwanted.push(root);
        }
        self.published.change();
    }

    /// Lets the members join that belong to the run of the group and are not in the present incarnation.
    fn all_but(&mut self, group: usize, present: &[ComponentId]) {
        for id in self.groups[group].members.clone() {
            if present.contains(&id) || self.parts[id.index()].subject.is_none() {
                continue;
            }
            if self.is_stopping(id) {
                self.member_ended(id, End::Over(SubjectStatus::Unknown));
            } else {
                self.groups[group].waiting.insert(id);
            }
        }
    }

    /// Records that the run of a member has ended, and that the group continues.
    fn member_ended(&mut self, id: ComponentId, end: End) {
        let part = &mut self.parts[id.index()];
        part.ended();
        part.subject = None;
        self.published.change();
        self.events.push(SystemEvent::Ended(id, end));
    }

    /// Records the death of all members. The member `root` has caused it.
    fn group_died(&mut self, group: usize, root: Pid, status: SubjectStatus) {
        let group = &mut self.groups[group];
        group.waiting.clear();
        group.unwanted.clear();
        group.is_complete = false;
        let dead = group.roots.get(&root).copied();
        let mut members = group.members.clone();
        // The member that has died by itself comes first, because the others share its fate.
        members.sort_by_key(|id| Some(*id) != dead);
        for id in members {
            let part = &mut self.parts[id.index()];
            if part.root.is_none() {
                continue;
            }
            part.ended();
            let status = if Some(id) == dead { status } else { SubjectStatus::Killed(KILL) };
            self.events.push(SystemEvent::Died(id, status));
            if self.is_stopping(id) {
                self.member_ended(id, End::Over(status));
            }
        }
    }

    pub(super) fn group_ended(&mut self, group: usize, outcome: Result<SubjectStatus>) {
        let name = self.groups[group].name.clone();
        let failure = outcome.as_ref().err().map(ToString::to_string);
        if let Some(reason) = &failure {
            (self.on_event)(&name, &RunEvent::ComponentFailed { reason: reason.clone() });
        }
        self.groups[group] = Together::new(&name, &self.groups[group].members);
        for id in self.groups[group].members.clone() {
            let part = &mut self.parts[id.index()];
            if part.subject.is_none() {
                continue;
            }
            part.reported.error = failure.clone().or(part.reported.error.take());
            let end = match &outcome {
                Ok(status) if part.gave_up => End::GaveUp(*status),
                Ok(status) => End::Over(*status),
                Err(_) => End::Failed(Failure::LastError),
            };
            self.member_ended(id, end);
        }
    }

    /// Lets waiting members join, ends members that a restore has brought back although they were stopped, and tells the
    /// host whether all members are ready.
    pub(super) fn tend_groups(&mut self, host: &mut Host) {
        for group in 0..self.groups.len() {
            let Some(subject) = self.groups[group].subject else { continue };
            let members = &self.groups[group].members;
            if !members.iter().any(|id| self.parts[id.index()].subject.is_some()) {
                // All members have ended while the group was being restored.
                host.end(subject, KILL);
                continue;
            }
            if !self.is_group_running(group) {
                continue;
            }
            for root in std::mem::take(&mut self.groups[group].unwanted) {
                host.end_root(subject, root, KILL);
            }
            for id in self.joinable(group) {
                self.groups[group].waiting.remove(&id);
                let request = self.request_of(id);
                host.join(subject, MemberNumber(id.index() as u32), request);
            }
            self.tell_completeness(group, subject, host);
        }
    }

    /// Returns the place of a component in its group.
    pub(super) fn member_facts(&self, part: &Part) -> Option<MemberFacts> {
        let group = &self.groups[self.group_of(part.id)?];
        let key = part.root.and_then(|root| tracee::procfs::key(root).ok());
        Some(MemberFacts { group: group.name.clone(), root: key.map(ProcessName::of) })
    }

    fn joinable(&self, group: usize) -> Vec<ComponentId> {
        let plan = self.supervisor.plan();
        let group = &self.groups[group];
        let is_ready = |need: &ComponentId| {
            !group.members.contains(need)
                || matches!(self.supervisor.state(*need), ComponentState::Ready { .. })
        };
        let can_join = |id: &ComponentId| group.waiting.contains(id) && plan[*id].needs.iter().all(is_ready);
        plan.start_order().iter().copied().filter(can_join).collect()
    }

    fn tell_completeness(&mut self, group: usize, subject: SubjectId, host: &mut Host) {
        let in_run = |id: &ComponentId| self.parts[id.index()].subject.is_some();
        let is_ready = |id: ComponentId| matches!(self.supervisor.state(id), ComponentState::Ready { .. });
        let group = &mut self.groups[group];
        let is_complete = group.members.iter().copied().filter(in_run).all(is_ready);
        if is_complete != group.is_complete {
            group.is_complete = is_complete;
            host.set_incomplete(subject, !is_complete);
            if is_complete {
                host.ready(subject);
            }
        }
    }
}
