//! What the file system of a file is like.
//!
//! Owns: which file systems make up their content.

use std::os::fd::AsFd;

const PROC: i64 = 0x9fa0;
/// File systems whose files the kernel makes up when they are read; size and time say nothing.
const MADE_UP: &[i64] = &[PROC, 0x6265_6572, 0x27_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163];

/// Whether the file system of an open file makes up what is in it.
pub(crate) fn is_made_up(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| is_made_up_by(system.f_type))
}

/// Whether a file system of this type (`f_type` of statfs(2)) does.
pub(crate) fn is_made_up_by(system: i64) -> bool {
    MADE_UP.contains(&system)
}
