//! Messages of this program in files that the subject shares with this program.
//!
//! Does not: recognize messages; the caller of the watch does.

use std::path::Path;

/// Reports whether the file with this path, device and inode number contains, from this offset in bytes on, only
/// messages of this program.
pub type OwnLines = fn(&Path, (u64, u64), u64) -> bool;
