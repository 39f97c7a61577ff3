//! Dirty-page trackers: which pages of a process changed since they were last asked for.
//!
//! Owns: the trackers, one file each, in a registry; the choice between them; what "changed" means for each kind of
//! memory.
//! Invariants: a change of content is never missed, nor that a page holds nothing any more; what cannot be
//! watched counts as changed; a tracker leaves nothing in the process once it is gone, however it goes.
//! Does not: copy pages, or decide when to look.
#![forbid(unsafe_code)]

mod ahead;
mod attach;
mod choice;
mod class;
mod dirty;
mod error;
mod finder;
mod full;
mod handler;
mod layout;
mod pagemap_scan;
mod populated;
mod query;
mod removals;
mod runs;
mod self_test;
mod soft_dirty;
mod spans;
mod survey;
mod tracker;
mod watch;
mod write_protect;

pub use ahead::AHEAD_MIN;
pub use attach::ROOM;
pub use choice::{AUTO, Choice, REGISTRY, choose, next_best};
pub use dirty::{Content, DirtyPages, DirtyRange};
pub use error::TrackError;
pub use layout::Layout;
pub use tracker::{Attach, Coverage, Moment, Properties, Tracker, TrackerKind, Unwatched, Why};
