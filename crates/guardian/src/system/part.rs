//! One component of a guarded system: its subject, its checks, the facts shown about it.
//!
//! Owns: these values.
//! Does not: decide; `supervise` does.

use model::Pid;
use supervise::{Component, ComponentId};

use super::before::Running;
use super::checks::Checks;
use super::network::ChannelFacts;
use crate::host::SubjectId;

/// A component of a system that is guarded.
pub(super) struct Part {
    pub(super) id: ComponentId,
    pub(super) name: String,
    pub(super) component: Component,
    pub(super) checks: Checks,
    /// A process of an earlier guardian, which its next run takes over.
    pub(super) runs_already: Option<Running>,
    /// Its run, while there is one.
    pub(super) subject: Option<SubjectId>,
    /// The root of its present incarnation.
    pub(super) root: Option<Pid>,
    /// Its run has ended since there were too many restarts.
    pub(super) gave_up: bool,
    /// The state that is shown, and since when.
    pub(super) shown: (&'static str, String),
    pub(super) told: Told,
    /// Its channels, as they are shown.
    pub(super) channels: Vec<ChannelFacts>,
}

/// Facts about a component, apart from its state.
#[derive(Default)]
pub(super) struct Told {
    /// What it was killed for last.
    pub(super) fault: Option<String>,
    /// Why it could not be started or restored.
    pub(super) error: Option<String>,
    /// What it has reported of itself.
    pub(super) reports: Option<String>,
}

impl Part {
    /// One that was not started yet.
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
            root: None,
            gave_up: false,
            shown: ("", time),
            told: Told::default(),
            channels: Vec::new(),
        }
    }

    /// Its incarnation has ended.
    pub(super) fn ended(&mut self) {
        self.root = None;
        self.checks.end();
    }
}
