//! The life of a subject and of a system of them as state machines, and the description of a system.
//!
//! Owns: when a checkpoint is due, what follows a death, which checkpoint a restart uses, when to give up; the order in
//! which components start and end, and what follows when one gives up; the keys of `system.toml`.
//! Invariants: pure. Time is a parameter, and the only results are a new state and actions or orders; nothing here
//! reads a clock, sleeps, sends a signal or opens a file.
//! Does not: carry out an action or an order. The guardian does, and reports the outcome as the next event.
#![forbid(unsafe_code)]

mod back_off;
mod fault;
mod pace;
mod restarts;
mod status;
mod subject;
mod supervisor;
mod suspicion;
mod system;

pub use back_off::BackOffPlan;
pub use fault::Fault;
pub use pace::Pauses;
pub use restarts::RestartLimit;
pub use status::{ChangedFiles, RestartPolicy, SubjectStatus};
pub use subject::{
    Action, Beginning, Death, End, Event, Failure, FreshReason, LateReason, NotTaken, Notice, Plan,
    RestoreError, Sliced, State, Step, Subject, Survey,
};
pub use supervisor::{
    AfterGiveUp, Complainant, ComplaintRefusal, ComponentId, ComponentPlan, ComponentState, GroupPlan, Order,
    Quorum, STOP_TIMEOUT, Supervisor, SystemEvent, SystemNotice, SystemPlan,
};
pub use system::{
    Common, Complaints, Component, ComponentChanges, Condition, GiveUp, Group, Heartbeat, Limits, Mistake,
    Mistakes, Policy, Probe, Rate, Ready, Restart, Size, Strategy, System, Time, TimeRange,
};
