//! Reads information about processes from `/proc`.
//!
//! Owns: parsers of stat, status, maps and smaps, fdinfo, children.
//! Invariants: a file with unknown contents gives an error with its path, never a guess.
//! Does not: stop a process; returned values may be out of date immediately.

mod children;
mod descriptors;
mod files;
mod kept;
mod mappings;
mod stat;
mod status;

pub use children::{children, children_through};
pub use descriptors::{DescriptorInfo, closes_on_exec, descriptor_info, descriptors, open_descriptor_info};
pub use files::{link, path_of_thread, processes, read, read_text, read_whole, shortage, threads};
pub use kept::{KeptFiles, Permit, ReadAhead, ReservedDescriptors};
pub use mappings::{Backing, Mapping, MappingFlags, Protection, mappings, mappings_in, mappings_with_flags};
pub use stat::{Stat, key, own_pages, stat, stat_through, thread_stat};
pub use status::{SignalSets, Status, call_status, signal_set, status, status_line, thread_status};
