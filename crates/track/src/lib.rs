//! Dirty-page trackers: they find the pages of a process that have changed since the last scan.
//!
//! Owns: the trackers, one file each, in a registry; the selection of a tracker; the definition of a change
//! for each class of memory.
//! Invariants: a tracker misses no change of content, and no page that becomes empty. Memory that cannot be
//! watched counts as changed. However a tracker ends, it leaves nothing in the process.
//! Does not: copy pages, or decide when to scan.
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
mod loosen;
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

pub use ahead::AHEAD_MIN;
pub use attach::ATTACH_CAPACITY;
pub use choice::{AUTO, Choice, REGISTRY, choose, next_best};
pub use dirty::{Content, DirtyPages, DirtyRange};
pub use error::TrackError;
pub use layout::Layout;
pub use loosen::Loosener;
pub use tracker::{Attach, Coverage, Moment, Properties, Tracker, TrackerKind, Unwatched, UnwatchedReason};
