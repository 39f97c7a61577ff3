//! The states of a component, the events that change the states, and the orders that follow.
//!
//! A component is a program of a system. The guardian (the process of `undying up`) reports events and carries out
//! orders.
//!
//! Owns: the types for states, events, orders and notices.
//! Invariants: orders are carried out in the given order. The guardian answers `Run` with `Started`, `Restored` or
//! `Ended`. The guardian answers `End` and `KillRun` with `Ended`, and `Fail` with `Died` or `Ended`.
//! Does not: write texts for the operator, or change a state; `Supervisor` changes states.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::plan::ComponentId;
use crate::fault::Fault;
use crate::status::SubjectStatus;
use crate::subject::End;

/// The state of a component.
///
/// A *run* lasts from `Order::Run` to `SystemEvent::Ended`. A run consists of incarnations: within a run, the state
/// machine of the component (`Subject`) restarts the program after a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComponentState {
    /// The component was never ordered to run.
    Idle,
    /// The component waits to run. `Supervisor::waits_for` returns the awaited components.
    Waiting,
    /// The component has a run, and is not ready.
    Starting {
        /// The time at which the run was ordered, or at which the last incarnation died.
        since: Instant,
        /// The deadline for readiness: a component that is not ready by then is killed. `None` until the component was
        /// started.
        ready_by: Option<Instant>,
    },
    /// The component is ready.
    Ready {
        /// The time at which the component became ready.
        since: Instant,
    },
    /// An incarnation has died, and the component's own state machine restarts the program.
    Down {
        /// The time of the death.
        since: Instant,
        /// The status with which the incarnation died.
        status: SubjectStatus,
    },
    /// The component was asked to end.
    Stopping {
        /// The deadline for the end: a component that has not ended by then is killed.
        until: Instant,
    },
    /// The component did not end in time, and is being killed.
    Killing,
    /// The component was ended by a command, or the command to run was withdrawn before a run began.
    Stopped,
    /// The run has ended without a command. Only a command, the consequence of a give-up, or a changed system file
    /// starts the component again.
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

    /// Reports whether an incarnation is known to run, and was not asked to end.
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
    /// Command: all components run, each component as soon as its needs are ready.
    Up,
    /// All events that have arrived were reported. The supervisor then handles due timeouts.
    Due,
    /// A new incarnation runs from the beginning of the program.
    Started(ComponentId),
    /// An incarnation was restored from a checkpoint, in which the program was already ready.
    Restored(ComponentId),
    /// The condition of the key `ready` is met.
    Ready(ComponentId),
    /// An incarnation has ended. The run continues: the component's own state machine restarts the program.
    Died {
        /// The component of the incarnation.
        id: ComponentId,
        /// The status with which the incarnation ended.
        status: SubjectStatus,
    },
    /// A run has ended.
    Ended {
        /// The component of the run.
        id: ComponentId,
        /// The way in which the run ended.
        end: End,
    },
    /// A check of the guardian has found a fault of a component.
    Fault {
        /// The faulty component.
        id: ComponentId,
        /// The fault.
        fault: Fault,
    },
    /// A component or an operator complains about a component.
    Complaint {
        /// The component that the complaint is about.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// The weight of the complaint.
        weight: NonZeroU32,
    },
    /// Command: a component runs, and all components that it needs.
    Start(ComponentId),
    /// Command: the run of a component ends. Components that need this component continue.
    Stop(ComponentId),
    /// Command: the run of a component ends, and a new run begins. Components that need this component continue.
    Restart(ComponentId),
    /// Command: all runs end, each run after the runs of all dependents. No run begins afterwards.
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
    /// Ask a component to end (SIGTERM). The end of the component ends the run: no restart follows.
    End(ComponentId),
    /// Kill a component (SIGKILL). The end of the component ends the run.
    KillRun(ComponentId),
    /// Kill the current incarnation of a component. The policy of the component decides about a restart. The guardian
    /// reports `Event::Faulted` to the component's own state machine.
    Fail(ComponentId, Fault),
    /// Run the program of `exec` in the `restart` key of the component.
    Exec(ComponentId),
    /// Report a notice to the operator.
    Tell(SystemNotice),
}

/// A report to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemNotice {
    /// A component waits for other components.
    Waiting(ComponentId),
    /// A component is ready.
    Ready {
        /// The component.
        id: ComponentId,
        /// The time for which the component was not ready: since its run was ordered, or since it died.
        took: Duration,
    },
    /// A component was not ready in time, and is killed.
    NotReady {
        /// The component.
        id: ComponentId,
        /// The timeout for readiness.
        timeout: Duration,
    },
    /// A component was ended on request.
    Stopped(ComponentId),
    /// A component did not end in time after SIGTERM, and is killed.
    NotStopped {
        /// The component.
        id: ComponentId,
        /// The time that the component had for its end.
        timeout: Duration,
    },
    /// The run of a component has ended, and the policy restarts nothing.
    Ended {
        /// The component.
        id: ComponentId,
        /// The way in which the run ended.
        end: End,
    },
    /// A component was restarted too often, or cannot be started or restored.
    GaveUp {
        /// The component.
        id: ComponentId,
        /// The way in which the run ended.
        end: End,
        /// The consequence of the give-up.
        follows: AfterGiveUp,
    },
    /// A component is killed and restarted because another member of its group has died.
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
        /// Whether a repeated give-up is the reason: a component gave up again after the restart of the system. `false`
        /// for a command.
        has_failed: bool,
    },
}

/// The consequence of a give-up: a component was restarted too often, or cannot be started or restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterGiveUp {
    /// The component is not started again.
    StaysDead,
    /// All dependents of the component are ended. Then the component, and after it the dependents, are started again.
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
    /// The component is not ready, or is being restarted or ended already.
    NotReady,
}
