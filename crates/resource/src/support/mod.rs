//! What several descriptor kinds need: paths, reopening, content of files and pipes, who else holds a file.
//!
//! Owns: nothing of its own; each file says.
//! Does not: know kinds.

pub(crate) mod content;
pub(crate) mod file_system;
pub(crate) mod identity;
pub(crate) mod inherited;
pub(crate) mod label;
pub(crate) mod lock_line;
pub(crate) mod making;
pub(crate) mod nameless;
pub(crate) mod opening;
pub(crate) mod outside;
pub(crate) mod ownership;
pub(crate) mod path;
pub(crate) mod pipe_queue;
pub(crate) mod tmpfs;

#[cfg(test)]
pub(crate) mod kernel_headers;
#[cfg(test)]
pub(crate) mod testing;
