//! The states of a component, the events that change a state, and the orders that follow an event.
//!
//! Owns: the types for states, events, orders and notices.
//! Invariants: the guardian carries out orders in the sequence in which `Supervisor` returns them. The guardian answers
//! `Run` with `Started`, `Restored` or `Ended`. The guardian answers `End` and `KillRun` with `Ended`. The guardian
//! answers `Fail` with `Died` or `Ended`.
//! Does not: write texts for the operator, or change a state; `Supervisor` changes states.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::plan::ComponentId;
use crate::fault::Fault;
use crate::status::SubjectStatus;
use crate::subject::End;

/// The state of a component.
///
/// A *run* lasts from `Order::Run` to `SystemEvent::Ended`, and contains the incarnations in this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComponentState {
    /// No command has requested that the component runs.
    Idle,
    /// The component waits until a run can begin. `Supervisor::waits_for` returns the components for which this
    /// component waits.
    Waiting,
    /// The component has a run, but is not ready yet.
    Starting {
        /// The time of the last death in this run. Without a death, the time of `Order::Run`.
        since: Instant,
        /// The deadline for readiness. A component that is not ready at the deadline is killed. `None` until the
        /// guardian reports that the component was started.
        ready_by: Option<Instant>,
    },
    /// The component is ready.
    Ready {
        /// The time at which the component became ready.
        since: Instant,
    },
    /// An incarnation has died, and the `Subject` of the component restarts the program.
    Down {
        /// The time of the death.
        since: Instant,
        /// The status with which the incarnation died.
        status: SubjectStatus,
    },
    /// The component was asked to end.
    Stopping {
        /// The deadline for the end. A component that has not ended at the deadline is killed.
        until: Instant,
    },
    /// The component did not end in time, and is being killed.
    Killing,
    /// A command has ended the run, or a command has stopped the component before a run began.
    Stopped,
    /// The run has ended without a command. A new run begins only after a command, after the give-up of a component, or
    /// after a change of the system file.
    Ended(End),
}

impl ComponentState {
    /// Reports whether the component has a run: between `Order::Run` and `SystemEvent::Ended`.
    #[must_use]
    pub const fn has_run(&self) -> bool {
        match self {
            Self::Starting { .. }
            | Self::Ready { .. }
            | Self::Down { .. }
            | Self::Stopping { .. }
            | Self::Killing => true,
            Self::Idle | Self::Waiting | Self::Stopped | Self::Ended(_) => false,
        }
    }

    /// Reports whether the components that need this component may be started.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }

    /// Reports whether the guardian has reported an incarnation that still runs, and no `Order::End` was given.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Ready { .. } | Self::Starting { ready_by: Some(_), .. })
    }

    /// Reports whether the run is being ended on request.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self, Self::Stopping { .. } | Self::Killing)
    }
}

/// A report of the guardian, or a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemEvent {
    /// Command: all components begin a run. A component waits until the components that it needs are ready.
    Up,
    /// The guardian has reported all events that had arrived. Now `Supervisor` handles expired deadlines.
    Due,
    /// A new incarnation runs from the beginning of the program.
    Started(ComponentId),
    /// An incarnation was restored from a checkpoint. The program was ready at the checkpoint, so the component is
    /// ready now.
    Restored(ComponentId),
    /// The condition of the key `ready` is met.
    Ready(ComponentId),
    /// An incarnation of a component has ended with this status. The run continues, because the `Subject` of the component
    /// restarts the program.
    Died(ComponentId, SubjectStatus),
    /// The run of a component has ended in this way.
    Ended(ComponentId, End),
    /// The guardian kills an incarnation, because an operator has requested a restart from a checkpoint of this moment.
    RestartRequested(ComponentId),
    /// A check of the guardian has found a fault of a component.
    Fault(ComponentId, Fault),
    /// A component or an operator complains about a component.
    Complaint {
        /// The component that the complaint is about.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// The weight of the complaint.
        weight: NonZeroU32,
    },
    /// Command: a component begins a run. The components that this component needs begin a run, too.
    Start(ComponentId),
    /// Command: end the run of a component. Components that need this component continue.
    Stop(ComponentId),
    /// Command: end the run of a component, and begin a new run. Components that need this component continue.
    Restart(ComponentId),
    /// Command: end all runs, and begin no new run. The run of a component ends after the runs of all components that
    /// need this component.
    Down,
}

/// The origin of a complaint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complainant {
    /// An operator.
    Operator,
    /// A component.
    Component(ComponentId),
}

/// An instruction to the guardian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Begin a run of a component.
    Run(ComponentId),
    /// Ask a component to end (`stop_signal`). When the program has ended, the run ends, and no restart follows.
    End(ComponentId),
    /// Kill a component (SIGKILL). When the program has ended, the run ends, and no restart follows.
    KillRun(ComponentId),
    /// Kill the current incarnation of a component, because of this fault. The guardian reports `Event::Faulted` to the
    /// `Subject` of the component. `Subject` decides whether a restart follows.
    Fail(ComponentId, Fault),
    /// Run the program of `exec` in the `restart` key of the component.
    Exec(ComponentId),
    /// Report a notice to the operator.
    Report(SystemNotice),
}

/// A report to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemNotice {
    /// A component waits for components that must be ready, or must have ended, before the run can begin.
    Waiting(ComponentId),
    /// A component is ready, this time after `Order::Run` or after the last death in the run.
    Ready(ComponentId, Duration),
    /// A component was not ready within this time, and is killed.
    NotReady(ComponentId, Duration),
    /// A component was ended on request.
    Stopped(ComponentId),
    /// A component did not end within this time after the request, and is killed.
    NotStopped(ComponentId, Duration),
    /// The run of a component has ended in this way, and no new run begins.
    Ended(ComponentId, End),
    /// A component has given up: it was restarted too often, or cannot be started or restored.
    GaveUp {
        /// The component.
        id: ComponentId,
        /// The way in which the run ended.
        end: End,
        /// The consequence of the give-up.
        follows: AfterGiveUp,
    },
    /// A component is killed and restarted, because another member of the component's group has died.
    GroupRestarts {
        /// The member that died.
        died: ComponentId,
        /// The member that is restarted.
        member: ComponentId,
    },
    /// A complaint was counted.
    Complaint {
        /// The component that the complaint is about.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// The sum of the weights of all complaints in the window.
        sum: u32,
        /// The sum at which the component is restarted.
        quorum: NonZeroU32,
    },
    /// A complaint was not counted.
    ComplaintRefused {
        /// The component that the complaint is about.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// The reason for the refusal.
        why: ComplaintRefusal,
    },
    /// A component is not started, because the system goes down.
    NotStarted(ComponentId),
    /// All components are ended, and then started again.
    SystemRestarts,
    /// All components are ended, and no component is started again.
    SystemGoesDown {
        /// `true` if a component has given up after a restart of the system. `false` if a command is the reason.
        has_failed: bool,
    },
}

/// What happens after a component has given up, because it was restarted too often, or cannot be started or restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterGiveUp {
    /// The component is not started again.
    StaysDead,
    /// All dependents (components that need the component) are ended. Then the component is started again, and after
    /// the component the dependents.
    RestartsDependents,
    /// The system is restarted.
    RestartsSystem,
    /// The system goes down.
    SystemGoesDown,
    /// The component is not started again, and the program of `exec` is run.
    RunsProgram,
}

/// The reason why a complaint does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComplaintRefusal {
    /// The complainant does not need the component.
    NotADependent,
    /// The component is not ready, or is already being killed or ended.
    NotReady,
}
