//! A system: components that are started, watched and restarted together, as `system.toml` describes them.
//!
//! Owns: the parts that read and check the file.
//! Invariants: a `System` that was read is consistent: what a component needs is there, and there is no cycle.
//! Does not: open files; look at programs, users or addresses on this machine.

mod checks;
mod description;
mod mistake;
mod revision;
mod values;

pub use self::description::{
    Common, Complaints, Component, Condition, GiveUp, Group, Heartbeat, Limits, Policy, Probe, Ready,
    Restart, Strategy, System,
};
pub use self::mistake::{Mistake, Mistakes};
pub use self::revision::ComponentChanges;
pub use self::values::{Rate, Size, Time, TimeRange};
