//! One process that guards several subjects.
//!
//! Owns: nothing itself. `core` contains the event loop; `plain` is for subjects that are all known at the start.
//! Does not: control a subject; the guard of the subject does.

mod core;
mod plain;
mod poller;
mod workers;

pub(crate) use self::core::{Director, Source};
pub use self::core::{Host, SubjectId};
pub use self::plain::{OnEvent, run};
