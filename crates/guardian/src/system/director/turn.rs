//! What the host reports to the director of a system, and the turns in which the director acts.
//!
//! Owns: the meaning of a report for the state machine, and the order of the steps of a turn.
//! Does not: execute orders of the state machine.

use std::time::Instant;

use health::Interest;
use model::Pid;
use supervise::{End, Failure, Fault, SubjectStatus, SystemEvent};

use super::{CALLERS, PARTS, SystemDirector};
use crate::error::Result;
use crate::event::RunEvent;
use crate::host::{Director, Host, Source, SubjectId};
use crate::run::SubjectReport;
use crate::signals::{HUP, KILL, Request, has_terminal};

impl Director for SystemDirector<'_> {
    fn started(&mut self, subject: SubjectId, root: Pid) {
        let first = match self.group_with(subject) {
            Some(group) => self.first_started(group, root),
            None => self.part_of(subject),
        };
        if let Some(id) = first {
            let taken_over = self.parts[id.index()].runs_already.take();
            // A component that was taken over was ready before, and reports its readiness only once.
            self.began(id, root, taken_over.is_some());
            if taken_over.is_some_and(|running| running.is_outdated) {
                self.events.push(SystemEvent::Restart(id));
            }
            if taken_over.is_none() {
                let event = RunEvent::Started { pid: root.get(), why: None };
                (self.on_event)(&self.parts[id.index()].name, &event);
            }
        }
    }

    fn tell(&mut self, name: &str, event: &RunEvent) {
        (self.on_event)(name, event);
    }

    fn noticed(&mut self, subject: SubjectId, report: SubjectReport) {
        if let Some(group) = self.group_with(subject) {
            return self.group_noticed(group, report);
        }
        let Some(id) = self.part_of(subject) else { return };
        match report {
            SubjectReport::Started { root } => self.began(id, root, false),
            SubjectReport::Restored { roots } => self.began(id, roots.first(), true),
            SubjectReport::Died { status, .. } => {
                self.parts[id.index()].ended();
                self.events.push(SystemEvent::Died(id, status));
            }
            SubjectReport::Faulted(Fault::Requested) => self.events.push(SystemEvent::RestartRequested(id)),
            SubjectReport::Faulted(fault) => {
                self.parts[id.index()].reported.fault = Some(fault.to_string());
            }
            // A stopped component answers no check.
            SubjectReport::Stopped => self.parts[id.index()].checks.end(),
            SubjectReport::Resumed => self.parts[id.index()].resume_checks(self.now),
            SubjectReport::GaveUp => self.parts[id.index()].gave_up = true,
            // Only the subject of a group has members.
            SubjectReport::Joined { .. } | SubjectReport::NotJoined { .. } | SubjectReport::Left { .. } => {}
        }
    }

    fn ended(&mut self, subject: SubjectId, outcome: Result<SubjectStatus>) {
        if let Some(group) = self.group_with(subject) {
            return self.group_ended(group, outcome);
        }
        let Some(id) = self.part_of(subject) else { return };
        let part = &mut self.parts[id.index()];
        part.ended();
        part.subject = None;
        let end = match outcome {
            Ok(status) if part.gave_up => End::GaveUp(status),
            Ok(status) => End::Over(status),
            Err(error) => {
                let reason = error.to_string();
                part.reported.error = Some(reason.clone());
                (self.on_event)(&part.name, &RunEvent::ComponentFailed { reason });
                End::Failed(Failure::LastError)
            }
        };
        self.events.push(SystemEvent::Ended(id, end));
    }

    /// A stopped guardian protects nothing, and calls of its components would wait for the guardian.
    fn stops(&self) -> bool {
        false
    }

    /// Takes every signal.
    fn takes(&mut self, signal: Request) -> bool {
        let is_hangup = matches!(signal, Request::End { signal: HUP, from_terminal: false, .. });
        if is_hangup && !has_terminal() {
            self.asked.reload = true;
        } else if matches!(signal, Request::End { .. }) {
            self.asked.ends += 1;
            self.events.push(SystemEvent::Down);
        }
        true
    }

    fn sources(&self) -> Vec<Source<'_>> {
        let of = |number, handle, interest| Source { number, handle, interest };
        let handles = self.callers.handles();
        let mut sources: Vec<Source<'_>> =
            handles.into_iter().map(|handle| of(CALLERS, handle, Interest::Readable)).collect();
        for (place, part) in self.parts.iter().enumerate() {
            let handles = part.checks.handles().into_iter();
            sources.extend(handles.map(|(handle, interest)| of(PARTS + place as u32, handle, interest)));
        }
        sources
    }

    fn due(&self) -> Option<Instant> {
        let checks = self.parts.iter().filter_map(|part| part.checks.due());
        checks.chain(self.supervisor.wake()).chain(self.manager.due()).chain(self.network.due()).min()
    }

    fn turn(&mut self, ready: &[u32], host: &mut Host) {
        let now = host.clock().now();
        self.now = now;
        if ready.contains(&CALLERS) {
            for (number, caller, order) in self.callers.take() {
                self.take_order(number, caller, order, host);
            }
        }
        if std::mem::take(&mut self.asked.reload) {
            // `reload` itself reports an error in the file.
            let _ = self.reload(host);
        }
        self.check(ready, now, host);
        self.events.push(SystemEvent::Due);
        self.report_all(now, host);
        self.tend_groups(host);
        if self.network.due().is_some_and(|due| due <= now) {
            self.scan_channels(now, host);
        }
        if self.asked.ends > 1 {
            // The end was requested twice, so no component gets more time.
            let subjects = self.parts.iter().filter_map(|part| part.subject);
            subjects.for_each(|subject| host.end(subject, KILL));
        }
        self.manager.ping(now);
        self.publish(host);
        if self.published.is_published() {
            self.callers.answer(&self.supervisor);
            self.manager.report(self.tally());
        }
    }

    fn is_over(&self) -> bool {
        self.supervisor.is_over()
    }
}
