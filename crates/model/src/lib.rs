//! Units and names that every level shares.
//!
//! Owns: newtypes for process, thread and descriptor numbers, addresses, ranges, sets of ranges and counts.
//! Invariants: pure values, no system calls, no allocation beyond formatting and the lists of sets.
//! Does not: know how a value was obtained or what it is used for.
#![forbid(unsafe_code)]

mod address;
mod ids;
mod range_set;
mod text;

pub use address::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
pub use ids::{DescriptionId, Fd, Inode, Pid, ProcessKey, Sequence, Signal, StartTime, Tid};
pub use range_set::RangeSet;
pub use text::{Escaped, EscapedLines};
