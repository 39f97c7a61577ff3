//! What `/proc` tells of a process.
//!
//! Owns: parsers of stat, status, maps and smaps, fdinfo, children.
//! Invariants: a file that cannot be understood is an error that names it, never a guess.
//! Does not: stop anything; values may be stale once returned.

mod areas;
mod descriptors;
mod files;
mod kept;
mod stat;
mod status;

pub use areas::{Area, AreaFlags, Backing, Protection, areas, areas_in, areas_with_flags};
pub use descriptors::{DescriptorInfo, closes_on_exec, descriptor_info, descriptors, open_descriptor_info};
pub use files::{children, link, path_of_thread, processes, read, read_text, read_whole, threads};
pub use kept::{KeptFiles, ReadAhead};
pub use stat::{Stat, key, own_pages, stat, thread_count, thread_stat};
pub use status::{SignalSets, Status, call_status, signal_set, status, status_line, thread_status};
