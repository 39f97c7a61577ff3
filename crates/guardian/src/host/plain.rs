//! The host of `run`: all subjects are known at the start.
//!
//! Owns: a director that neither adds nor removes subjects.
//! Does not: guard the subjects; `core` does.

use std::collections::BTreeMap;

use model::Pid;
use supervise::SubjectStatus;

use super::core::{Director, Host, SubjectId};
use crate::error::Result;
use crate::event::RunEvent;
use crate::inspection::require_restorable;
use crate::run::RunRequest;

/// Receives each event of a subject, with the name of the subject.
pub type OnEvent<'a> = &'a mut dyn FnMut(&str, &RunEvent);

/// Runs or adopts a program, and restarts the program until it has ended for good.
///
/// # Errors
///
/// The program cannot be started, watched or, after its death, restored. A running program continues.
pub fn run(request: &RunRequest, on_event: &mut dyn FnMut(&RunEvent)) -> Result<SubjectStatus> {
    require_restorable()?;
    let mut host = Host::new()?;
    let id = host.add(request.clone());
    let mut outcomes = host.run(&mut |_, event| on_event(event))?;
    outcomes.remove(&id).expect("each subject that was added has an outcome")
}

impl Host {
    /// Guards all subjects until the last subject has ended for good. Returns how each subject has ended, or why it
    /// could not be started, watched or restored.
    ///
    /// # Errors
    ///
    /// The host cannot wait for events. Running programs continue.
    pub fn run(&mut self, on_event: OnEvent<'_>) -> Result<BTreeMap<SubjectId, Result<SubjectStatus>>> {
        let mut plain = Plain { on_event, outcomes: BTreeMap::new() };
        self.direct(&mut plain)?;
        Ok(plain.outcomes)
    }
}

/// A director that needs only the subjects that were added before the run.
struct Plain<'a> {
    on_event: OnEvent<'a>,
    outcomes: BTreeMap<SubjectId, Result<SubjectStatus>>,
}

impl Director for Plain<'_> {
    fn started(&mut self, _: SubjectId, _: Pid) {}

    fn tell(&mut self, name: &str, event: &RunEvent) {
        (self.on_event)(name, event);
    }

    fn ended(&mut self, id: SubjectId, outcome: Result<SubjectStatus>) {
        self.outcomes.insert(id, outcome);
    }
}
