//! Properties of file systems.
//!
//! Owns: the list of pseudo file systems, and recognizing message queues.

use std::os::fd::AsFd;

const PROC: i64 = 0x9fa0;
/// Pseudo file systems: the kernel computes the content of a file at each read, and its size and times have no
/// meaning.
const PSEUDO: &[i64] = &[PROC, MESSAGE_QUEUES, 0x6265_6572, 0x27_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163];
/// The file system of POSIX message queues.
const MESSAGE_QUEUES: i64 = 0x1980_0202;

/// Reports whether an open file is a POSIX message queue.
pub(crate) fn is_message_queue(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == MESSAGE_QUEUES)
}

/// Reports whether an open file is on a pseudo file system.
pub(crate) fn is_pseudo(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| is_pseudo_type(system.f_type))
}

/// Reports whether a file system of this type (`f_type` of statfs(2)) is a pseudo file system.
pub(crate) fn is_pseudo_type(system: i64) -> bool {
    PSEUDO.contains(&system)
}
