//! A system: a group of programs that are started, supervised and restarted together, as described in `system.toml`.
//!
//! Owns: the modules that parse and check the file.
//! Invariants: a `System` that was parsed is consistent: each component that is needed exists, and the needs contain no
//! cycle.
//! Does not: open files, or check programs, users or addresses on this machine.

mod checks;
mod description;
mod group;
mod mistake;
mod revision;
mod values;

pub use toml::Spanned;

pub use self::description::{
    Common, Complaints, Component, Condition, FilesPolicy, GiveUp, Heartbeat, Limits, Policy, Probe, Ready,
    Restart, System,
};
pub use self::group::{Group, MemberDeath, Strategy};
pub use self::mistake::{Mistake, Mistakes};
pub use self::revision::ComponentChanges;
pub use self::values::{
    Percent, PercentLimit, Rate, Size, SizeLimit, StopSignal, SuccessfulEnd, Time, TimeRange,
};
