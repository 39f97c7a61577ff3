//! What the components of a system are doing, what can happen to them, and what is to be done.
//!
//! Owns: the states of a component, the events that a host reports, the orders that it carries out.
//! Invariants: orders are carried out in their order. `Run` is answered by `Started`, `Restored` or `Ended`; `End` and
//! `KillRun` are answered by `Ended`; `Fail` is answered by `Died` or `Ended`.
//! Does not: word anything, or change a state; `Supervisor` does the latter.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::plan::ComponentId;
use crate::fault::Fault;
use crate::status::SubjectStatus;
use crate::subject::End;

/// What a component is doing. A *run* lasts from `Order::Run` to `SystemEvent::Ended`. It consists of incarnations:
/// within a run, the state machine of the component (`Subject`) restarts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComponentState {
    /// It was not told to run yet.
    Idle,
    /// It runs once the components that `Supervisor::waits_for` gives are ready, or have ended.
    Waiting,
    /// It has a run, and is not ready.
    Starting {
        /// When its run was ordered, or when its last incarnation died.
        since: Instant,
        /// When it is killed if it is not ready by then. `None` until it was started.
        ready_by: Option<Instant>,
    },
    /// It is ready.
    Ready {
        /// Since when.
        since: Instant,
    },
    /// It died, and its own state machine brings it back.
    Down {
        /// Since when.
        since: Instant,
        /// How it died.
        status: SubjectStatus,
    },
    /// It was told to end.
    Stopping {
        /// When it is killed if it has not ended by then.
        until: Instant,
    },
    /// It did not end in time, and is being killed.
    Killing,
    /// It was ended on request, or taken back before it ran.
    Stopped,
    /// Its run is over without a request, and nothing restarts it but a command.
    Ended(End),
}

impl ComponentState {
    /// Whether it has a run: between `Order::Run` and `SystemEvent::Ended`.
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

    /// Whether the components that need it may be started.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready { .. })
    }

    /// Whether an incarnation of it is known to run, and was not told to end.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        matches!(self, Self::Ready { .. } | Self::Starting { ready_by: Some(_), .. })
    }

    /// Whether its run is being ended on request.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        matches!(self, Self::Stopping { .. } | Self::Killing)
    }
}

/// Something that has happened, or a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemEvent {
    /// Command: all components run, each when its needs are ready.
    Up,
    /// All events that have arrived were reported: due actions are to be taken.
    Due,
    /// A run or an incarnation runs from the beginning of the program.
    Started(ComponentId),
    /// An incarnation runs from a checkpoint, where it was ready already.
    Restored(ComponentId),
    /// The condition of `ready` holds.
    Ready(ComponentId),
    /// An incarnation has ended. The run continues: the component's own state machine restarts it.
    Died {
        /// Which component.
        id: ComponentId,
        /// How.
        status: SubjectStatus,
    },
    /// A run is over.
    Ended {
        /// Of which component.
        id: ComponentId,
        /// How.
        end: End,
    },
    /// A check from outside finds a component faulty.
    Fault {
        /// Which component.
        id: ComponentId,
        /// What is wrong.
        fault: Fault,
    },
    /// A client or an operator complains about a component.
    Complaint {
        /// Which component.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// How much it counts.
        weight: NonZeroU32,
    },
    /// Command: a component runs, and all that it needs.
    Start(ComponentId),
    /// Command: the run of a component ends. Components that need it continue.
    Stop(ComponentId),
    /// Command: the run of a component ends, and a new one begins. Components that need it continue.
    Restart(ComponentId),
    /// Command: all runs end, each after those of all components that need it. This is final.
    Down,
}

/// Where a complaint comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complainant {
    /// An operator.
    Operator,
    /// A component.
    Component(ComponentId),
}

/// Something to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Begin a run of a component.
    Run(ComponentId),
    /// Ask a component to end (SIGTERM). Its run is over then: nothing restarts it.
    End(ComponentId),
    /// Kill a component (SIGKILL). Its run is over then.
    KillRun(ComponentId),
    /// Kill the present incarnation of a component, which its policy restarts. The event for its own state machine is
    /// `Event::Faulted`.
    Fail(ComponentId, Fault),
    /// Run the program of `exec` in the component's `restart`.
    Exec(ComponentId),
    /// Report to the operator.
    Tell(SystemNotice),
}

/// A report to the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemNotice {
    /// A component waits for others.
    Waiting(ComponentId),
    /// A component is ready.
    Ready {
        /// Which one.
        id: ComponentId,
        /// How long it was not: since its run was ordered, or since it died.
        took: Duration,
    },
    /// A component was not ready in time, and is killed.
    NotReady {
        /// Which one.
        id: ComponentId,
        /// How long it had.
        timeout: Duration,
    },
    /// A component was ended on request.
    Stopped(ComponentId),
    /// A component did not end in time after SIGTERM, and is killed.
    NotStopped {
        /// Which one.
        id: ComponentId,
        /// How long it had.
        timeout: Duration,
    },
    /// The run of a component is over, and its policy does not restart it.
    Ended {
        /// Which one.
        id: ComponentId,
        /// How.
        end: End,
    },
    /// A component was restarted too often, or cannot be brought back.
    GaveUp {
        /// Which one.
        id: ComponentId,
        /// How its run ended.
        end: End,
        /// What follows.
        follows: AfterGiveUp,
    },
    /// A component is killed and restarted since another member of its group died.
    GroupRestarts {
        /// The member that died.
        died: ComponentId,
        /// The member that is restarted.
        member: ComponentId,
    },
    /// A complaint was counted.
    Complaint {
        /// The component that it is about.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// What the complaints of the window add up to.
        sum: u32,
        /// The sum that restarts the component.
        quorum: NonZeroU32,
    },
    /// A complaint was not counted.
    ComplaintRefused {
        /// The component that it is about.
        about: ComponentId,
        /// The complainant.
        by: Complainant,
        /// Why.
        why: ComplaintRefusal,
    },
    /// A component is not started, since the system goes down.
    NotStarted(ComponentId),
    /// All components are ended, to be started again.
    SystemRestarts,
    /// All components are ended, and none is started again.
    SystemGoesDown {
        /// Not on request: a component gave up again after the restart of the system.
        has_failed: bool,
    },
}

/// What follows when a component was restarted too often, or cannot be brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterGiveUp {
    /// It stays dead.
    StaysDead,
    /// It is started again, after the components that cannot run without it have ended; then these are.
    RestartsDependents,
    /// The system is restarted.
    RestartsSystem,
    /// The system goes down.
    SystemGoesDown,
    /// It stays dead, and the program of `exec` is run.
    RunsProgram,
}

/// Why a complaint is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComplaintRefusal {
    /// The complainant does not need the component.
    NotADependent,
    /// The component is not ready, or is being restarted or ended already.
    NotReady,
}
