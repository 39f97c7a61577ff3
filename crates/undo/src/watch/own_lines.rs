//! Messages of this program in files that the subject (the protected process tree) shares with this program.
//!
//! Does not: recognize messages; the caller of the watch does.

/// Reports whether the file with this device and inode number contains, from this offset in bytes on, only messages of
/// this program.
pub type OwnLines = fn((u64, u64), u64) -> bool;
