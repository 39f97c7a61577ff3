//! One component of a guarded system: its subject, its checks, and the facts shown about it.
//!
//! Owns: these values.
//! Does not: decide what happens to a component; `supervise` does.

use std::time::Instant;

use model::{Pid, Signal};
use supervise::{Component, ComponentId};

use super::before::Running;
use super::checks::Checks;
use super::network::ChannelFacts;
use crate::host::SubjectId;

/// A component of a guarded system.
pub(super) struct Part {
    pub(super) id: ComponentId,
    pub(super) name: String,
    pub(super) component: Component,
    pub(super) checks: Checks,
    /// A process of an earlier guardian, which the next run of the component takes over.
    pub(super) runs_already: Option<Running>,
    /// The run of the component, while there is a run.
    pub(super) subject: Option<SubjectId>,
    /// The signal that requests the end of the present process.
    pub(super) stop_signal: Signal,
    /// The root of the present incarnation.
    pub(super) root: Option<Pid>,
    /// Whether the run has ended because there were too many restarts.
    pub(super) gave_up: bool,
    /// The shown state, and the time since which it is shown.
    pub(super) shown: (&'static str, String),
    pub(super) reported: ReportedFacts,
    /// The channels of the component, as they are shown.
    pub(super) channels: Vec<ChannelFacts>,
}

/// Facts about a component, beside its state.
#[derive(Default)]
pub(super) struct ReportedFacts {
    /// The fault for which the component was killed last.
    pub(super) fault: Option<String>,
    /// Why the component could not be started or restored.
    pub(super) error: Option<String>,
    /// The state that the component itself has reported.
    pub(super) reports: Option<String>,
}

impl Part {
    /// Returns a component that was not started yet.
    pub(super) fn new(
        id: ComponentId,
        name: &str,
        component: &Component,
        checks: Checks,
        time: String,
    ) -> Self {
        Self {
            id,
            name: name.to_owned(),
            component: component.clone(),
            checks,
            runs_already: None,
            subject: None,
            stop_signal: component.stop_signal.0,
            root: None,
            gave_up: false,
            shown: ("", time),
            reported: ReportedFacts::default(),
            channels: Vec::new(),
        }
    }

    pub(super) fn begin_run(&mut self, subject: SubjectId) {
        (self.gave_up, self.subject) = (false, Some(subject));
        self.stop_signal = self.component.stop_signal.0;
    }

    /// Begins the checks again, if they were ended while the component was stopped.
    pub(super) fn resume_checks(&mut self, now: Instant) {
        if let Some(root) = self.root.filter(|_| !self.checks.is_begun()) {
            self.checks.begin(root, true, now);
        }
    }

    /// Records that the incarnation of the component has ended.
    pub(super) fn ended(&mut self) {
        self.root = None;
        self.checks.end();
    }
}
