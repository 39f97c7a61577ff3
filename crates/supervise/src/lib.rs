//! State machines for the supervision of a subject and of a system, and the description of a system.
//!
//! A subject is a protected program (a process tree). Its *root* is its first process. A system is a group of subjects
//! that are described by one file, `system.toml`; its subjects are called components. An *incarnation* of a subject
//! lasts from a start, adoption or restore to the next death. An *adopted* program was already running when the
//! guardian began to supervise the program. A *run* is a sequence of incarnations, and ends when no further incarnation
//! follows. A checkpoint *in flight* was taken, and is not yet durable.
//!
//! Owns: when a checkpoint is due, the consequences of a death, the checkpoint that a restart uses, and when restarts
//! end. For a system: the start and end order of components, the consequences of a give-up, and the keys of
//! `system.toml`.
//! Invariants: this crate is pure. Time is a parameter, and the only results are a new state and actions or orders. No
//! code here reads a clock, sleeps, sends a signal or opens a file.
//! Does not: carry out an action or an order. The guardian (the process of `undying run` and `undying up`) carries out
//! actions and orders, and reports the outcome as the next event.
#![forbid(unsafe_code)]

mod back_off;
mod durable;
mod fault;
mod output_points;
mod pace;
mod restarts;
mod status;
mod subject;
mod supervisor;
mod suspicion;
mod system;

pub use back_off::BackOffPlan;
pub use durable::{DurableParts, committed, hold_newest};
pub use fault::Fault;
pub use output_points::{LateRelease, OUTPUT_TIMEOUT, OutputPoints, Released};
pub use pace::{CostLimit, Pace, Pauses};
pub use restarts::RestartLimit;
pub use status::{ChangedFiles, RestartPolicy, SubjectStatus, Success};
pub use subject::{
    Action, Beginning, Death, End, Event, Failure, FileChanges, FreshReason, LateReason, NotRestarted,
    NotTaken, Notice, Plan, Prospect, RestoreError, Sliced, State, Step, StopStep, Subject, Survey,
};
pub use supervisor::{
    AfterGiveUp, Complainant, ComplaintRefusal, ComponentId, ComponentPlan, ComponentState, GroupPlan, Order,
    Quorum, STOP_TIMEOUT, Supervisor, SystemEvent, SystemNotice, SystemPlan,
};
pub use system::{
    Common, Complaints, Component, ComponentChanges, Condition, FilesPolicy, GiveUp, Group, Heartbeat,
    Limits, MemberDeath, Mistake, Mistakes, Percent, PercentLimit, Policy, Probe, Rate, Ready, Restart, Size,
    SizeLimit, Spanned, StopSignal, Strategy, SuccessfulEnd, System, Time, TimeRange,
};
