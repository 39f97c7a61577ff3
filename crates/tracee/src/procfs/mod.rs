//! What `/proc` tells of a process.
//!
//! Owns: parsers of stat, status, maps and smaps, fdinfo, children.
//! Invariants: a file that cannot be understood is an error that names it, never a guess.
//! Does not: stop anything; values may be stale once returned.

mod ahead;
mod areas;
mod descriptors;
mod files;
mod kept;
mod stat;
mod status;
mod tasks;

pub use ahead::ReadAhead;
pub use areas::{Area, AreaFlags, Backing, Protection, areas, areas_in, areas_with_flags};
pub use descriptors::{DescriptorInfo, closes_on_exec, descriptor_info, descriptors, open_descriptor_info};
pub use files::{link, path_of_thread, read, read_text, read_whole};
pub use kept::KeptFiles;
pub use stat::{Stat, key, own_pages, stat, thread_count, thread_stat};
pub use status::{CallStatus, Status, call_status, signal_set, status, status_line, thread_status};
pub use tasks::{children, processes, threads};
