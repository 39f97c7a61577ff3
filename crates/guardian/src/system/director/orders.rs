//! Orders of callers (clients of the control socket) to a system.
//!
//! Owns: which caller may give which order, and the meaning of each order.
//! Does not: answer; `callers` does.

use supervise::{Complainant, SystemEvent};

use super::SystemDirector;
use crate::event::RunEvent;
use crate::host::Host;
use crate::system::callers::Wait;
use crate::system::control::{Answer, Caller, SystemOrder};
use crate::system::notices;
use crate::system::part::Part;

impl SystemDirector<'_> {
    pub(super) fn take_order(&mut self, number: u32, caller: Caller, order: SystemOrder, host: &mut Host) {
        let Some(name) = order.component() else {
            if !caller.is_operator {
                return self.callers.refuse_caller(number);
            }
            if order == SystemOrder::Reload {
                return match self.reload(host) {
                    Ok(what) => self.callers.wait(number, Wait::Written(Answer::Done { what })),
                    Err(error) => self.callers.refuse_with(number, &error),
                };
            }
            self.asked.ends = self.asked.ends.max(1);
            self.events.push(SystemEvent::Down);
            return self.callers.wait(number, Wait::Over);
        };
        let Some(id) = self.supervisor.id(name) else {
            return self.callers.refuse(number, self.unknown(name));
        };
        let by = self.complainant(caller);
        let is_complaint = matches!(order, SystemOrder::Complain { .. });
        if !caller.is_operator && (!is_complaint || by.is_none()) {
            return self.callers.refuse_caller(number);
        }
        let (event, wait) = match order {
            SystemOrder::Down | SystemOrder::Reload => return,
            SystemOrder::Start { .. } => (SystemEvent::Start(id), Wait::Ready(id)),
            SystemOrder::Stop { .. } => (SystemEvent::Stop(id), Wait::Stopped(id)),
            SystemOrder::Restart { .. } => (SystemEvent::Restart(id), Wait::Ready(id)),
            SystemOrder::Complain { why, weight, .. } => {
                let by = by.unwrap_or(Complainant::Operator);
                let name = notices::complainant(by, &self.supervisor);
                let event = RunEvent::Complaint { by: name, weight: weight.get(), why };
                (self.on_event)(&self.parts[id.index()].name, &event);
                (SystemEvent::Complaint { about: id, by, weight }, Wait::Judged(id))
            }
        };
        self.events.push(event);
        self.callers.wait(number, wait);
    }

    /// Returns the component that contains the calling process. Otherwise returns the operator, if the caller is root
    /// or the user of the guardian.
    fn complainant(&self, caller: Caller) -> Option<Complainant> {
        let is_in = |part: &Part| {
            let tree = part.root.and_then(|root| tracee::tree::descendants(root).ok());
            tree.is_some_and(|tree| tree.contains(&caller.pid))
        };
        match self.parts.iter().find(|part| is_in(part)) {
            Some(part) => Some(Complainant::Component(part.id)),
            None => caller.is_operator.then_some(Complainant::Operator),
        }
    }

    fn unknown(&self, name: &str) -> String {
        let plan = self.supervisor.plan();
        let parts = self.parts.iter().filter(|part| !plan[part.id].is_removed);
        let mut names: Vec<&str> = parts.map(|part| part.name.as_str()).collect();
        names.sort_unstable();
        format!("the system has no component {name}\nhelp: its components are {}", names.join(", "))
    }
}
