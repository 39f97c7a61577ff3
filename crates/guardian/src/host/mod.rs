//! One process that guards several subjects.
//!
//! Owns: nothing itself. `core` has the loop; `plain` is for subjects that are all known at the start.
//! Does not: decide anything about a subject; its guard does.

mod core;
mod plain;
mod poller;
mod workers;

pub(crate) use self::core::{Director, Source};
pub use self::core::{Host, SubjectId};
pub use self::plain::{Tell, run};
