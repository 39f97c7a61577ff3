//! Complaints about a component.
//!
//! A component may complain about a component that it needs, and an operator about any component.
//!
//! Owns: which complainants count, and when complaints restart a component.
//! Invariants: complaints restart a component only if the component is ready, and only at its quorum (the required sum
//! of weights). Complaints about an incarnation end with the incarnation.
//! Does not: add the weights; `tally` does.

use std::num::NonZeroU32;
use std::time::Instant;

use super::Supervisor;
use super::event::{Complainant, ComplaintRefusal, SystemNotice};
use super::plan::{ComponentId, Quorum};
use crate::fault::Fault;

impl Supervisor {
    pub(super) fn complaint(
        &mut self,
        now: Instant,
        about: ComponentId,
        by: Complainant,
        weight: NonZeroU32,
    ) {
        if let Some(why) = self.refusal(about, by) {
            self.report(SystemNotice::ComplaintRefused { about, by, why });
            return;
        }
        let Quorum { sum: quorum, within } = self.plan[about].quorum;
        let sum = self.at_mut(about).complaints.add(now, by, weight, within);
        self.report(SystemNotice::Complaint { about, by, sum, quorum });
        if sum >= quorum.get() {
            self.fail(about, Fault::Complaints);
        }
    }

    fn refusal(&self, about: ComponentId, by: Complainant) -> Option<ComplaintRefusal> {
        let component = self.at(about);
        match by {
            Complainant::Component(id) if !self.plan[about].dependents.contains(&id) => {
                Some(ComplaintRefusal::NotADependent)
            }
            _ if !component.state.is_ready() || !component.can_fail() => Some(ComplaintRefusal::NotReady),
            _ => None,
        }
    }
}
