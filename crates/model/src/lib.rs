//! Units and identifiers that all crates share.
//!
//! Owns: newtypes for process, thread and descriptor numbers, addresses, ranges, sets of ranges and counts.
//! Invariants: the types are plain values and make no system calls. Only formatting and the lists of range sets
//! allocate memory.
//! Does not: know the origin or the purpose of a value.
#![forbid(unsafe_code)]

mod address;
mod ids;
mod range_set;
mod text;

pub use address::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
pub use ids::{DescriptionId, Fd, Inode, Pid, ProcessKey, Sequence, Signal, StartTime, Tid};
pub use range_set::RangeSet;
pub use text::{Escaped, EscapedLines, Word};
