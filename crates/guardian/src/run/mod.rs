//! The guarding of one subject, from its start to its end.
//!
//! Owns: nothing itself; each module implements one part.
//! Invariants: this process may be killed at any instant. If no files are watched, it may also be stopped. The subject
//! then continues without a guard.
//! Does not: wait, except on a worker thread; the event loop of the host waits.

mod blame;
mod channels;
mod child_stops;
mod children;
pub(crate) mod claim;
mod component_path;
mod connections;
mod cost_meter;
mod damaged;
mod departed;
mod earlier;
mod guard;
mod launch;
mod launchable;
mod leftovers;
mod mapped_files;
mod output;
mod place;
mod reasons;
mod rebuild;
mod request;
mod requested_restart;
pub(crate) mod requests;
mod tracer;
mod tracer_news;
mod waits;
mod watching;

pub use blame::of as blame_of;
pub use channels::ComponentChannels;
pub(crate) use claim::{Claim, UNDO_DIRECTORY, remove_log};
pub(crate) use cost_meter::CostMeter;
pub use damaged::Damaged;
pub(crate) use earlier::adopt;
pub(crate) use guard::{After, EndedRun, Guard, MemberNumber, SubjectReport, start};
pub use launch::{Launch, ReadyPipe};
pub(crate) use launchable::Setting;
pub(crate) use leftovers::ProcessReaper;
pub(crate) use reasons::without_numbers;
pub(crate) use rebuild::Shared;
pub use request::{
    COMPRESS_AFTER_DEFAULT, CostMax, EVERY_DEFAULT, EVERY_MIN, FILES_UNDO_MAX_DEFAULT, Guarded, HELD_MAX,
    KEEP_DEFAULT, RunRequest, TRACKER_DEFAULT,
};
