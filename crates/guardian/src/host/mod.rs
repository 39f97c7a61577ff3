//! One process that guards many subjects.
//!
//! Owns: nothing itself. `core` has the loop, `plain` the case in which all subjects are known at its beginning.
//! Does not: decide anything about a subject; its guard does.

mod core;
mod plain;
mod poller;
mod workers;

pub(crate) use self::core::{Director, Source};
pub use self::core::{Host, SubjectId};
pub use self::plain::{Tell, run};
